"""Predictions of a trained model for any number of files: in order, streamed, the unsure ones as "unknown"."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcalign.data.sources import arrays, table
from rcalign.data.stream import decoded_batches, find_images
from rcalign.diagnosis.priors import adapt_priors, em_priors
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH
from rcalign.evaluation.metrics import softmax
from rcalign.files import open_whole
from rcalign.training.trained import TrainedModel

UNKNOWN = "unknown"
ABOUT = ("path", "predicted", "confidence")  # the columns before those of the classes


class Predictions:
    """An iterator over one row for each file that is an image (or for each row of an ``.npz``).

    A row: ``path``, ``predicted``, ``confidence`` (the probability of the likeliest class) and the probability of each
    class, all calibrated. threshold: a row less confident than that is predicted "unknown". ``total`` is the number of
    files, ``seen`` how many were read, and ``skipped`` fills with (path, why) of those that are no images.

    adapt_priors: all rows are read first, the class shares among them are estimated by EM (``priors``, by class name),
    and the probabilities are corrected from the shares of the training data to those: right where only the frequencies
    of classes differ from training, not their looks.
    """

    def __init__(
        self,
        model: TrainedModel,
        paths: Sequence[str | os.PathLike[str]],
        *,
        threshold: float | None = None,
        adapt_priors: bool = False,
    ) -> None:
        if threshold is not None and not 0 < threshold <= 1:
            raise InputError(f"the threshold is {threshold:g}, but a probability above 0 and up to 1 is expected.")
        self.threshold = threshold
        self.adapt_priors = adapt_priors
        self.priors: dict[str, float] | None = None
        self.skipped: list[tuple[str, str]] = []
        self.seen = 0
        self._model = model
        self._classes = model.config.spec.classes
        # a class may be called like one of our own columns
        self.columns = [*ABOUT, *(f"{name} (class)" if name in ABOUT else name for name in self._classes)]
        self._unknown = UNKNOWN if UNKNOWN not in self._classes else f"({UNKNOWN})"
        self.notes = model.notes  # of the model, and what is odd about a table
        self._names: list[str] | None = None  # of the rows of a table
        encoding = model.encoding
        if encoding is not None:
            self._data, self._names = table.unlabelled(_one_table(paths), encoding, _id_column(model))
            self.notes += self._data.notes
            self._files: list[Path] = []
        else:
            self._files = find_images(paths)
            is_array = [path.suffix for path in self._files] == [".npz"]
            self._data = arrays.unlabelled(self._files[0]) if is_array else None
        if self._data is None and model.augmentation is None:
            raise InputError("the model was trained on arrays, but image files were given: give an .npz with x.")
        self.total = len(self._files if self._data is None else self._data)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._probabilities()
        for names, rows in self._adapted(batches) if self.adapt_priors else batches:
            for name, probabilities in zip(names, rows, strict=True):
                yield self._row(name, probabilities)
        if self.skipped and len(self.skipped) == self.total:
            path, why = self.skipped[0]
            raise InputError(f"none of the {self.total} files is a whole image ('{path}': {why}): give image files.")

    def _probabilities(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Names and calibrated probabilities (n, C), a batch at a time."""
        for names, x in self._inputs() if self._data is None else self._rows():
            yield names, self._model.probabilities(x)

    def _adapted(self, batches: Iterator[tuple[list[str], np.ndarray]]) -> Iterator[tuple[list[str], np.ndarray]]:
        found = list(batches)
        if not found:
            return
        logits = np.log(np.concatenate([table for _, table in found]).astype(np.float64).clip(1e-12))
        source = self._model.training_priors
        target = em_priors(logits, source)
        self.priors = dict(zip(self._classes, (round(float(share), 6) for share in target), strict=True))
        yield [name for names, _ in found for name in names], softmax(adapt_priors(logits, source, target))

    def _row(self, name: str, probabilities: np.ndarray) -> dict[str, Any]:
        best = int(probabilities.argmax())
        confidence = float(probabilities[best])
        unsure = self.threshold is not None and confidence < self.threshold
        values = [name, self._unknown if unsure else self._classes[best], round(confidence, 6)]
        return dict(zip(self.columns, [*values, *(round(float(p), 6) for p in probabilities)], strict=True))

    def _inputs(self) -> Iterator[tuple[list[str], torch.Tensor]]:
        augmentation = self._model.augmentation
        assert augmentation is not None
        for batch in decoded_batches(self._files, self._model.stored_size, BATCH):
            self.skipped += [(os.fspath(path), why) for path, why in batch.skipped]
            self.seen += len(batch.paths) + len(batch.skipped)
            if batch.paths:
                images = torch.from_numpy(batch.images).to(self._model.device)
                yield [os.fspath(path) for path in batch.paths], augmentation.evaluate(images)

    def _rows(self) -> Iterator[tuple[list[str], torch.Tensor]]:
        assert self._data is not None
        for x in self._model.inputs(self._data, np.arange(self.total)):
            rows = range(self.seen, self.seen + len(x))
            names = [f"row {row}" if self._names is None else self._names[row] for row in rows]
            self.seen += len(x)
            yield names, x


def _one_table(paths: Sequence[str | os.PathLike[str]]) -> Path:
    found = [Path(path) for path in paths]
    if len(found) != 1 or found[0].suffix.lower() not in table.SUFFIXES:
        given = ", ".join(f"'{path}'" for path in found[:3])
        raise InputError(f"the model reads columns of a table, but {given} was given: give one .csv or .parquet file.")
    return found[0]


def _id_column(model: TrainedModel) -> str | None:
    roles = table.divided(model.config.data)[1]
    return None if roles is None else roles.id


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
