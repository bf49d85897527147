"""Predictions of a trained model for any number of files: in order, streamed, the unsure ones as "unknown"."""

from __future__ import annotations

import base64
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rcalign.data.cache import decode
from rcalign.data.source import Arrays, Content, Dataset, ImageArray
from rcalign.data.sources import arrays, table
from rcalign.data.stream import decoded_batches, find_images
from rcalign.diagnosis.priors import adapt_priors, estimate_priors
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH
from rcalign.evaluation.metrics import softmax
from rcalign.files import open_whole
from rcalign.training.trained import TrainedModel

UNKNOWN = "unknown"
NOT_ADAPTED = "The probabilities were not adapted to the class shares of these files"
ABOUT = ("path", "predicted", "confidence", "problem")  # the columns before those of the classes
THUMBNAIL = 96  # pixels
MOST_FEATURES = 2000  # rows whose features are kept to check whether only the class shares changed


PredictedBatch = tuple[
    list[tuple[str, str | None]], list[np.ndarray | None]
]  # (path, problem) and probabilities (C,) of each


@dataclass(frozen=True, eq=False)
class SourceOutputs:
    """What a model gives for labelled rows that it was not trained on: features (n, h), logits (n, C), labels and
    domain positions (n,)."""

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    domains: np.ndarray


class Predictions:
    """An iterator over one row for each image file (or for each row of an ``.npz`` or of a table).

    paths: image files, folders of them, ``.csv`` lists of them (a column ``path``; relative ones start at the list's
    folder), or one file of rows. A row: ``path``, ``predicted``, ``confidence`` (the probability of the likeliest
    class), ``problem`` and the probability of each class, all calibrated. A file that is no image gets a row with its
    ``problem`` and nothing else. threshold: a row less confident than that is predicted "unknown". ``total`` is the
    number of files, ``seen`` how many were read, and ``skipped`` fills with (path, problem). sets: gives for
    probabilities (n, C) which classes are in each row's set, (n, C) bool; they stand in a column ``set``.

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
        sources: SourceOutputs | None = None,
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
        self.skipped: list[tuple[str, str]] = []
        self.seen = 0
        self._model = model
        self._classes = model.config.spec.classes
        # a class may be called like one of our own columns
        about = ABOUT if sets is None else (*ABOUT, "set")
        self.columns = [*about, *(f"{name} (class)" if name in about else name for name in self._classes)]
        self._unknown = UNKNOWN if UNKNOWN not in self._classes else f"({UNKNOWN})"
        self.notes = model.notes  # of the model, and what is odd about a table
        self._names: list[str] | None = None  # of the rows of a table
        self._data: Dataset | None
        encoding = model.encoding
        if encoding is not None:
            self._data, self._names = table.unlabelled_table(_one_table(paths), encoding, _id_column(model))
            self.notes += self._data.notes
            self._files: list[Path] = []
        else:
            self._files = _image_files(paths)
            is_array = [path.suffix for path in self._files] == [".npz"]
            tables = [path for path in self._files if path.suffix == ".npz"]
            if tables and not is_array:
                more = len(self._files) - 1
                raise InputError(f"'{tables[0]}' was given with {more} more: give one .npz at a time, or image files.")
            self._data = arrays.unlabelled_arrays(self._files[0]) if is_array else None
        if self._data is None and model.augmentation is None:
            raise InputError("the model was trained on arrays, but image files were given: give an .npz with x.")
        self.total = len(self._files if self._data is None else self._data)

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
        for names, x in self._inputs() if self._data is None else self._rows():
            table = self._model.probabilities(x) if x is not None else np.zeros((0, len(self._classes)))
            if self.adapt_priors and x is not None:
                self._features.append(self._model.features(x[::every]).double().cpu().numpy())
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
        estimates = estimate_priors(
            self._sources.logits / self._model.temperature,
            self._sources.labels,
            logits,
            classes=self._classes,
            source_priors=training,
            source_domains=self._sources.domains,
            features=(self._sources.features, np.concatenate(self._features)),
        )
        shares = np.array([one.value for one in estimates.em])
        self.priors = dict(zip(self._classes, (round(float(share), 6) for share in shares), strict=True))
        if estimates.doubt is not None:
            self.notes.append(f"{NOT_ADAPTED}: {estimates.doubt}. See 'rcalign diagnose --target'.")
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

    def _inputs(self) -> Iterator[tuple[list[tuple[str, str | None]], torch.Tensor | None]]:
        """(path, problem) of the next files, and the network inputs of those without a problem."""
        augmentation = self._model.augmentation
        assert augmentation is not None
        for at, batch in enumerate(decoded_batches(self._files, self._model.stored_size, BATCH)):
            problems = dict(batch.skipped)
            files = self._files[at * BATCH : (at + 1) * BATCH]
            self.skipped += [(os.fspath(path), why) for path, why in batch.skipped]
            self.seen += len(files)
            images = torch.from_numpy(batch.images).to(self._model.device) if batch.paths else None
            names = [(os.fspath(path), problems.get(path)) for path in files]
            yield names, None if images is None else augmentation.evaluate(images)

    def _rows(self) -> Iterator[tuple[list[tuple[str, str | None]], torch.Tensor]]:
        assert self._data is not None
        for x in self._model.inputs(self._data, np.arange(self.total)):
            rows = range(self.seen, self.seen + len(x))
            names: list[tuple[str, str | None]] = [
                (f"row {row}" if self._names is None else self._names[row], None) for row in rows
            ]
            self.seen += len(x)
            yield names, x


@dataclass(frozen=True, eq=False)
class TargetOutputs:
    """What a model gives for samples without labels: features (n, h), logits (n, C), and the name of each sample.

    skipped: (path, problem) of files that are no images.
    """

    features: np.ndarray
    logits: np.ndarray
    names: list[str]
    skipped: list[tuple[str, str]]
    content: Content | None

    def thumbnail(self, row: int) -> str | None:
        """A small copy of a sample as a data address, if it is a picture."""
        if isinstance(self.content, Arrays):
            return None
        pixels = self.content.x[row] if isinstance(self.content, ImageArray) else decode(Path(self.names[row]), None)
        image = Image.fromarray(pixels)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=80)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def target_outputs(model: TrainedModel, path: str | os.PathLike[str]) -> TargetOutputs:
    """Features and logits of a folder of images, a .csv list of them, an .npz with ``x``, or a table."""
    found = Predictions(model, [path])
    names, features, logits = [], [], []
    for some, x in found._inputs() if found._data is None else found._rows():
        if x is not None:
            names += [name for name, problem in some if problem is None]
            features.append(model.features(x).double().cpu().numpy())
            logits.append(model.logits(x).double().cpu().numpy())
    if not names:
        reason = f" ('{found.skipped[0][0]}': {found.skipped[0][1]})" if found.skipped else ""
        raise InputError(f"'{path}' holds no sample that can be read{reason}: give images, an .npz with x, or a table.")
    content = None if found._data is None else found._data.content
    return TargetOutputs(np.concatenate(features), np.concatenate(logits), names, found.skipped, content)


def _image_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files, with those of a folder or of a .csv list in its place; a listed file may turn out to be missing."""
    found: list[Path] = []
    for path in map(Path, paths):
        is_list = path.suffix.lower() == ".csv" and path.is_file()
        found += _listed_in(path) if is_list else find_images([path])
    return found


def _listed_in(file: Path) -> list[Path]:
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            table = csv.DictReader(text)
            if "path" not in (table.fieldnames or ()):
                raise InputError(
                    f"'{file}' has no column 'path' (found: {', '.join(table.fieldnames or ['nothing'])}): a list of "
                    "images names one file a row there."
                )
            listed = [row["path"] for row in table]
    except csv.Error as error:
        raise InputError(f"'{file}' cannot be read as a CSV ({error}): give a list with a column 'path'.") from None
    if not listed:
        raise InputError(f"the list '{file}' is empty: give the path of one image a row.")
    for row, path in enumerate(listed, 2):
        if not path:
            raise InputError(f"line {row} of '{file}' has no path: fill it in, or leave the line out.")
    return [file.parent / path for path in listed]  # an absolute path stays as it is


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
