"""What to expect on the next domain: every domain held out in turn, an interval, the worst."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rcalign import api, cli
from rcalign.errors import InputError
from rcalign.evaluation.metrics import next_value_interval


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Four domains: three alike, and one whose second class looks like the first."""
    rng = np.random.default_rng(0)
    y, domain = np.arange(400) % 2, np.arange(400) // 100
    x = rng.normal(size=(400, 3))
    x[:, 0] += np.where(domain == 3, 0.0, 4 * y)
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=np.array(["a", "b", "c", "odd one"])[domain])
    return tmp_path / "rows.npz"


def test_each_domain_is_tested_when_it_was_not_trained_on(rows: Path, tmp_path: Path) -> None:
    result = api.leave_one_out(rows, "erm", steps=40, out=tmp_path / "runs")
    assert list(result["accuracy"]) == ["a", "b", "c", "odd one"]
    assert min(result["accuracy"][name] for name in "abc") > 0.85 and result["accuracy"]["odd one"] < 0.7
    assert result["worst_domain"] == "odd one" and result["worst"] == result["accuracy"]["odd one"]
    low, high = result["interval"]
    assert 0 <= low < result["worst"] < result["average"] < high <= 1
    folders = sorted((tmp_path / "runs").iterdir())
    held_out = [json.loads((folder / "config.json").read_text())["test_domains"] for folder in folders]
    assert held_out == [["a"], ["b"], ["c"], ["odd one"]]
    alone = api.train(rows, "ERM", ["b"], steps=40, out=tmp_path / "alone")
    assert alone["average"] == result["accuracy"]["b"]


def test_an_interrupted_evaluation_goes_on(rows: Path, tmp_path: Path) -> None:
    first = api.leave_one_out(rows, "ERM", steps=4, out=tmp_path / "runs")
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*/result.json")}
    (tmp_path / "runs" / "1-b-seed0" / "result.json").unlink()
    again = api.leave_one_out(rows, "ERM", steps=4, out=tmp_path / "runs")
    assert again["accuracy"] == first["accuracy"]
    changed = [file.parent.name for file, time in times.items() if file.stat().st_mtime_ns != time]
    assert changed == ["1-b-seed0"]


@pytest.mark.slow
def test_folds_at_once_give_what_one_after_the_other_gives(
    rows: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = api.leave_one_out(rows, "ERM", steps=8, out=tmp_path / "alone", progress=True)
    said = capfd.readouterr().err
    assert "Fold 1 of 4: 'a' held out, seed 0." in said
    assert re.search(r"Fold 3 of 4: 'c' held out, seed 0, about .* left\.", said)
    together = api.leave_one_out(rows, "ERM", steps=8, out=tmp_path / "together", folds_at_once=2, progress=True)
    said = capfd.readouterr().err
    assert "Training 4 folds, 2 at a time." in said and "4 of 4 folds done" in said
    assert together["accuracy"] == alone["accuracy"]
    with pytest.raises(InputError, match="must be at least 1"):
        api.leave_one_out(rows, "ERM", steps=8, out=tmp_path / "none", folds_at_once=0)


def test_more_seeds_are_averaged_within_a_domain(rows: Path, tmp_path: Path) -> None:
    result = api.leave_one_out(rows, "ERM", steps=4, seeds=2, out=tmp_path / "runs")
    values = [
        json.loads((tmp_path / "runs" / f"0-a-seed{seed}" / "result.json").read_text())["average"] for seed in (0, 1)
    ]
    assert result["accuracy"]["a"] == pytest.approx(np.mean(values))
    assert result["interval"] == list(next_value_interval(list(result["accuracy"].values())))


def test_the_interval_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(2000):
        *known, new = rng.normal(0.7, 0.05, size=5)
        low, high = next_value_interval(known, 0.8)
        inside.append(low <= new <= high)
    assert stats.binomtest(sum(inside), 2000, 0.8).pvalue > 0.01
    assert next_value_interval([0.4]) == (0.0, 1.0)
    with pytest.raises(InputError, match="level"):
        next_value_interval([0.4, 0.5], 1.0)


def test_the_command(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rcalign", "evaluate", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    out = str(tmp_path / "runs")
    options = ["--algorithm", "erm", "--leave-one-out", "--steps", "20", "--set", "batch_size=16", "--out", out]
    code, text, _ = run(str(rows), *options)
    assert code == 0 and "Expect" in text and "odd one" in text and "Worst so far" in text
    code, text, _ = run(str(rows), *options, "--json")
    assert code == 0 and json.loads(text)["seeds"] == 1
    code, _, error = run(str(tmp_path / "runs" / "0-a-seed0"), "--steps", "3")
    assert code == 2 and "--steps is for training" in error
    code, text, _ = run(str(tmp_path / "runs" / "0-a-seed0"))
    assert code == 0 and "macro F1" in text
    code, _, error = run(str(rows), "other.npz", "--leave-one-out")
    assert code == 2 and "one argument too many" in error


def test_one_domain_is_not_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2, domain=np.zeros(20, int))
    with pytest.raises(InputError, match="has one domain"):
        api.leave_one_out(tmp_path / "rows.npz")
