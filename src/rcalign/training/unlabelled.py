"""Samples without labels as a trained model reads them: image files, folders and lists of them, arrays, a table."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from rcalign.data.source import Content, Dataset
from rcalign.data.sources import arrays, table
from rcalign.data.stream import decoded_batches, find_images
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH
from rcalign.training.trained import TrainedModel

NamedSamples = list[tuple[str, str | None]]  # path or name, and the problem of a file that is no image


class UnlabelledSamples:
    """An iterator over batches: (name, problem) of each sample, and the network inputs of those without a problem.

    paths: image files, folders of them, ``.csv`` lists of them (a column ``path``; relative ones start at the list's
    folder), or one file of rows: an ``.npz``, or for a model of a table another table. ``total`` is the number of
    samples, ``seen`` how many were read, ``skipped`` fills with (path, problem), ``notes`` say what is odd about a
    table. content: what a file of rows holds, None for image files.
    """

    def __init__(self, model: TrainedModel, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._model = model
        self.skipped: list[tuple[str, str]] = []
        self.seen = 0
        self.notes: list[str] = []
        self._files: list[Path] = []
        self._data: Dataset | None = None
        self._names: list[str] | None = None  # of the rows of a table
        if model.encoding is not None:
            self._data, self._names = table.unlabelled_table(_one_table(paths), model.encoding, _id_column(model))
            self.notes += self._data.notes
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
        self.content: Content | None = None if self._data is None else self._data.content

    def __iter__(self) -> Iterator[tuple[NamedSamples, torch.Tensor | None]]:
        return self._images() if self._data is None else self._rows(self._data)

    def _images(self) -> Iterator[tuple[NamedSamples, torch.Tensor | None]]:
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

    def _rows(self, data: Dataset) -> Iterator[tuple[NamedSamples, torch.Tensor]]:
        for x in self._model.inputs(data, np.arange(self.total)):
            rows = range(self.seen, self.seen + len(x))
            names: NamedSamples = [(f"row {row}" if self._names is None else self._names[row], None) for row in rows]
            self.seen += len(x)
            yield names, x


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
