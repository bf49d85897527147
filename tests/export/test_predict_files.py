"""Predicting many files: order, bad files, thresholds, names, and what stays in memory."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rcalign import api, cli
from rcalign.data.stream import decoded_batches, find_images
from rcalign.errors import InputError
from rcalign.evaluation import metrics
from rcalign.predictions import Predictions
from rcalign.training.trained import load_trained

CPU = torch.device("cpu")
Run = Callable[..., tuple[int, str, str]]


def shade(path: Path, value: int) -> Path:
    Image.fromarray(np.full((40, 40, 3), value, np.uint8)).save(path)
    return path


def test_order_is_kept_and_bad_files_are_listed(image_run: Path, tmp_path: Path) -> None:
    for k in range(150):  # more than two batches
        shade(tmp_path / f"{k:03d}.png", k)
    (tmp_path / "007.png").write_bytes(b"")
    (tmp_path / "100.png").write_bytes((tmp_path / "101.png").read_bytes()[:-30])
    (tmp_path / "notes.txt").write_text("not an image")
    result = api.predict(image_run, [tmp_path])
    assert [Path(row["path"]).name for row in result["rows"]] == [f"{k:03d}.png" for k in range(150)]
    assert result["count"] == 148
    bad, whole = result["rows"][7], [row for row in result["rows"] if row["problem"] is None]
    assert len(whole) == 148
    assert bad == dict.fromkeys(bad) | {"path": bad["path"], "problem": "it is empty (zero bytes)"}
    assert [(Path(path).name, why) for path, why in result["skipped"]] == [
        ("007.png", "it is empty (zero bytes)"),
        ("100.png", "it is cut short (truncated)"),
    ]
    one_by_one = [api.predict(image_run, [row["path"]])["rows"][0] for row in whole[::49]]
    for alone, row in zip(one_by_one, whole[::49], strict=True):
        assert alone["predicted"] == row["predicted"] and alone["confidence"] == pytest.approx(row["confidence"])


def test_csv_is_what_the_list_is(image_run: Path, pictures: Path, tmp_path: Path) -> None:
    result = api.predict(image_run, [pictures], out=tmp_path / "p.csv")
    assert result["rows"] == [] and result["count"] == 48
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    listed = api.predict(image_run, [pictures])["rows"]
    assert table == [{key: "" if value is None else str(value) for key, value in row.items()} for row in listed]
    assert set(table[0]) == {"path", "predicted", "confidence", "problem", "red", "blue, [bold]"}


def test_files_are_read_as_they_are_needed(image_run: Path, tmp_path: Path) -> None:
    """Memory stays flat because no file is decoded long before its turn: one removed meanwhile is missed."""
    for k in range(400):
        shade(tmp_path / f"{k:03d}.png", 99)
    predictions = Predictions(load_trained(image_run, CPU), [tmp_path])
    rows = iter(predictions)
    next(rows)
    for k in range(300, 400):
        (tmp_path / f"{k:03d}.png").unlink()
    assert [row["problem"] is None for row in rows].count(True) == 299
    assert len(predictions.skipped) == 100 and predictions.total == predictions.seen == 400


def test_a_broken_off_prediction_leaves_no_file(image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(InputError, match="none of the 1 files is a whole image"):
        api.predict(image_run, [tmp_path / "a.png"], out=tmp_path / "p.csv")
    assert [item.name for item in tmp_path.iterdir()] == ["a.png"]


def test_unknown_below_the_threshold(rows_run: Path, tmp_path: Path) -> None:
    data = np.load(rows_run.parent / "rows.npz")
    np.savez(tmp_path / "new.npz", x=data["x"])
    sure = api.predict(rows_run, [tmp_path / "new.npz"])["rows"]
    rows = api.predict(rows_run, [tmp_path / "new.npz"], threshold=0.7)["rows"]
    unsure = [row["confidence"] < 0.7 for row in rows]
    assert 0 < sum(unsure) < len(rows)
    for row, before, unknown in zip(rows, sure, unsure, strict=True):
        assert row["predicted"] == ("unknown" if unknown else before["predicted"])
    for wrong in (0.0, 1.5, -1.0):
        with pytest.raises(InputError, match="threshold"):
            api.predict(rows_run, [tmp_path / "new.npz"], threshold=wrong)


def test_confidence_is_calibrated_by_what_the_result_says(rows_run: Path, tmp_path: Path) -> None:
    result = json.loads((rows_run / "result.json").read_text())["calibration"]
    assert result["rows"] == 32 and set(result["ece"]) == {"val", "test"}
    assert all(set(pair) == {"before", "after"} for pair in result["ece"].values())
    data = np.load(rows_run.parent / "rows.npz")
    np.savez(tmp_path / "new.npz", x=data["x"])
    rows = api.predict(rows_run, [tmp_path / "new.npz"])["rows"]
    logits = load_trained(rows_run, CPU).logits(torch.from_numpy(data["x"]).float()).numpy()
    expected = metrics.softmax(logits / result["temperature"])
    assert result["temperature"] != 1
    np.testing.assert_allclose([[row[c] for c in "012"] for row in rows], expected, atol=2e-6)


def test_classes_called_like_our_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.array(["path", "predicted", "unknown"])[np.arange(90) % 3]
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(90, 2)), y=y, domain=np.arange(90) // 30)
    api.train(tmp_path / "rows.npz", "ERM", ["2"], steps=2, out=tmp_path / "run")
    (row, *_) = api.predict(tmp_path / "run", [tmp_path / "rows.npz"], threshold=1.0)["rows"]
    assert row["path"] == "row 0" and row["predicted"] == "(unknown)"
    assert row["path (class)"] + row["predicted (class)"] + row["unknown"] == pytest.approx(1, abs=1e-5)


NAMES = ["a b.png", "it's.png", 'say "x".png', "two\nlines.png", "naïve.png", "图像.png", "[red]x.png", "a,b;c.png"]


@pytest.mark.parametrize("name", [*NAMES, b"latin-\xe9.png"])
def test_any_file_name(
    name: str | bytes,
    image_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / os.fsdecode(name)
    shade(path, 50)
    for words in (["--out", str(tmp_path / "p.csv")], []):
        monkeypatch.setattr(sys, "argv", ["rcalign", "predict", str(image_run), str(path), *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
    with (tmp_path / "p.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == [str(path)]
    (tmp_path / "bad").mkdir()
    broken = tmp_path / "bad" / os.fsdecode(name)
    broken.write_text("no image")
    monkeypatch.setattr(sys, "argv", ["rcalign", "predict", str(image_run), str(path), str(broken)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 3
    assert f"skipped {str(broken)!r}: its content is not an image" in capsys.readouterr().err


def test_a_frozen_random_backbone_is_the_same_one_later(pictures: Path, tmp_path: Path) -> None:
    options = {"backbone": "test_resnet", "weights": "none", "image_size": 32, "steps": 60, "freeze_backbone": True}
    result = api.train(pictures, "ERM", ["camera a"], **options, seed=3, out=tmp_path / "run")
    assert api.evaluate(tmp_path / "run")["average"] == pytest.approx(result["average"])


def test_a_file_is_read_as_it_was_in_training(pictures: Path, image_run: Path) -> None:
    """The same pixels reach the network through the cache and through predict."""
    accuracy = api.evaluate(image_run, pictures, include_training=True)["accuracy"]
    rows = api.predict(image_run, [pictures])["rows"]
    for domain, value in accuracy.items():
        here = [row for row in rows if Path(row["path"]).parts[-3] == domain]
        assert np.mean([row["predicted"] == Path(row["path"]).parts[-2] for row in here]) == pytest.approx(value)


def test_batches_of_files(tmp_path: Path) -> None:
    paths = [shade(tmp_path / f"{k}.png", 10 * k) for k in range(7)]
    paths[4].write_text("no image")
    batches = list(decoded_batches(find_images([tmp_path]), 8, 3))
    assert [[path.name for path in batch.paths] for batch in batches] == [
        ["0.png", "1.png", "2.png"],
        ["3.png", "5.png"],
        ["6.png"],
    ]
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[0, 10, 20], [30, 50], [60]]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no images"):
        find_images([tmp_path, empty])


def test_a_list_of_files(image_run: Path, pictures: Path, tmp_path: Path, rcalign: Run) -> None:
    """In its order, relative to its folder or absolute; what is missing or broken is a row, and the code is 3."""
    images = sorted(pictures.rglob("*.png"))[::7]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "broken.png").write_text("no image")
    with (tmp_path / "lists" / "new.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["note", "path"])
        writer.writeheader()
        for path in (images[3], "gone.png", images[0], "broken.png", images[1]):
            writer.writerow({"note": "a, b", "path": path})
    code, out, err = rcalign("predict", image_run, tmp_path / "lists" / "new.csv", "--json")
    assert code == 3 and "Traceback" not in err
    result = json.loads(out)
    given = [images[3], tmp_path / "lists" / "gone.png", images[0], tmp_path / "lists" / "broken.png", images[1]]
    assert [row["path"] for row in result["rows"]] == list(map(str, given))
    assert [row["problem"] is None for row in result["rows"]] == [True, False, True, False, True]
    assert result["count"] == 3 and [path for path, _ in result["skipped"]] == [str(given[1]), str(given[3])]
    alone = api.predict(image_run, [images[0]])["rows"][0]
    assert result["rows"][2]["predicted"] == alone["predicted"]
    code, out, err = rcalign("predict", image_run, tmp_path / "lists" / "new.csv", "--out", "p.csv")
    assert code == 3 and "3 predictions written" in out
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["problem"] for row in table] == [row["problem"] or "" for row in result["rows"]]
    assert rcalign("predict", image_run, images[0])[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("file,label\na.png,x\n", "has no column 'path'"), ("path\n", "is empty"), ("path,x\na.png,1\n,2\n", "line 3 of")],
)
def test_a_list_that_is_none(text: str, said: str, image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        api.predict(image_run, [tmp_path / "list.csv"])
