"""A run that a time limit ends is a whole run of fewer steps, and goes on to the bits of one that was not ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign.data import loading
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunFolder
from rcalign.training.job import prepare_run
from rcalign.training.options import TrainOptions
from rcalign.training.run import complete
from rcalign.training.time_limit import TimeLimit

STEPS, CUT = 12, 7
NEVER = 1e9


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = rng.integers(3, size=120), np.arange(120) % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(120, 5)) + np.eye(5)[y], y=y, domain=domain)
    return tmp_path / "rows.npz"


def train(rows: Path, out: Path, limit: TimeLimit | None, steps: int = STEPS, **options: Any) -> RunResult:
    average_from = options.pop("average_from", None)
    options = {"algorithm": "ERM", "evaluate_every": STEPS, "test_domains": ("2",), **options}
    job = prepare_run(TrainOptions(steps=steps, **options), loading.load(str(rows)))
    folder = RunFolder(out)
    resume = folder.config_file.exists()
    found = complete(
        job.task, job.config, folder, job.hparams, resume=resume, average_from=average_from, time_limit=limit
    )
    return found[1]


def over() -> TimeLimit:
    """Time that was over before the first step: only the fewest steps are made."""
    return TimeLimit(time.monotonic() - 1, fewest=CUT)


CASES = [
    pytest.param({}, id="no evaluation before"),
    pytest.param({"evaluate_every": 3}, id="evaluations before"),
    pytest.param({"evaluate_every": CUT}, id="ended at an evaluation"),
    pytest.param({"average_from": 4}, id="averaged"),
    pytest.param({"average_from": 9}, id="ended before averaging begins"),
    pytest.param({"schedule": "cosine", "schedule_warm_up": 2}, id="schedule"),
    pytest.param({"average": "swad", "evaluate_every": 1}, id="swad"),
]


@pytest.mark.parametrize("options", CASES)
def test_a_run_that_was_ended_goes_on_to_the_same_bits(rows: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    straight = train(rows, tmp_path / "straight", None, **options)
    cut = train(rows, tmp_path / "cut", over(), **options)
    assert straight.steps == STEPS and cut.steps == CUT and cut.best_step <= CUT
    again = train(rows, tmp_path / "cut", over(), **options)
    assert again == cut, "without time nothing changes"
    last = train(rows, tmp_path / "cut", TimeLimit(NEVER + time.monotonic()), **options)
    for name in ("best.safetensors", "last.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name
    assert (last.steps, last.best_step, last.weights) == (straight.steps, straight.best_step, straight.weights)
    assert not (tmp_path / "cut" / "state.safetensors").exists()


def test_what_is_ended_is_a_run_of_fewer_steps(rows: Path, tmp_path: Path) -> None:
    """Also averaged: from the same step on, over the steps that were made."""
    for k, average_from in enumerate((None, 4)):
        short = train(rows, tmp_path / f"short{k}", None, steps=CUT, average_from=average_from)
        cut = train(rows, tmp_path / f"cut{k}", over(), average_from=average_from)
        same = [(tmp_path / f"{name}{k}" / "best.safetensors").read_bytes() for name in ("short", "cut")]
        assert same[0] == same[1] and cut.accuracy == short.accuracy
        assert RunFolder(tmp_path / f"cut{k}").records()[-1].accuracy == cut.metrics["accuracy"]


def test_both_stages_of_a_method_end_in_time(rows: Path, tmp_path: Path) -> None:
    found = train(rows, tmp_path / "cut", over(), algorithm="CRT")
    first = RunFolder(tmp_path / "cut" / "stage-1").result()
    assert first is not None and (first.steps, found.steps) == (CUT, CUT)


def test_a_limit_that_is_never_reached_changes_nothing(rows: Path, tmp_path: Path) -> None:
    train(rows, tmp_path / "a", None, evaluate_every=4)
    train(rows, tmp_path / "b", TimeLimit(NEVER + time.monotonic()), evaluate_every=4)
    for name in ("best.safetensors", "last.safetensors", "records.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
