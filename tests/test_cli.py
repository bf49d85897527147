"""The command line as a newcomer meets it: what works, and one sentence with exit code 2 for what does not."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def save_rows(path: Path, domains: int = 3, **changes: np.ndarray) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(180) % 3, np.repeat(np.arange(domains), 180 // domains)
    x = rng.normal(size=(180, 5)) + 2 * np.eye(5)[y]
    np.savez(path, **{"x": x, "y": y, "domain": domain, **changes})
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three domains, two classes, ten small PNGs each: red and blue squares on grey of three shades."""
    rng = np.random.default_rng(0)
    for d, domain in enumerate(("camera a", "camera b", "caméra ç")):
        for c, name in enumerate(("red", "blue")):
            folder = tmp_path / "pictures" / domain / name
            folder.mkdir(parents=True)
            for k in range(10):
                image = np.full((24, 24, 3), 80 + 50 * d, dtype=np.uint8) + rng.integers(
                    0, 20, (24, 24, 3), dtype=np.uint8
                )
                image[6:18, 6:18] = (200, 30, 30) if c == 0 else (30, 30, 200)
                Image.fromarray(image).save(folder / f"{k}.png")
    return tmp_path / "pictures"


QUICK = ("--algorithm", "ERM", "--steps", "4", "--evaluate-every", "2")


# --- what works ---------------------------------------------------------------------------------------------------


def test_train_evaluate_predict_on_rows(rcalign: Run, rows: Path, tmp_path: Path) -> None:
    code, out, _ = rcalign("train", rows, "--test-domain", "2", "--steps", "60", "--out", "run")
    assert code == 0 and "macro F1" in out and "Run folder: run" in out
    folder = tmp_path / "run"
    for name in ("config.json", "records.jsonl", "best.safetensors", "result.json"):
        assert (folder / name).is_file()
    result = json.loads((folder / "result.json").read_text())
    for key in ("algorithm", "seed", "protocol", "test_domains", "accuracy", "average", "worst", "balanced", "shots"):
        assert key in result
    assert {"ece", "steps", "seconds"} <= result.keys()
    assert result["accuracy"].keys() == {"2"} and result["steps"] == 60 and result["average"] > 0.8
    assert set(result["shots"]) == {"many", "medium", "few", "zero"}

    code, out, _ = rcalign("evaluate", "run", "--json")
    assert code == 0 and json.loads(out)["average"] == pytest.approx(result["average"])

    code, out, _ = rcalign("predict", "run", rows, "--out", "p.csv")
    table = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert code == 0 and len(table) == 180
    truth = np.load(rows)["y"]
    assert np.mean([int(row["predicted"]) == y for row, y in zip(table, truth, strict=True)]) > 0.8
    assert sum(float(table[0][name]) for name in "012") == pytest.approx(1, abs=1e-4)


def test_images_in_folders_with_a_small_network(rcalign: Run, pictures: Path, tmp_path: Path) -> None:
    options = ("--backbone", "resnet10t", "--weights", "none", "--image-size", "24", "--set", "batch_size=4")
    code, out, err = rcalign("train", pictures, "--test-domain", "caméra ç", *QUICK, *options, "--out", "run")
    assert code == 0, err
    code, out, _ = rcalign("predict", "run", pictures / "camera a", "--out", "p.csv")
    table = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert code == 0 and len(table) == 20 and {"red", "blue"} < table[0].keys()
    code, out, _ = rcalign("evaluate", "run", pictures, "--json")
    assert code == 0 and set(json.loads(out)["accuracy"]) == {"camera a", "camera b", "caméra ç"}


def test_mdlt_trains_and_tests_every_domain(rcalign: Run, rows: Path, tmp_path: Path) -> None:
    code, _, err = rcalign("train", rows, "--protocol", "mdlt", *QUICK, "--out", "run")
    assert code == 0, err
    assert set(json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"]) == {"0", "1", "2"}


def test_series_get_a_convolutional_network(rcalign: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y, domain = np.arange(90) % 2, np.repeat(np.arange(3), 30)
    x = np.sin(np.linspace(0, 6, 40) * (1 + 2 * y[:, None]))[:, None] + 0.1 * rng.normal(size=(90, 2, 40))
    np.savez(tmp_path / "series.npz", x=x, y=y, domain=domain)
    code, _, err = rcalign("train", "series.npz", "--test-domain", "0", "--steps", "60", "--out", "run")
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["average"] > 0.9


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), id="RC-Align"),
        pytest.param(("alignment_weight=0", "mixup_alpha=0"), id="MLDG"),
        pytest.param(("meta=false", "mixup_alpha=0"), id="ERM + DA"),
        pytest.param(("mixup_alpha=0",), id="without mixup"),
    ],
)
def test_each_row_of_the_ablation_is_one_command(rcalign: Run, rows: Path, changes: tuple[str, ...]) -> None:
    options = [word for change in changes for word in ("--set", change)]
    code, _, err = rcalign("train", rows, "--algorithm", "rc-align", "--test-domain", "1", "--steps", "3", *options)
    assert code == 0, err


@pytest.mark.parametrize("kind", ["ema", "polynomial", "swa", "swad"])
def test_weight_averaging_goes_around_any_algorithm(rcalign: Run, rows: Path, tmp_path: Path, kind: str) -> None:
    options = ("--average", kind, "--steps", "40", "--evaluate-every", "5", "--out", "run")
    code, _, err = rcalign("train", rows, "--algorithm", "CORAL", "--test-domain", "1", *options)
    assert code == 0, err
    weights = json.loads((tmp_path / "run" / "result.json").read_text())["weights"]
    assert kind in weights
    if kind == "swa":  # the first quarter is left out
        assert "mean of 31 steps, from step 10" in weights


def test_a_two_stage_method_is_one_command(rcalign: Run, rows: Path, tmp_path: Path) -> None:
    code, _, err = rcalign("train", rows, "--algorithm", "CRT", "--test-domain", "1", "--steps", "20", "--out", "run")
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "stage-1" / "result.json").read_text())["algorithm"] == "ERM"


def test_a_finished_run_is_found_not_repeated(rcalign: Run, rows: Path, tmp_path: Path) -> None:
    rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run")
    before = (tmp_path / "run" / "best.safetensors").stat().st_mtime_ns
    code, out, _ = rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run", "--resume")
    assert code == 0 and "macro F1" in out
    assert (tmp_path / "run" / "best.safetensors").stat().st_mtime_ns == before


def test_lists(rcalign: Run, rows: Path) -> None:
    code, out, _ = rcalign("algorithms", "--json")
    names = [row["name"] for row in json.loads(out)]
    assert code == 0 and {"ERM", "RC-Align"} <= set(names)
    code, out, _ = rcalign("algorithms", "rc-align")
    assert code == 0 and "alignment_weight" in out
    code, out, _ = rcalign("data", "info", rows, "--json")
    assert code == 0 and json.loads(out)["counts"]["0"] == {"0": 20, "1": 20, "2": 20}
    code, out, _ = rcalign("data", "info", rows)
    assert code == 0 and "180" in out


def test_help_teaches() -> None:
    command, wide = [sys.executable, "-m", "rcalign.cli", "train", "--help"], {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run(command, capture_output=True, text=True, env=wide)
    assert shown.returncode == 0
    for word in ("--test-domain", "--freeze-backbone", "domain/class/image", "Example"):
        assert word in shown.stdout


# --- what does not ------------------------------------------------------------------------------------------------


def refused(outcome: tuple[int, str, str], *words: str) -> str:
    """The outcome is one sentence on standard error with exit code 2."""
    code, _, err = outcome
    assert code == 2, err
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("rcalign: ")]
    assert len(said) == 1 and said[0].endswith("."), err
    for word in words:
        assert word in said[0], said[0]
    return said[0]


def test_unknown_names_suggest_the_nearest(rcalign: Run, rows: Path, pictures: Path) -> None:
    refused(rcalign("train", rows, "--algorithm", "EMR", "--test-domain", "0"), "'EMR'", "did you mean 'ERM'")
    refused(rcalign("train", rows, "--test-domain", "0", "--set", "temprature=1"), "did you mean 'temperature'")
    refused(rcalign("train", pictures, "--test-domain", "camera A"), "did you mean 'camera a'")
    refused(
        rcalign("train", pictures, "--test-domain", "camera a", "--backbone", "resnet81"), "did you mean 'resnet18'"
    )
    refused(rcalign("train", "emojis", "--test-domain", "x"), "emojis")
    refused(rcalign("train", rows, "--test-domain", "0", "--preset", "domainbde"), "did you mean 'domainbed'")
    refused(rcalign("train", rows, "--test-domain", "0", "--protocol", "loda"), "did you mean 'lodo'")
    refused(rcalign("train", rows, "--test-domain", "0", "--device", "gpu"), "unknown device")


def test_wrong_values(rcalign: Run, rows: Path) -> None:
    refused(
        rcalign("train", rows, "--test-domain", "0", "--set", "learning_rate=fast"), "learning_rate", "'fast'", "float"
    )
    refused(rcalign("train", rows, "--test-domain", "0", "--set", "temperature=-1"), "at least")
    refused(rcalign("train", rows, "--test-domain", "0", "--set", "denominator=all"), "negatives", "all_but_own")
    refused(rcalign("train", rows, "--test-domain", "0", "--set", "temperature"), "field=value")
    refused(rcalign("train", rows, "--test-domain", "0", "--steps", "0"), "at least 1")
    refused(rcalign("train", rows), "--test-domain", "0, 1, 2")
    refused(rcalign("train", rows, "--protocol", "mdlt", "--test-domain", "0"), "mdlt")


def test_too_few_domains(rcalign: Run, tmp_path: Path) -> None:
    save_rows(tmp_path / "one.npz", domains=1)
    refused(rcalign("train", "one.npz", "--test-domain", "0", "--algorithm", "ERM"), "domain")
    save_rows(tmp_path / "two.npz", domains=2)
    refused(rcalign("train", "two.npz", "--test-domain", "0"), "RC-Align", "at least 2 source domains", "(1)")
    assert not (tmp_path / "runs").exists()


def test_a_domain_without_images(rcalign: Run, pictures: Path) -> None:
    (pictures / "camera d").mkdir()
    refused(rcalign("train", pictures, "--test-domain", "camera a"), "camera d")


def test_a_class_that_training_never_sees(rcalign: Run, tmp_path: Path) -> None:
    y = np.where(np.repeat(np.arange(3), 60) == 2, 2, np.arange(180) % 2)
    save_rows(tmp_path / "unseen.npz", y=y)
    refused(rcalign("train", "unseen.npz", "--test-domain", "2", *QUICK), "class", "2")


def test_bad_image_files_are_named_or_skipped(rcalign: Run, pictures: Path, tmp_path: Path) -> None:
    whole = (pictures / "camera a" / "red" / "0.png").read_bytes()
    (pictures / "camera a" / "red" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "camera b" / "blue" / "text.jpg").write_text("not an image")
    options = (
        "--test-domain",
        "caméra ç",
        *QUICK,
        "--backbone",
        "resnet10t",
        "--weights",
        "none",
        "--image-size",
        "24",
    )
    said = refused(rcalign("train", pictures, *options, "--out", "run"))
    assert "cut.png" in said or "text.jpg" in said
    assert "--skip-bad" in said
    assert not (tmp_path / "run").exists()
    code, _, err = rcalign("train", pictures, *options, "--out", "run", "--skip-bad", "--set", "batch_size=2")
    assert code == 0, err
    assert "cut.png" in err and "text.jpg" in err
    for command in ("evaluate", "diagnose"):  # the run knows that it left them out
        code, _, err = rcalign(command, "run")
        assert code == 0, err


@pytest.mark.parametrize("columns", [80, 200])
def test_many_domains_are_all_shown(
    rcalign: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    domains = np.array([f"hospital-{n % 30}" for n in range(600)])
    np.savez(tmp_path / "many.npz", x=np.zeros((600, 2)), y=np.arange(600) // 30 % 2, domain=domains)
    code, out, _ = rcalign("data", "info", "many.npz")
    assert code == 0 and "…" not in out
    assert all(re.search(rf"hospital-{n}\D+20\D+0: 10, 1: 10", out) for n in range(30))
    assert max(map(len, out.splitlines())) <= columns


def test_bad_manifests(rcalign: Run, pictures: Path, tmp_path: Path) -> None:
    def write(*lines: str) -> str:
        (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
        return "m.csv"

    refused(rcalign("train", write("path,label", "a.png,x"), "--test-domain", "d"), "domain", "column")
    refused(
        rcalign("train", write("path,label,domain", "gone.png,x,d", "gone2.png,x,e"), "--test-domain", "d"), "gone.png"
    )
    refused(rcalign("train", "none.csv", "--test-domain", "d"), "none.csv")


def test_bad_arrays(rcalign: Run, tmp_path: Path) -> None:
    x = np.zeros((180, 5))
    x[7, 3] = np.nan
    save_rows(tmp_path / "nan.npz", x=x)
    refused(rcalign("train", "nan.npz", "--test-domain", "0"), "row 7")
    save_rows(tmp_path / "inf.npz", x=np.where(np.isnan(x), np.inf, x))
    refused(rcalign("train", "inf.npz", "--test-domain", "0"), "row 7")
    save_rows(tmp_path / "neg.npz", y=np.full(180, -1))
    refused(rcalign("train", "neg.npz", "--test-domain", "0"), "-1")
    save_rows(tmp_path / "short.npz", y=np.zeros(9, dtype=int))
    refused(rcalign("train", "short.npz", "--test-domain", "0"), "180", "9")


def test_a_loss_that_is_no_number_names_step_and_checkpoint(rcalign: Run, rows: Path) -> None:
    outcome = rcalign(
        "train", rows, "--test-domain", "0", "--set", "learning_rate=1e30", "--steps", "50", "--out", "run"
    )
    refused(outcome, "step", "domain", "checkpoint", "learning_rate")


def test_an_output_folder_that_holds_something_else(rcalign: Run, rows: Path, tmp_path: Path) -> None:
    rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run")
    kept = (tmp_path / "run" / "result.json").read_bytes()
    refused(rcalign("train", rows, "--test-domain", "1", *QUICK, "--out", "run"), "another run", "--resume")
    refused(rcalign("train", rows, "--test-domain", "1", *QUICK, "--out", "run", "--resume"), "test domains")
    refused(rcalign("train", rows, "--test-domain", "2", *QUICK, "--seed", "1", "--out", "run", "--resume"), "seed")
    assert (tmp_path / "run" / "result.json").read_bytes() == kept
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    refused(rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "other"), "other files")
    (tmp_path / "file").write_text("")
    refused(rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "file"), "file")
    assert [item.name for item in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_changed_data_are_noticed(rcalign: Run, rows: Path) -> None:
    rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run")
    save_rows(rows, x=np.ones((180, 5)))
    refused(rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run", "--resume"), "data fingerprint")
    refused(rcalign("evaluate", "run"), "changed")


def test_predict_and_evaluate_say_what_is_wrong(rcalign: Run, rows: Path, pictures: Path, tmp_path: Path) -> None:
    refused(rcalign("predict", "nothing", rows), "not a run folder")
    rcalign("train", rows, "--test-domain", "2", *QUICK, "--out", "run")
    refused(rcalign("predict", "run", "nothing.png"), "nothing.png")
    refused(rcalign("predict", "run", pictures), "arrays")
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9)))
    refused(rcalign("predict", "run", "wide.npz"), "(9,)", "(5,)")
    save_rows(tmp_path / "more.npz", y=np.arange(180) % 4)
    refused(rcalign("evaluate", "run", "more.npz"), "class", "'3'")
    (tmp_path / "run" / "config.json").write_text("{")
    refused(rcalign("evaluate", "run"), "damaged")


def test_weights_files(rcalign: Run, pictures: Path, tmp_path: Path) -> None:
    options = ("--test-domain", "camera a", *QUICK, "--backbone", "resnet10t", "--image-size", "24", "--out", "run")
    refused(rcalign("train", pictures, *options, "--weights", "gone.safetensors"), "gone.safetensors")
    (tmp_path / "bad.pt").write_bytes(b"garbage")
    refused(rcalign("train", pictures, *options, "--weights", "bad.pt"), "bad.pt")


def test_the_version(rcalign: Run) -> None:
    code, out, _ = rcalign("--version")
    assert code == 0 and out.startswith("rcalign ")


def test_adapted_priors_help_where_only_the_frequencies_changed(rcalign: Run, tmp_path: Path) -> None:
    """Trained on equal classes, used where one class is nine tenths: the estimate finds that, and accuracy rises."""
    rng = np.random.default_rng(0)

    def draw(y: np.ndarray) -> np.ndarray:
        return rng.normal(size=(len(y), 4)) + 2.0 * np.eye(4)[y]

    y = np.arange(900) % 3
    np.savez(tmp_path / "train.npz", x=draw(y), y=y, domain=np.arange(900) // 300)
    rcalign("train", "train.npz", "--algorithm", "ERM", "--test-domain", "2", "--steps", "150", "--out", "run")
    skewed = rng.choice(3, size=800, p=[0.9, 0.05, 0.05])
    np.savez(tmp_path / "new.npz", x=draw(skewed))
    accuracy = {}
    for name, options in (("plain", ()), ("adapted", ("--adapt-priors",))):
        code, _, err = rcalign("predict", "run", "new.npz", "--out", f"{name}.csv", *options)
        assert code == 0, err
        table = list(csv.DictReader((tmp_path / f"{name}.csv").open()))
        accuracy[name] = np.mean([int(row["predicted"]) == c for row, c in zip(table, skewed, strict=True)])
    assert "estimated class shares: 0 " in err
    assert float(err.partition("shares: 0 ")[2].split()[0]) == pytest.approx(90, abs=6)
    assert accuracy["adapted"] > accuracy["plain"] + 0.02


@pytest.mark.parametrize(
    ("command", "given", "suggested"),
    [("train", "--hparam", None), ("train", "--test-domains", "--test-domain"), ("sweep", "--dryrun", "--dry-run")],
)
def test_an_option_is_suggested_only_when_it_is_near(
    rcalign: Run, command: str, given: str, suggested: str | None
) -> None:
    code, _, error = rcalign(command, "nothing", given, "x")
    assert code == 2 and given in error
    named = set(re.findall(r"--[\w-]+", error)) - {given, "--help"}
    assert named == ({suggested} if suggested else set())
