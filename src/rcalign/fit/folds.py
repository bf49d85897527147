"""One fold: a method trained without one domain, and what it says about that domain. Resumable, kept in a folder."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcalign.data import loading
from rcalign.data.source import Dataset
from rcalign.data.splits import Splits
from rcalign.data.splits import split as make_splits
from rcalign.errors import DivergedError, InputError
from rcalign.evaluation.evaluate import logits_of
from rcalign.extensions import import_modules
from rcalign.files import write_whole
from rcalign.fit.boosting import fit_trees
from rcalign.fit.portfolio import Candidate
from rcalign.store.names import file_name
from rcalign.store.run_folder import RunFolder
from rcalign.training.callbacks import Callback
from rcalign.training.job import Job, located, prepare_run
from rcalign.training.loop import Interrupted
from rcalign.training.options import TrainOptions
from rcalign.training.run import complete
from rcalign.training.run_data import LEFT_OUT_FILE
from rcalign.training.trained import load_trained

LEFT_OUT = "left-out.npz"
EVALUATIONS = 12  # of a fold: enough for a valley of the validation loss to begin and end


@dataclass(frozen=True)
class Fold:
    """What a fold is: everything that decides its result, and its folder."""

    candidate: Candidate
    domain: str
    steps: int
    folder: str
    seed: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further options of training
    evaluations: int = EVALUATIONS

    @property
    def options(self) -> TrainOptions:
        """The options of its training run."""
        return TrainOptions(
            algorithm=self.candidate.algorithm,
            test_domains=(self.domain,),
            average=self.candidate.average,
            hparams=self.candidate.hparams,
            steps=self.steps,
            evaluate_every=evaluate_every(self.steps, self.evaluations),
            seed=self.seed,
            freeze_backbone=self.candidate.frozen,
            **self.settings,
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a fold. end: "finished", "interrupted" or "failed" (``error`` says why)."""

    end: str
    accuracy: float = 0.0
    balanced: float = 0.0
    seconds: float = 0.0
    error: str = ""


def evaluate_every(steps: int, evaluations: int = EVALUATIONS) -> int:
    return max(1, steps // evaluations)


def folder_of(root: Path, candidate: Candidate, domain: str, position: int, steps: int) -> str:
    """Where a fold is kept."""
    kind = "" if not candidate.network else f"-{steps}-steps"
    frozen = "-frozen" if candidate.frozen else ""
    return str(root / "folds" / f"{file_name(candidate.name)}{frozen}{kind}" / f"{position}-{file_name(domain)}")


@functools.lru_cache(maxsize=1)
def load_once(data: str, skip_bad: bool) -> Dataset:
    """The data set of a fold, loaded once in a process."""
    return loading.load(data, skip_bad=skip_bad)


def run_fold(data: str | Dataset, fold: Fold, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains a fold, goes on with it, or finds it finished. What went wrong is returned, not raised.

    callbacks: follow the training of a network.
    """
    begun = time.monotonic()
    try:
        known = read_outcome(fold)
        if known is not None:
            return known
        dataset = load_once(data, bool(fold.settings.get("skip_bad"))) if isinstance(data, str) else data
        if fold.candidate.network:
            logits, rows = _network(data, dataset, fold, callbacks)
        else:
            logits, rows = _boosting(dataset, fold)
    except (Interrupted, KeyboardInterrupt):
        return Outcome("interrupted")
    except (InputError, DivergedError) as error:
        return Outcome("failed", error=str(error))
    y = dataset.y[rows]
    right = logits.argmax(1) == y
    outcome = Outcome(
        "finished",
        accuracy=float(right.mean()),
        balanced=float(np.mean([right[y == c].mean() for c in np.unique(y)])),
        seconds=time.monotonic() - begun,
    )
    buffer = io.BytesIO()
    np.savez(buffer, logits=logits.astype(np.float32), y=y, rows=rows)
    Path(fold.folder).mkdir(parents=True, exist_ok=True)
    write_whole(Path(fold.folder) / LEFT_OUT, buffer.getvalue())
    write_whole(Path(fold.folder) / "outcome.json", json.dumps(dataclasses.asdict(outcome)).encode())
    return outcome


def read_outcome(fold: Fold) -> Outcome | None:
    """The outcome of a fold that was finished before."""
    file = Path(fold.folder) / "outcome.json"
    if not file.exists() or not (Path(fold.folder) / LEFT_OUT).exists():
        return None
    try:
        return Outcome(**json.loads(file.read_text()))
    except (ValueError, TypeError):
        return None


def left_out(fold: Fold) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, C) and labels (n,) of the domain that a finished fold left out."""
    with np.load(Path(fold.folder) / LEFT_OUT, allow_pickle=False) as found:
        return found["logits"].astype(np.float64), found["y"]


def keep_left_out(folds: Sequence[Fold], model: Path) -> None:
    """Writes what finished folds say of the domain that each left out beside the final model, for its diagnosis."""
    pieces = []
    for fold in folds:
        with np.load(Path(fold.folder) / LEFT_OUT, allow_pickle=False) as found:
            pieces.append((found["rows"], found["logits"]))
    rows, logits = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1))
    buffer = io.BytesIO()
    np.savez(buffer, rows=rows, logits=logits)
    write_whole(model / LEFT_OUT_FILE, buffer.getvalue())


def rows_left_out(dataset: Dataset, domain: str, seed: int) -> np.ndarray:
    """All rows of a domain; with groups (patients) only those of which no row was trained on in another domain."""
    if dataset.group is None:
        return np.flatnonzero(dataset.domain == dataset.domains.index(domain))
    alone = np.flatnonzero(dataset.domain == dataset.domains.index(domain))
    elsewhere = dataset.group[dataset.domain != dataset.domains.index(domain)]
    free = alone[~np.isin(dataset.group[alone], elsewhere)]
    return free if len(free) == len(alone) else make_splits(dataset, "lodo", [domain], seed).test[domain]


def prepare_fold(dataset: Dataset, fold: Fold, data: str | None = None) -> Job:
    """What the training run of a fold needs. The domain left out is predicted once, at the end, not while it trains."""
    import_modules(fold.options.imports)
    splits = make_splits(dataset, "lodo", [fold.domain], fold.seed)
    val = {name: rows for name, rows in splits.val.items() if name in splits.train}
    return prepare_run(fold.options, dataset, data=data, splits=Splits(splits.train, val, {}))


def _network(
    data: str | Dataset, dataset: Dataset, fold: Fold, callbacks: Sequence[Callback]
) -> tuple[np.ndarray, np.ndarray]:
    folder = RunFolder(fold.folder)
    if folder.path.exists() and not folder.config_file.exists():  # a kill before anything was trained
        for item in folder.path.iterdir():
            item.unlink()
    job = prepare_fold(dataset, fold, None if isinstance(data, Dataset) else located(data))
    complete(job.task, job.config, folder, job.hparams, resume=folder.config_file.exists(), callbacks=callbacks)
    model = load_trained(folder.path, torch.device("cpu"))
    rows = rows_left_out(dataset, fold.domain, fold.seed)
    if model.frozen is None:
        logits = logits_of(model.logits, model.inputs(dataset, rows), len(dataset.classes))
    else:  # the features of all images are in the cache
        features = (x.cpu() for x in job.task.inputs.batches(rows))
        logits = logits_of(model.algorithm.predict, features, len(dataset.classes))
    for spent in (folder.state_file, folder.last_file):
        spent.unlink(missing_ok=True)
    return logits, rows


def _boosting(dataset: Dataset, fold: Fold) -> tuple[np.ndarray, np.ndarray]:
    """Gradient boosting on the same rows as a network: logits, and which rows."""
    splits = make_splits(dataset, "lodo", [fold.domain], fold.seed)
    seen = np.concatenate([*splits.train.values(), *(splits.val[name] for name in splits.train if name in splits.val)])
    found = fit_trees(dataset, seen, fold.seed)
    rows = rows_left_out(dataset, fold.domain, fold.seed)
    return found.trees.predict(torch.from_numpy(found.x[rows])).numpy(), rows
