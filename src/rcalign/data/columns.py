"""Columns of a table as network inputs: numbers, categories, dates and text, with gaps.

Reading is the same for every row: a number is parsed, a category becomes its position, a date the days since 1970, a
text its embedding; a gap becomes NaN. What is *learned* (an ``Encoding``) is learned from training rows alone: medians
that fill gaps, scales, which categories exist. It is plain JSON, kept in the run's ``config.json``, so that a saved
model reads raw columns.

Per column, with m and s the median and the interquartile range / 1.349 of the training rows:

    number     z = (x - m) / s, smoothly cut: z / sqrt(1 + (z / 3)^2); gaps are m, and if training had gaps one more
               input says which values are gaps
    category   one input for each value seen in training (the 64 most frequent); gaps are a value of their own, if
               training had them; a value that training did not have gives zeros
    date       as a number, and the sine and cosine of its day in the year where training spans more than a year
    text       the embedding as it is; a gap gives zeros

The smooth cut keeps one wrong entry, or a domain with other units, from dominating: Holzmüller et al., Better by
Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular Data (2024). A column that is constant or empty in training
has no input.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rcalign.data.source import Arrays, listed, natural_key
from rcalign.errors import InputError, nearest

KINDS = ("number", "category", "date", "text")
GAPS = frozenset(("", "na", "n/a", "nan", "null", "?", "<na>", "nat"))  # what people write for "not known"
MOST_VALUES = 64  # of a category that get an input of their own
CUT = 3.0  # where the smooth cut of numbers begins to bite, in scales
NORMAL_IQR = 1.349  # the interquartile range of a normal distribution with deviation one
YEAR = 365.2425
UNSEEN = -1.0  # the code of a category that is not among the known values
EPOCH = datetime.datetime(1970, 1, 1)

Raw = Mapping[str, Sequence[Any]]  # column name -> one value a row: text, numbers, dates or None


@dataclass(frozen=True)
class Column:
    """name and kind ("number", "category", "date", "text"). values: of a category, in order. width: inputs of a text.

    encoder: what turned a text into numbers, as ``sentences`` names it.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    width: int = 1
    encoder: str | None = None


@dataclass(frozen=True, eq=False)
class Table(Arrays):
    """A table in memory: ``raw`` values as they were read, and ``x`` (n, width) float64, the same as numbers.

    columns: what each is; x has NaN for gaps and a category's position in ``Column.values``.
    """

    raw: Raw
    columns: tuple[Column, ...]

    def select(self, rows: np.ndarray) -> Table:
        picked = {name: [values[row] for row in rows] for name, values in self.raw.items()}
        return Table(self.x[rows], picked, self.columns)


# --- reading -------------------------------------------------------------------------------------------------------


def is_gap(value: Any) -> bool:
    """Whether a value stands for "not known": None, NaN, or text such as "", "NA", "?".

    >>> [is_gap(value) for value in (None, float("nan"), " ", "NA", "?", "no", 0)]
    [True, True, True, True, True, False, False]
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str):
        return value.strip().casefold() in GAPS
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def as_number(value: Any) -> float | None:
    """The number that a value is or spells; None if it is neither.

    >>> as_number("1e3"), as_number(" 7 "), as_number("7 kg"), as_number(True)
    (1000.0, 7.0, None, None)
    """
    if isinstance(value, (bool, np.bool_, datetime.date)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and not (isinstance(value, str) and "_" in value) else None


def as_days(value: Any) -> float | None:
    """Days since 1970 of a date: a date object, or text such as 2024-03-31, 2024/03/31, 31.03.2024, with a time or not.

    Dates such as 03/04/2024 are not read: whether March or April is meant depends on where they were written.

    >>> as_days("1970-01-02"), as_days("02.01.1970"), as_days("1970-01-01T12:00:00"), as_days("03/04/2024")
    (1.0, 1.0, 0.5, None)
    """
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, str):
        text = value.strip().replace("/", "-")
        day_first = re.fullmatch(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", text)
        if day_first:
            text = f"{day_first[3]}-{int(day_first[2]):02d}-{int(day_first[1]):02d}"
        if not re.match(r"\d{4}-\d{2}-\d{2}", text):
            return None
        try:
            value = datetime.datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - EPOCH).total_seconds() / 86400
    if isinstance(value, datetime.date):
        return float((value - EPOCH.date()).days)
    return None


def as_category(value: Any) -> str:
    """A category's name: text without spaces around it, whole numbers without a decimal point.

    >>> as_category(" daily "), as_category(2.0), as_category(True)
    ('daily', '2', 'True')
    """
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def plain_numbers(values: Sequence[Any]) -> np.ndarray | None:
    """The numbers (n,) of a column of nothing but numbers and gaps, which are NaN; None for any other column.

    What ``is_gap`` and ``as_number`` say of each value, in a tenth of the time: nearly all columns are such.

    >>> plain_numbers(["1.5", "", " 2"]), plain_numbers([1, None]), plain_numbers(["1.5", "high"])
    (array([1.5, nan, 2. ]), array([ 1., nan]), None)
    """
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float, type(None)}:
            found = np.array(values, np.float64)
        elif kinds == {str} and "_" not in "".join(values):  # Python reads 1_000, people do not write it
            found = np.fromiter(map(_spelled, values), np.float64, len(values))
        else:
            return None
    except (ValueError, OverflowError):
        return None
    gaps = np.flatnonzero(np.isnan(found)).tolist()
    if np.isinf(found).any() or not all(is_gap(values[row]) for row in gaps):
        return None
    return found


def _spelled(text: str) -> float:
    """The number that a text spells, NaN for a gap; otherwise a ValueError."""
    try:
        return float(text)
    except ValueError:
        if is_gap(text):
            return math.nan
        raise


def infer(name: str, values: Sequence[Any], where: str) -> Column | None:
    """What a column holds, from all its values; None if every value is a gap.

    A column that is nearly all numbers (or dates) with a few other entries is an error: guessing would hide it.
    """
    numbers = plain_numbers(values)
    if numbers is not None:
        return None if np.isnan(numbers).all() else Column(name, "number")
    known = [(row, value) for row, value in enumerate(values) if not is_gap(value)]
    if not known:
        return None
    for kind, read in (("number", as_number), ("date", as_days)):
        wrong = [(row, value) for row, value in known if read(value) is None]
        if not wrong:
            return Column(name, kind)
        if len(wrong) <= 0.2 * len(known):
            row, value = wrong[0]
            more = f" and in {len(wrong) - 1} more rows" if len(wrong) > 1 else ""
            raise InputError(
                f"column '{name}' of {where} holds {kind}s, but '{value}' in row {row + 1}{more}: correct it, leave it "
                f"empty if it is not known, or treat the column as a category (`category={name}`) or leave it out "
                f"(`ignore={name}`)."
            )
    return category_column(name, values)


def category_column(name: str, values: Sequence[Any]) -> Column:
    """A category with all values that occur, in order."""
    names = {as_category(value) for value in values if not is_gap(value)}
    return Column(name, "category", tuple(sorted(names, key=natural_key)))


def looks_like_text(values: Sequence[Any]) -> bool:
    """Whether a column of text is sentences rather than names of categories: nearly all different, several words."""
    known = [str(value) for value in values if not is_gap(value)]
    return len(set(known)) > 0.5 * len(known) and float(np.mean([len(value.split()) for value in known])) >= 4


def read_columns(columns: Sequence[Column], raw: Raw, where: str) -> np.ndarray:
    """The columns as numbers (n, width) float64: NaN for gaps, ``UNSEEN`` for unknown categories.

    raw may have more columns. One that lacks is an error, as is a value that is not of its column's kind.

    >>> columns = [Column("age", "number"), Column("smoker", "category", ("no", "yes"))]
    >>> read_columns(columns, {"age": ["40", ""], "smoker": ["yes", "maybe"]}, "the table").tolist()
    [[40.0, 1.0], [nan, -1.0]]
    """
    _check_columns(columns, raw, where)
    return np.concatenate([_read(column, raw[column.name], where) for column in columns], axis=1)


def _check_columns(columns: Sequence[Column], raw: Raw, where: str) -> None:
    """Refuses a table that lacks a column."""
    missing = [column.name for column in columns if column.name not in raw]
    if missing:
        what = f"column{'s' * (len(missing) > 1)} {listed(missing)}"
        near = {name: nearest(name, raw) for name in missing}
        guesses = [f"'{name}' may be its '{found}'" for name, found in near.items() if found is not None]
        hint = f" ({', '.join(guesses[:3])})" if guesses else ""
        raise InputError(
            f"{where} lacks the {what}, which the model reads{hint}: rename what has another name, or add it, empty "
            "where it is not known."
        )


def _read_table(columns: Sequence[Column], table: Table, where: str) -> np.ndarray:
    """What ``read_columns`` gives for the raw values of a table, from its numbers, since reading text takes long."""
    _check_columns(columns, table.raw, where)
    starts = np.cumsum([0, *(column.width for column in table.columns)])
    known = {column.name: (column, int(start)) for column, start in zip(table.columns, starts[:-1], strict=True)}
    found = []
    for column in columns:
        own, start = known.get(column.name, (None, 0))
        if own is None or (own.kind, own.encoder) != (column.kind, column.encoder):
            found.append(_read(column, table.raw[column.name], where))
        elif column.kind == "category":
            code = {name: float(position) for position, name in enumerate(column.values)}
            of_position = np.array([*(code.get(name, UNSEEN) for name in own.values), UNSEEN])  # the last: of UNSEEN
            values = table.x[:, start]
            gap = np.isnan(values)
            codes = of_position[np.where(gap, 0, values).astype(np.int64)]
            found.append(np.where(gap, math.nan, codes)[:, None])
        else:
            found.append(np.asarray(table.x[:, start : start + own.width], dtype=np.float64))
    return np.concatenate(found, axis=1)


def _read(column: Column, values: Sequence[Any], where: str) -> np.ndarray:
    if column.kind == "text":
        from rcalign.data.sentences import embed

        assert column.encoder is not None
        texts = ["" if is_gap(value) else str(value) for value in values]
        return embed(texts, column.encoder).astype(np.float64)
    if column.kind == "category":
        code = {name: float(position) for position, name in enumerate(column.values)}
        return np.array(
            [[math.nan if is_gap(value) else code.get(as_category(value), UNSEEN)] for value in values], np.float64
        ).reshape(-1, 1)
    numbers = plain_numbers(values) if column.kind == "number" else None
    if numbers is not None:
        return numbers[:, None]
    read = as_number if column.kind == "number" else as_days
    out = np.full((len(values), 1), math.nan)
    for row, value in enumerate(values):
        if is_gap(value):
            continue
        number = read(value)
        if number is None:
            raise InputError(
                f"column '{column.name}' of {where} has '{value}' in row {row + 1}, but a {column.kind} is expected: "
                "correct it, or leave it empty if it is not known."
            )
        out[row] = number
    return out


# --- learning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnInput:
    """How one column becomes inputs. center, scale, seasons: of numbers and dates. gaps: whether training had some."""

    column: Column
    center: float = 0.0
    scale: float = 1.0
    gaps: bool = False
    seasons: bool = False

    @property
    def width(self) -> int:
        """Inputs that this column gives."""
        if self.column.kind == "text":
            return self.column.width
        if self.column.kind == "category":
            return len(self.column.values) + self.gaps
        return 1 + self.gaps + 2 * self.seasons


@dataclass(frozen=True)
class Encoding:
    """What was learned of the columns of a table. left_out: name -> why a column has no input."""

    inputs: tuple[ColumnInput, ...]
    left_out: Mapping[str, str]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(item.column for item in self.inputs)

    @property
    def width(self) -> int:
        return sum(item.width for item in self.inputs)

    def read(self, raw: Raw | Table, where: str = "the table") -> np.ndarray:
        """Raw columns, or a table, as numbers (n, c) in the terms of this encoding; see ``read_columns``."""
        if isinstance(raw, Table):
            return _read_table(self.columns, raw, where)
        return read_columns(self.columns, raw, where)

    def unknown_values(self, raw: Raw) -> dict[str, list[str]]:
        """Column -> categories that training did not have, which are read as zeros."""
        found = {}
        for column in self.columns:
            if column.kind == "category" and column.name in raw:
                values = Counter(as_category(value) for value in raw[column.name] if not is_gap(value))
                new = [name for name, _ in values.most_common() if name not in column.values]
                if new:
                    found[column.name] = new
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values, for ``config.json``."""
        rows = []
        for item in self.inputs:
            row: dict[str, Any] = {"name": item.column.name, "kind": item.column.kind, "gaps": item.gaps}
            if item.column.kind == "category":
                row["values"] = list(item.column.values)
            elif item.column.kind == "text":
                row |= {"width": item.column.width, "encoder": item.column.encoder}
            else:
                row |= {"center": item.center, "scale": item.scale, "seasons": item.seasons}
            rows.append(row)
        return {"columns": rows, "left_out": dict(self.left_out)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Encoding:
        """The inverse of ``to_json``."""
        inputs = []
        for row in values["columns"]:
            column = Column(
                row["name"], row["kind"], tuple(row.get("values", ())), row.get("width", 1), row.get("encoder")
            )
            inputs.append(
                ColumnInput(
                    column, row.get("center", 0.0), row.get("scale", 1.0), row["gaps"], row.get("seasons", False)
                )
            )
        return cls(tuple(inputs), dict(values.get("left_out", {})))


def learn_encoding(table: Table, rows: np.ndarray) -> Encoding:
    """The encoding that the given (training) rows of a table say.

    >>> raw = {"age": ["40", "50", ""], "place": ["a", "b", "a"], "same": ["1", "1", "1"]}
    >>> columns = tuple(infer(name, values, "it") for name, values in raw.items())
    >>> table = Table(read_columns(columns, raw, "it"), raw, columns)
    >>> encoding = learn_encoding(table, np.arange(3))
    >>> from rcalign.data.column_encoder import encode_columns
    >>> encode_columns(encoding, table).round().tolist(), dict(encoding.left_out)
    ([[-1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]], {'same': 'constant in training'})
    """
    inputs: list[ColumnInput] = []
    left_out: dict[str, str] = {}
    at = 0
    for column in table.columns:
        values = table.x[rows, at : at + column.width]
        at += column.width
        found = _learn(column, values)
        if isinstance(found, str):
            left_out[column.name] = found
        else:
            inputs.append(found)
    if not inputs:
        why = ", ".join(f"'{name}' ({reason})" for name, reason in left_out.items()) or "there is none"
        raise InputError(f"no column tells the rows apart: {why}; give a table with columns that differ between rows.")
    return Encoding(tuple(inputs), left_out)


def _learn(column: Column, values: np.ndarray) -> ColumnInput | str:
    if column.kind == "text":
        return ColumnInput(column)
    flat = values[:, 0]
    known = flat[~np.isnan(flat)]
    gaps = len(known) < len(flat)
    if not len(known):
        return "empty in training"
    if len(np.unique(known)) == 1 and not gaps:
        return "constant in training"
    if column.kind == "category":
        counts = Counter(known.tolist())
        kept = sorted(code for code, _ in counts.most_common(MOST_VALUES))
        names = tuple(column.values[int(code)] for code in kept)
        return ColumnInput(Column(column.name, "category", names), gaps=gaps)
    low, center, high = np.quantile(known, [0.25, 0.5, 0.75])
    scale = (high - low) / NORMAL_IQR
    if scale <= 0:  # more than half of the rows share one value
        scale = float(known.std()) or 1.0
    seasons = column.kind == "date" and float(np.ptp(known)) > YEAR
    return ColumnInput(column, float(center), float(scale), gaps, seasons)
