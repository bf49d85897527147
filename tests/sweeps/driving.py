"""What the tests of sweeps give to Ray: training that goes wrong on request, and a driver in a process of its own.

The plans import this module; in a worker of Ray it then puts its own ``train`` before the real one. A file
``wrong.json`` beside the sweep's folder says which run goes wrong and how; ``log.jsonl`` there tells what was
trained, by which process, from which step on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.checkpoints import load_state
from rcalign.data.source import Dataset
from rcalign.store.sweep_folder import SweepFolder
from rcalign.sweeps.plan import DataSummary, PlannedRun, Sweep, expand
from rcalign.sweeps.plan_file import parse_plan
from rcalign.sweeps.resources import Resources
from rcalign.sweeps.run_on_ray import execute
from rcalign.training import job
from rcalign.training.options import TrainOptions

DOMAINS = ("0", "1", "2")
_train = job.run_job


def make_rows(file: Path) -> Path:
    """Three classes in three domains, learnable in a few steps."""
    rng = np.random.default_rng(0)
    y, domain = np.arange(360) % 3, np.arange(360) // 3 % 3
    x = rng.normal(size=(360, 6)) + 0.8 * y[:, None] + 0.3 * domain[:, None]
    np.savez(file, x=x.astype(np.float32), y=y, domain=domain)
    return file


def train(data: Dataset, options: TrainOptions, *, out: Path, resume: bool) -> dict[str, Any]:
    """``job.train`` that leaves a line in the log, and goes wrong where it is told to."""
    beside = out.parents[2]
    state = out / "state.safetensors"
    start = load_state(state)["at"]["step"] if resume and state.exists() else 0
    line = {"id": out.name, "step": start, "pid": os.getpid(), "data": id(data)}
    with (beside / "log.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
    wrong = beside / "wrong.json"
    how = json.loads(wrong.read_text()).get(out.name) if wrong.exists() else None
    if how == "raise":
        raise RuntimeError("the wheel came off\nin the second bend")
    if how == "hang":
        time.sleep(3600)
    if how == "die":
        os.kill(os.getpid(), 9)
    return _train(data, options, out=out, resume=resume)


def log(folder: Path) -> list[dict[str, Any]]:
    """Every start of a run of the sweep in ``folder``."""
    file = folder.parent / "log.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def planned(values: dict[str, Any], base: Path) -> tuple[Sweep, tuple[PlannedRun, ...]]:
    """A sweep on the data ``rows.npz`` in ``base``."""
    plan = {
        "data": "rows.npz",
        "steps": 20,
        "evaluate_every": 10,
        "test_domains": ["0"],
        "imports": ["driving"],
        **values,
    }
    sweep = parse_plan(plan, base=base)
    return sweep, expand(sweep, lambda data: DataSummary(DOMAINS, arrays=True))


def drive(values: dict[str, Any], folder: Path, *, retry_failed: bool = False, **resources: Any) -> str | None:
    """Plans and executes."""
    sweep, runs = planned(values, folder.parent)
    return execute(sweep, runs, SweepFolder(folder), Resources(**resources), retry_failed=retry_failed)


if Path(sys.argv[0]).name == "default_worker.py" or "--join" in sys.argv:  # Ray's, or a task of Slurm's
    job.run_job = train  # type: ignore[assignment]

if __name__ == "__main__":
    print(drive(json.loads(sys.argv[1]), Path(sys.argv[2]), **json.loads(sys.argv[3])))
