"""A new site before any label: a folder of images, a list, or rows, in plain words and as a page."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rcalign import api
from rcalign.diagnosis import Diagnosis, render_html
from rcalign.diagnosis.advice import answers
from rcalign.errors import InputError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def site(pictures: Path, tmp_path: Path) -> Path:
    """Pictures of one of the cameras without their labels, an odd one, and one that is none."""
    folder = tmp_path / "new site"
    folder.mkdir()
    for k, path in enumerate(sorted((pictures / "camera a").rglob("*.png"))):
        Image.open(path).save(folder / f"{k:02d}.png")
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    (folder / "broken.png").write_text("no image")
    return folder


def check(told: Diagnosis, samples: int) -> None:
    target = told.target
    assert target is not None and target.samples == samples and not target.labelled
    assert target.verdict in ("inside", "near", "outside")
    assert target.priors is not None and target.expected is not None
    low, high = target.expected.interval or (0.0, 1.0)
    assert 0 <= low <= target.expected.accuracy <= high <= 1
    assert sum(target.mixture.weights) == pytest.approx(1)
    assert [one.question.split()[0] for one in answers(told)] == ["Does", "How", "How", "Which", "What"]


def test_a_folder_of_images(image_run: Path, site: Path, rcalign: Run, tmp_path: Path) -> None:
    told = api.diagnose(image_run, target=site)
    check(told, 17)
    assert told.target is not None and told.target.name == "new site"
    assert any("broken.png" in note for note in told.notes)
    assert told.target.unusual[0].name.endswith("noise.png")
    assert all(one.image is not None and one.image.startswith("data:image/jpeg") for one in told.target.unusual)
    assert told.target.expected is not None and told.target.expected.domains  # judged by 'camera a', not trained on
    page = render_html(told)
    assert len(page.encode()) < 1_500_000
    assert page.index("In plain words") < page.index('<details class="theory">') < page.index("Theorem 1")
    assert re.findall(r'<img src="(data:image/jpeg;base64,[^"]+)"', page) == [o.image for o in told.target.unusual]
    code, _, err = rcalign("diagnose", image_run, "--target", site, "--out", "site.html")
    assert code == 0 and (tmp_path / "site.html").stat().st_size < 1_500_000, err


def test_a_list_of_images_is_the_folder_of_them(image_run: Path, site: Path) -> None:
    with (site / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path"])
        writer.writerows([[path.name] for path in sorted(site.glob("*.png"))])
    listed, folder = (api.diagnose(image_run, target=target) for target in (site / "list.csv", site))
    assert listed.target is not None and folder.target is not None
    assert listed.target.left == folder.target.left and listed.target.priors == folder.target.priors


def test_rows_without_labels(rows_run: Path, tmp_path: Path, rcalign: Run) -> None:
    x = np.load(rows_run.parent / "rows.npz")["x"]
    np.savez(tmp_path / "same.npz", x=x[::2])
    np.savez(tmp_path / "far.npz", x=x[::2] + np.array([0, 0, 0, 30.0, 30.0]))
    same, far = (api.diagnose(rows_run, target=tmp_path / f"{name}.npz") for name in ("same", "far"))
    check(same, 120)
    check(far, 120)
    assert same.target is not None and far.target is not None
    assert same.target.verdict == "inside" and far.target.verdict == "outside"
    assert all(one.image is None for one in far.target.unusual) and len(far.target.unusual) == 20
    assert far.target.expected is not None and far.target.expected.domains == ("2",)  # the others were trained on
    code, out, _ = rcalign("diagnose", rows_run, "--target", tmp_path / "far.npz")
    assert code == 0 and "Does it look like what the model knows? No." in out
    assert "not trained on it" in out and "held out" not in out.split("Target:")[0]
    code, out, _ = rcalign("diagnose", rows_run, "--target", tmp_path / "far.npz", "--format", "json")
    assert json.loads(out)["trained"] == ["0", "1"]


def test_without_a_domain_kept_out_no_interval_is_promised(rows_run: Path, tmp_path: Path) -> None:
    file = rows_run.parent / "rows.npz"
    api.train(file, "ERM", protocol="mdlt", steps=30, out=tmp_path / "run")
    np.savez(tmp_path / "far.npz", x=np.load(file)["x"][:60] + 9)
    told = api.diagnose(tmp_path / "run", target=tmp_path / "far.npz")
    assert told.target is not None and told.target.expected is not None
    assert told.target.expected.interval is None and "was never seen" in answers(told)[1].detail


def test_what_was_measured_outweighs_the_place(tmp_path: Path) -> None:
    """Features that look like home and labels that do not: no fair guide, whatever the distance says."""
    rng = np.random.default_rng(0)
    y, domain = rng.integers(0, 2, 600), np.repeat(np.arange(3), 200)
    x = rng.normal(size=(600, 4)) + 2.5 * np.eye(4)[y]
    y[domain == 2] = np.where(rng.random(200) < 0.45, 1 - y[domain == 2], y[domain == 2])
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    api.train(tmp_path / "rows.npz", "ERM", ["2"], steps=80, out=tmp_path / "run")
    told = api.diagnose(tmp_path / "run")
    assert told.target is not None and told.target.verdict in ("inside", "near")
    assert "the model does much worse there" in told.advice[0].title and "no guide" in told.advice[0].text
    assert answers(told)[1].kind == "bad" and "fair guide" not in render_html(told)


def test_a_target_that_is_nothing(rows_run: Path, image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for run, target, said in (
        (rows_run, "nowhere", "unknown domain 'nowhere'"),
        (rows_run, tmp_path / "gone.npz", "there is no file or folder"),
        (image_run, tmp_path / "empty", "holds no images"),
    ):
        with pytest.raises(InputError, match=said):
            api.diagnose(run, target=target)
