"""Measuring along training changes nothing, survives a resume, and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rcalign import api
from rcalign.errors import InputError
from rcalign.training.tracking import read_tracking, stratified_sample


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(480) % 3, np.arange(480) // 120
    x = rng.normal(size=(480, 6)) + 2 * np.eye(6)[y] + 0.8 * domain[:, None] * np.eye(6)[3]
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    return tmp_path / "rows.npz"


def train(rows: Path, out: Path, algorithm: str = "RC-Align", **options: object) -> dict:
    return api.train(rows, algorithm, ["3"], steps=40, evaluate_every=20, hparams={"dropout": 0.1}, out=out, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["RC-Align", "ERM"])
def test_tracking_leaves_the_run_as_it_is(rows: Path, tmp_path: Path, algorithm: str) -> None:
    train(rows, tmp_path / "plain", algorithm)
    train(rows, tmp_path / "tracked", algorithm, track_bound=5)
    for name in ("last.safetensors", "records.jsonl"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "tracked" / name).read_bytes()
    found = read_tracking(tmp_path / "tracked" / "tracking.jsonl")
    assert [row["step"] for row in found] == list(range(5, 41, 5))
    assert {row["target"] for row in found} == {"3"}
    assert all(-1 <= row["gap"] <= 1 and row["alignment"] > 0 for row in found)
    assert any(row["after"] < row["before"] for row in found)


def test_the_last_gap_is_the_errors_difference(rows: Path, tmp_path: Path) -> None:
    train(rows, tmp_path / "run", "ERM", track_bound=20)
    record = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[-1])
    errors = [1 - record["metrics"]["accuracy"][name]["val"] for name in ("0", "1", "2")]
    target = 1 - record["metrics"]["accuracy"]["3"]["test"]
    assert read_tracking(tmp_path / "run" / "tracking.jsonl")[-1]["gap"] == pytest.approx(target - np.mean(errors))


def test_a_diagnosis_of_a_run_has_all_its_parts(rows: Path, tmp_path: Path) -> None:
    train(rows, tmp_path / "run", track_bound=5)
    told = api.diagnose(tmp_path / "run")
    assert told.tracking is not None and told.contraction is not None
    assert told.tracking.everything.n == 8
    for one in told.held_out:
        assert abs(one.gap - one.prior_part - one.feature_part - one.unsupported_part) < 1e-9
        assert one.risk <= one.bound
    assert told.target is not None and told.target.name == "3"


def test_a_diagnosis_takes_other_data_and_unlabelled_targets(rows: Path, tmp_path: Path) -> None:
    train(rows, tmp_path / "run", "ERM")
    np.savez(tmp_path / "new.npz", x=np.load(rows)["x"][:90] + 0.2)
    told = api.diagnose(tmp_path / "run", target=tmp_path / "new.npz")
    assert told.target is not None and told.target.name == "new" and told.target.priors is not None
    assert len(api.diagnose(tmp_path / "run", rows).held_out) == 4
    with pytest.raises(InputError, match="nowhere"):
        api.diagnose(tmp_path / "run", target="nowhere")


def test_a_head_that_reads_more_than_features_is_diagnosed_by_its_logits(rows: Path, tmp_path: Path) -> None:
    train(rows, tmp_path / "run", "MTL")
    assert all(one.risk <= one.bound for one in api.diagnose(tmp_path / "run").held_out)


@pytest.mark.parametrize("classes", [2, 7, 30])
@pytest.mark.parametrize("size", [24, 200])
def test_a_sample_has_every_class_in_its_share(classes: int, size: int) -> None:
    """However the rows are sorted: a folder lists one class after the other."""
    rng = np.random.default_rng(classes)
    y = np.sort(rng.choice(classes, 1000, p=rng.dirichlet(np.ones(classes))))
    rows = 7 + 3 * np.arange(1000)
    found = stratified_sample(rows, y, size)
    assert len(np.unique(found)) == size and set(found) <= set(rows)
    assert np.array_equal(found, stratified_sample(rows, y, size))
    shares = np.bincount(y, minlength=classes) * size / 1000
    sampled = np.bincount(y[(found - 7) // 3], minlength=classes)
    assert (np.abs(sampled - shares) < 1).all()
    order = rng.permutation(1000)
    again = np.bincount(y[(stratified_sample(rows[order], y[order], size) - 7) // 3], minlength=classes)
    np.testing.assert_array_equal(again, sampled)


def test_class_sorted_data_are_measured_on_all_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap of a sample is near that of all rows, and the support holds more than one class."""
    rng = np.random.default_rng(0)
    y, domain = np.repeat(np.tile(np.arange(3), 4), 200), np.repeat(np.arange(4), 600)
    x = rng.normal(size=(2400, 4)) + 2.0 * np.eye(4)[y]
    x[(domain == 3) & (y == 2)] -= 2.0 * np.eye(4)[2]  # the last class looks different in the unseen domain
    np.savez(tmp_path / "sorted.npz", x=x, y=y, domain=domain)
    gaps = {}
    for name, most in (("all", 5000), ("sample", 200)):
        monkeypatch.setattr("rcalign.training.tracking.MOST_ROWS", most)
        api.train(tmp_path / "sorted.npz", "ERM", ["3"], steps=60, out=tmp_path / name, track_bound=20)
        found = read_tracking(tmp_path / name / "tracking.jsonl")
        assert all(row["alignment_after"] > 0.1 for row in found)  # zero where the support has one class
        gaps[name] = np.array([row["gap"] for row in found])
    assert np.abs(gaps["all"] - gaps["sample"]).max() < 0.05
    record = json.loads((tmp_path / "all" / "records.jsonl").read_text().splitlines()[-1])
    errors = [1 - record["metrics"]["accuracy"][name]["val"] for name in ("0", "1", "2")]
    assert gaps["all"][-1] == pytest.approx(1 - record["metrics"]["accuracy"]["3"]["test"] - np.mean(errors))
