"""One run for each domain held out: where it is, how long it will take, and several at once where that saves time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.data.source import Arrays, Dataset
from rcalign.errors import InputError
from rcalign.store.run_folder import RunFolder
from rcalign.sweeps.progress import duration
from rcalign.training import job
from rcalign.training.options import TrainOptions

WORTH = 60.0  # seconds of work left from which on starting processes for it saves time


@dataclass(frozen=True)
class HeldOutFold:
    """A run: its options, with one test domain, and its folder."""

    options: TrainOptions
    folder: Path

    @property
    def name(self) -> str:
        """The fold in words, for a line of progress.

        >>> HeldOutFold(TrainOptions(algorithm="erm", test_domains=("shop 1",), seed=2), Path("a")).name
        "'shop 1' held out, seed 2"
        """
        return f"'{self.options.test_domains[0]}' held out, seed {self.options.seed}"


def train_folds(
    data: str | Path | Dataset,
    dataset: Dataset,
    folds: Sequence[HeldOutFold],
    *,
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """The result of every fold, trained, gone on with or found finished.

    data: as it was given; dataset: loaded. at_once: folds that are trained at a time in processes of their own; None:
    one for each core where the data are rows of a file and the first fold says that this saves time, else 1. say: gets
    a line before each fold.
    """
    if at_once is not None and at_once < 1:
        raise InputError(f"`folds_at_once` is {at_once}, but must be at least 1.")
    results: list[dict[str, Any]] = []
    spent: list[float] = []
    for position, fold in enumerate(folds):
        todo = [other for other in folds[position:] if RunFolder(other.folder).result() is None]
        left = sum(spent) / len(spent) * len(todo) if spent else None
        several = _at_once(data, dataset, at_once, left)
        if several > 1 and len(todo) > 1 and not isinstance(data, Dataset):
            _train_together(data, todo, several, say)
            todo = []
        if fold in todo:
            when = "" if left is None else f", about {duration(left)} left"
            say(f"Fold {position + 1} of {len(folds)}: {fold.name}{when}.")
        begun = time.monotonic()
        results.append(job.run_job(data, fold.options, out=fold.folder, resume=True, progress=progress))
        if fold in todo:
            spent.append(time.monotonic() - begun)
    return results


def _at_once(data: str | Path | Dataset, dataset: Dataset, asked: int | None, left: float | None) -> int:
    if isinstance(data, Dataset) or not isinstance(dataset.content, Arrays):  # processes find data by their name
        return 1
    if asked is not None:
        return asked
    return len(os.sched_getaffinity(0)) if left is not None and left > WORTH else 1


def _train_together(data: str | Path, folds: Sequence[HeldOutFold], at_once: int, say: Callable[[str], None]) -> None:
    """Trains folds in other processes. One that fails there fails again in this one, which then says why."""
    from rcalign.sweeps.run_on_ray import run_tasks

    begun = time.monotonic()
    done = 0

    def ended(position: int, outcome: Any) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - begun) / done * (len(folds) - done)
        say(f"{folds[position].name}: {done} of {len(folds)} folds done, about {duration(left)} left.")

    say(f"Training {len(folds)} folds, {at_once} at a time.")
    tasks = [(job.located(data), fold) for fold in folds]
    run_tasks(_train_fold, tasks, min(at_once, len(folds)), ended, lambda: False)


def _train_fold(data: str, fold: HeldOutFold) -> None:
    job.run_job(data, fold.options, out=fold.folder, resume=True)
