"""Predictions of a trained model for any number of files: in order, streamed, the unsure ones as "unknown"."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.diagnosis.priors import adapt_priors
from rcalign.diagnosis.target_priors import target_priors
from rcalign.errors import InputError
from rcalign.evaluation.metrics import softmax
from rcalign.files import open_whole
from rcalign.training.run_data import LabelledOutputs, joined, untrained_features_of
from rcalign.training.trained import TrainedModel
from rcalign.training.unlabelled import NamedSamples, UnlabelledSamples

UNKNOWN = "unknown"
NOT_ADAPTED = "The probabilities were not adapted to the class shares of these files"
ABOUT = ("path", "predicted", "confidence", "problem")  # the columns before those of the classes
MOST_FEATURES = 2000  # rows whose features are kept to check whether only the class shares changed


PredictedBatch = tuple[NamedSamples, list[np.ndarray | None]]  # (path, problem) and probabilities (C,) of each


class Predictions:
    """An iterator over one row for each image file (or for each row of an ``.npz`` or of a table).

    paths: as of ``training.unlabelled.UnlabelledSamples``. A row: ``path``, ``predicted``, ``confidence`` (the
    probability of the likeliest class), ``problem`` and the probability of each class, all calibrated. A file that is
    no image gets a row with its ``problem`` and nothing else. threshold: a row less confident than that is predicted
    "unknown". ``total`` is the number of files, ``seen`` how many were read, and ``skipped`` fills with
    (path, problem). sets: gives for probabilities (n, C) which classes are in each row's set, (n, C) bool; they stand
    in a column ``set``.

    adapt_priors: all rows are read first, the class shares among them are estimated by EM (``priors``, by class name),
    and the probabilities are corrected from the shares of the training data to those. That is right where only the
    frequencies of classes differ from training, not their looks: so it is done only where ``sources`` are given and the
    estimate withstands the checks of ``PriorEstimates.doubt``. Otherwise the probabilities stay as they are, and
    ``notes`` say so; ``adapted`` says which it was.
    """

    def __init__(
        self,
        model: TrainedModel,
        paths: Sequence[str | os.PathLike[str]],
        *,
        threshold: float | None = None,
        adapt_priors: bool = False,
        sources: LabelledOutputs | None = None,
        sets: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        if threshold is not None and not 0 < threshold <= 1:
            raise InputError(f"the threshold is {threshold:g}, but a probability above 0 and up to 1 is expected.")
        self.threshold = threshold
        self._sets = sets
        self.adapt_priors = adapt_priors
        self.adapted = False
        self._sources = sources
        self.priors: dict[str, float] | None = None
        self._model = model
        self._samples = UnlabelledSamples(model, paths)
        self.total = self._samples.total
        self.skipped = self._samples.skipped
        self._classes = model.config.spec.classes
        # a class may be called like one of our own columns
        about = ABOUT if sets is None else (*ABOUT, "set")
        self.columns = [*about, *(f"{name} (class)" if name in about else name for name in self._classes)]
        self._unknown = UNKNOWN if UNKNOWN not in self._classes else f"({UNKNOWN})"
        self.notes = [*model.notes, *self._samples.notes]  # of the model, and what is odd about a table

    @property
    def seen(self) -> int:
        """How many samples were read."""
        return self._samples.seen

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._probabilities()
        for names, rows in self._adapt(batches) if self.adapt_priors else batches:
            for name, probabilities in zip(names, rows, strict=True):
                yield self._row(name, probabilities)
        if self.skipped and len(self.skipped) == self.total:
            path, why = self.skipped[0]
            raise InputError(f"none of the {self.total} files is a whole image ('{path}': {why}): give image files.")

    def _probabilities(self) -> Iterator[PredictedBatch]:
        """Names and calibrated probabilities (n, C), a batch at a time."""
        every = self.total // MOST_FEATURES + 1
        self._features: list[np.ndarray] = []
        self._untrained: list[np.ndarray | None] = []
        for names, x in self._samples:
            table = self._model.probabilities(x) if x is not None else np.zeros((0, len(self._classes)))
            if self.adapt_priors and x is not None:
                some = x[::every]
                self._features.append(self._model.features(some).double().cpu().numpy())
                self._untrained.append(untrained_features_of(self._model, some))
            found = iter(table)
            yield names, [None if problem is not None else next(found) for _, problem in names]

    def _adapt(self, batches: Iterator[PredictedBatch]) -> Iterator[PredictedBatch]:
        """All rows, with probabilities for the class shares among them, if those can be trusted."""
        found = list(batches)
        names = [name for some, _ in found for name in some]
        rows = [row for _, some in found for row in some]
        table = np.array([row for row in rows if row is not None])
        if not len(table):
            yield names, rows
            return
        if self._sources is None:
            self.notes.append(f"{NOT_ADAPTED}: there are no validation rows of the sources to check the estimate with.")
            yield names, rows
            return
        logits = np.log(table.astype(np.float64).clip(1e-12))
        training = self._model.training_priors
        estimates = target_priors(
            self._model, self._sources, logits, np.concatenate(self._features), joined(self._untrained)
        )
        shares = np.array([one.value for one in estimates.em])
        self.priors = dict(zip(self._classes, (round(float(share), 6) for share in shares), strict=True))
        if estimates.doubt is not None:
            self.notes.append(f"{NOT_ADAPTED}: {estimates.doubt}. See 'rcalign diagnose --target'.")
            yield names, rows
            return
        if not estimates.differ:
            self.notes.append(f"{NOT_ADAPTED}: they are those in training, as far as can be told.")
            yield names, rows
            return
        self.adapted = True
        corrected = iter(softmax(adapt_priors(logits, training, shares / shares.sum())))
        yield names, [None if row is None else next(corrected) for row in rows]

    def _row(self, name: tuple[str, str | None], probabilities: np.ndarray | None) -> dict[str, Any]:
        path, problem = name
        if probabilities is None:
            return dict.fromkeys(self.columns) | {"path": path, "problem": problem}
        best = int(probabilities.argmax())
        confidence = float(probabilities[best])
        unsure = self.threshold is not None and confidence < self.threshold
        values: list[Any] = [path, self._unknown if unsure else self._classes[best], round(confidence, 6), None]
        if self._sets is not None:
            inside = self._sets(probabilities[None])[0]
            values.append(" | ".join(label for label, has in zip(self._classes, inside, strict=True) if has))
        return dict(zip(self.columns, [*values, *(round(float(p), 6) for p in probabilities)], strict=True))


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> int:
    """Writes rows as they come, and returns how many; the file appears when the last one is written."""
    count = 0
    with open_whole(path) as file:
        # names of files are bytes to the system: those that are no UTF-8 come back as they were
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="", write_through=True)
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            count += 1
        text.detach()
    return count
