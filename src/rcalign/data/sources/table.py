"""A table: a ``.csv`` or ``.parquet`` file with a column of labels and one of domains.

Its columns are named in the text that names the data, as in an address: ``patients.csv?label=ill&domain=hospital``.
So every command reads tables, and a run folder says where its rows came from.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data import sentences
from rcalign.data.columns import (
    Column,
    Encoding,
    Raw,
    Table,
    as_category,
    category_column,
    infer,
    is_gap,
    looks_like_text,
    read_columns,
)
from rcalign.data.source import (
    Dataset,
    check_spelling,
    fingerprint,
    from_names,
    listed,
    sample_note,
    sample_size,
    stratified_rows,
)
from rcalign.errors import InputError, unknown

SUFFIXES = (".csv", ".tsv", ".parquet")
MANY_VALUES = 200  # a category with more values than that, most of them once, is a name or an identifier


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What the columns of a table are for.

    label, domain: the columns to predict and to generalise over. id: rows with the same value (a patient) never land on
    both sides of a split. ignore: not to be read. category: numbers that are names, such as codes. text: sentences.
    encoder: the sentence encoder of text columns, a folder or a name (see ``sentences``). sample: read so many rows
    only (see ``source.stratified_rows``).
    """

    label: str = "label"
    domain: str = "domain"
    id: str | None = None
    ignore: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    encoder: str | None = None
    sample: int | None = None

    def query(self) -> str:
        """As the part of the address after "?".

        >>> Roles(label="ill", domain="hospital", ignore=("a,b", "c")).query()
        'label=ill&domain=hospital&ignore=a%2Cb&ignore=c'
        """
        pairs: list[tuple[str, str]] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            pairs += [(field.name, str(item)) for item in values]
        return urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote)


def address(file: str | os.PathLike[str], roles: Roles) -> str:
    """The text by which ``load`` finds a table: the file's name with the roles of its columns.

    >>> address("patients.csv", Roles(label="ill", domain="hospital"))
    'patients.csv?label=ill&domain=hospital'
    """
    return f"{os.fspath(file)}?{roles.query()}"


def divided(text: str) -> tuple[str, Roles | None]:
    """The file and the roles of an address; None where it has none.

    >>> divided("patients.csv?label=ill&domain=hospital")[1].label, divided("patients.csv")[1]
    ('ill', None)
    """
    file, mark, query = text.rpartition("?")
    if not mark or Path(file).suffix.lower() not in SUFFIXES:
        return text, None
    fields = {field.name for field in dataclasses.fields(Roles)}
    values: dict[str, Any] = {}
    for name, found in urllib.parse.parse_qs(query, keep_blank_values=True).items():
        if name not in fields:
            raise unknown(f"role of a column of '{file}'", name, sorted(fields))
        values[name] = tuple(found) if name in ("ignore", "category", "text") else found[-1]
    if "sample" in values:
        values["sample"] = sample_size(values["sample"])
    return file, Roles(**values)


def is_table(path: Path) -> bool:
    """Whether a file is a table rather than a manifest of images, which has a column ``path``."""
    if path.suffix.lower() in (".parquet", ".tsv"):
        return True
    if path.suffix.lower() != ".csv":
        return False
    names = header(path)
    return "path" not in names and {"label", "domain"} <= names


def header(path: Path) -> set[str]:
    """The names of a table's columns; none if it cannot be read."""
    if path.suffix.lower() == ".parquet":
        return set(_parquet(path))
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as opened:
            return {name.strip() for name in next(csv.reader(opened), [])}
    except (OSError, csv.Error):
        return set()


def load(file: str | os.PathLike[str], roles: Roles | None = None, *, progress: bool = False) -> Dataset:
    """The rows of a table, with what was left out as notes."""
    roles = roles or Roles()
    path = Path(file)
    raw = read_table(path)
    return from_columns(raw, roles, name=path.stem, where=f"'{path}'", progress=progress)


def from_columns(raw: Raw, roles: Roles, *, name: str, where: str, progress: bool = False) -> Dataset:
    """A data set from columns in memory."""
    names = list(raw)
    for role, wanted in (("label", roles.label), ("domain", roles.domain), ("id", roles.id)):
        if wanted is not None and wanted not in raw:
            nearest = unknown(f"column of {where}", wanted, names)
            raise InputError(f"{nearest} It should hold the {role} of each row: name it with `{role}`.")
    for option in ("ignore", "category", "text"):
        for wanted in getattr(roles, option):
            if wanted not in raw:
                raise unknown(f"column of {where}, given with `{option}`,", wanted, names)
    if roles.label == roles.domain:
        raise InputError(f"`label` and `domain` are both '{roles.label}': they are two columns.")
    labels, domains = (_names(raw[column], column, where) for column in (roles.label, roles.domain))
    if len(set(labels)) > 0.5 * len(labels) and len(set(labels)) > 50:
        raise InputError(
            f"the label column '{roles.label}' of {where} has {len(set(labels))} different values in {len(labels)} "
            "rows: classes are expected. For a quantity, make classes of it first (such as low, high)."
        )
    check_spelling(zip(domains, labels, strict=True))
    columns, notes = infer_columns(raw, roles, where)
    if roles.sample is not None and roles.sample < len(labels):
        notes.append(sample_note(roles.sample, len(labels)))
        rows = stratified_rows(labels, domains, roles.sample)
        raw = {name: [values[row] for row in rows] for name, values in raw.items()}
        labels, domains = ([values[row] for row in rows] for values in (labels, domains))
    x = read_columns(columns, raw, where)
    read = {column.name: raw[column.name] for column in columns}
    parts = [
        _told_apart(x, columns).tobytes(),
        "\0".join(labels).encode(),
        "\0".join(domains).encode(),
        roles.query().encode(),
    ]
    parts += ["\0".join(map(as_category, values)).encode("utf-8", "surrogateescape") for values in read.values()]
    encoders = [column.encoder for column in columns if column.encoder is not None]
    parts += [sentences.encoder_fingerprint(encoder).encode() for encoder in encoders]
    group = None if roles.id is None else np.array([as_category(value) for value in raw[roles.id]])
    if group is not None and len(np.unique(group)) == len(group):
        group = None  # every row is one of its own
    return from_names(
        name,
        Table(x, read, columns),
        labels,
        domains,
        fingerprint=fingerprint(parts),
        group=group,
        notes=notes,
    )


def _told_apart(x: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """The numbers of a table (n, c) by which it is recognised: those of texts are not among them, because their last
    digits depend on the texts beside which they were computed. The texts themselves count, and the encoder.
    """
    ends = np.cumsum([column.width for column in columns])[:-1]
    parts = [part for part, column in zip(np.split(x, ends, axis=1), columns, strict=True) if column.kind != "text"]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(x), 0))


def infer_columns(raw: Raw, roles: Roles, where: str) -> tuple[tuple[Column, ...], list[str]]:
    """What each column holds, those with a role of their own left out, and notes on those that cannot be read."""
    columns: list[Column] = []
    notes: list[str] = []
    for name, values in raw.items():
        if name in (roles.label, roles.domain, roles.id, *roles.ignore):
            continue
        if name in roles.text:
            encoder = sentences.find_encoder(roles.encoder)
            columns.append(Column(name, "text", width=sentences.width_of(encoder), encoder=encoder))
            continue
        found = category_column(name, values) if name in roles.category else infer(name, values, where)
        if found is None:
            notes.append(f"column '{name}' is empty and was left out")
        elif found.kind == "category" and name not in roles.category and looks_like_text(values):
            notes.append(f"column '{name}' holds sentences and was left out: read it with `text={name}`")
        elif found.kind == "category" and name not in roles.category and _names_rows(found, values):
            notes.append(
                f"column '{name}' has {len(found.values)} different values, nearly one for each row, and was left out: "
                f"read it with `category={name}` if it says something of other rows too"
            )
        else:
            columns.append(found)
    if not columns:
        raise InputError(
            f"{where} has no column to learn from beside '{roles.label}' and '{roles.domain}'"
            f"{': ' + '; '.join(notes) if notes else ''}."
        )
    return tuple(columns), notes


def _names_rows(column: Column, values: Sequence[Any]) -> bool:
    return len(column.values) > min(MANY_VALUES, 0.5 * len(values)) and len(column.values) > 20


def _names(values: Sequence[Any], column: str, where: str) -> list[str]:
    for row, value in enumerate(values):
        if is_gap(value) and not (isinstance(value, str) and value.strip()):
            raise InputError(
                f"column '{column}' of {where} is empty in row {row + 1}: every row needs its class and its domain; "
                "fill it, or remove the row."
            )
    return [as_category(value) for value in values]


# --- files -----------------------------------------------------------------------------------------------------------


def read_table(path: Path) -> dict[str, list[Any]]:
    """The columns of a ``.csv``, ``.tsv`` or ``.parquet`` file, values as they stand there."""
    if not path.is_file():
        raise InputError(f"'{path}' does not exist: give a .csv or .parquet file.")
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"'{path}' has no rows: a header and a row for each sample are expected.")
    return columns


def _csv(path: Path) -> dict[str, list[Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as opened:
            start = opened.readline()
            opened.seek(0)
            counts = {mark: start.count(mark) for mark in ",;\t"}
            reader = csv.reader(opened, delimiter=max(counts, key=lambda mark: counts[mark]), strict=True)
            header = [name.strip() for name in next(reader, [])]
            repeated = [name for name in header if header.count(name) > 1]
            if repeated:
                raise InputError(f"'{path}' has two columns named '{repeated[0]}': rename one.")
            rows: list[list[str]] = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise InputError(
                        f"line {reader.line_num} of '{path}' has {len(row)} values, but the header names "
                        f"{len(header)} columns: correct the line (a value with a comma needs quotes)."
                    )
                rows.append(row)
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not UTF-8 text: save it with that encoding.") from None
    except csv.Error as error:
        raise InputError(f"'{path}' is not a readable CSV file ({error}): check its quotes.") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}): check its permissions.") from None
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("parquet needs pyarrow, which is not installed: pip install 'rcalign[parquet]'.") from None
    try:
        found = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"'{path}' is not a readable parquet file ({str(error).splitlines()[0]}).") from None
    nested = [field.name for field in found.schema if pyarrow.types.is_nested(field.type)]
    if nested:
        found = found.drop_columns(nested)
    return {name: found.column(name).to_pylist() for name in found.column_names}


def unlabelled_table(path: Path, encoding: Encoding, id: str | None = None) -> tuple[Dataset, list[str]]:
    """The rows of a table for a model to predict, and a name for each: its ``id``, or its number from 1."""
    raw = read_table(path)
    x = encoding.read(raw, f"'{path}'")
    rows = len(x)
    if id is not None and id in raw:
        names = [as_category(value) for value in raw[id]]
    else:
        names = [f"row {row + 1}" for row in range(rows)]
    zeros = np.zeros(rows, dtype=np.int64)
    read = {column.name: raw[column.name] for column in encoding.columns}
    content = Table(x, read, encoding.columns)
    notes = tuple(
        f"column '{column}' has values that training did not have ({listed(new)}): they count as unknown"
        for column, new in encoding.unknown_values(raw).items()
    )
    return Dataset(path.stem, ("unknown",), ("unknown",), zeros, zeros, None, None, content, notes, "unlabelled"), names


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame (pandas, polars): it has named columns."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and not isinstance(value, (np.ndarray, Mapping))


def frame_columns(frame: Any) -> dict[str, list[Any]]:
    """The columns of a pandas or polars data frame."""
    columns = {}
    for name in frame.columns:
        values = frame[name]
        columns[str(name)] = values.to_list() if hasattr(values, "to_list") else list(values)
    if len(columns) < len(list(frame.columns)):
        raise InputError(f"some columns of the data frame share a name: {listed([str(n) for n in frame.columns])}.")
    return columns
