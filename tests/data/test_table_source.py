"""Tables: what is read, what is learned and from which rows, and the sentences for what is wrong."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcalign import api
from rcalign.data import loading
from rcalign.data.column_encoder import encode_columns
from rcalign.data.columns import (
    Column,
    Encoding,
    Table,
    as_days,
    as_number,
    infer,
    is_gap,
    learn_encoding,
    plain_numbers,
    read_columns,
)
from rcalign.data.sources.table import Roles, address, divided, frame_columns, from_columns
from rcalign.errors import InputError

HEADER = ["patient", "hospital", "age", "pressure", "smoker", "visit", "ill"]


def patients(rows: int = 40, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    table = []
    for k, hospital in enumerate(("north", "south", "east")):
        for i in range(rows):
            ill = bool(rng.random() < 0.4)
            pressure = f"{rng.normal(120 + 20 * ill, 10):.1f}" if rng.random() > 0.1 else ""
            visit = datetime.date(2020, 1, 1) + datetime.timedelta(int(rng.integers(900)))
            smoker = str(rng.choice(["never", "daily"] if k < 2 else ["never", "pipe"]))
            table.append([f"p{k}-{i}", hospital, str(30 + i), pressure, smoker, str(visit), "yes" if ill else "no"])
    return table


def write(file: Path, rows: list[list[str]], header: list[str] = HEADER) -> str:
    with open(file, "w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])
    return address(file, Roles(label="ill", domain="hospital", id="patient"))


def columns_of(rows: list[list[str]]) -> dict[str, list[Any]]:
    return {name: [row[k] for row in rows] for k, name in enumerate(HEADER)}


def test_kinds_and_roles(tmp_path: Path) -> None:
    data = loading.load(write(tmp_path / "patients.csv", patients()))
    assert data.domains == ("east", "north", "south") and data.classes == ("no", "yes")
    assert isinstance(data.content, Table)
    kinds = {column.name: column.kind for column in data.content.columns}
    assert kinds == {"age": "number", "pressure": "number", "smoker": "category", "visit": "date"}
    assert data.group is None, "every patient has one row"
    twice = loading.load(write(tmp_path / "twice.csv", [*patients(), *patients(3)]))
    assert twice.group is not None and len(np.unique(twice.group)) == len(data)


def test_a_table_is_read_as_its_raw_values_are(tmp_path: Path) -> None:
    """Its numbers are there already; categories are renumbered, and those of rows left out are unknown."""
    rows = patients()
    for row in rows[::7]:
        row[4] = ""
    data = loading.load(write(tmp_path / "patients.csv", rows))
    other = loading.load(write(tmp_path / "other.csv", [[*row[:4], "cigars", *row[5:]] for row in rows]))
    assert isinstance(data.content, Table) and isinstance(other.content, Table)
    encoding = learn_encoding(data.content, np.flatnonzero(data.domain != 0))
    for content in (data.content, data.content.select(np.arange(5, 50)), other.content):
        np.testing.assert_array_equal(encoding.read(content), encoding.read(content.raw))
    codes = tuple(dataclasses.replace(c, kind="category") if c.name == "age" else c for c in data.content.columns)
    as_names = Table(read_columns(codes, data.content.raw, "it"), data.content.raw, codes)
    np.testing.assert_array_equal(encoding.read(as_names), encoding.read(data.content))


def test_csv_parquet_pandas_and_polars_are_the_same_rows(tmp_path: Path) -> None:
    rows = patients()
    text = columns_of(rows)
    typed: dict[str, list[Any]] = {
        **text,
        "age": [int(value) for value in text["age"]],
        "pressure": [float(value) if value else None for value in text["pressure"]],
        "visit": [datetime.date.fromisoformat(value) for value in text["visit"]],
    }
    roles = Roles(label="ill", domain="hospital", id="patient")
    first = loading.load(write(tmp_path / "patients.csv", rows))
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(typed), tmp_path / "patients.parquet")
    others = [loading.load(address(tmp_path / "patients.parquet", roles))]
    for library in ("pandas", "polars"):
        frame = pytest.importorskip(library).DataFrame(typed)
        others.append(from_columns(frame_columns(frame), roles, name="frame", where="the frame"))
    for other in others:
        assert np.array_equal(first.content.x, other.content.x, equal_nan=True)  # type: ignore[union-attr]
        assert (first.y == other.y).all() and (first.domain == other.domain).all()


def test_nothing_is_learned_from_a_held_out_domain(tmp_path: Path) -> None:
    """Whatever the held-out hospital holds, the saved encoding is the same."""
    rows = patients()
    other = [[*row[:2], "9999", "", "cigar", "1950-01-01", row[6]] if row[1] == "east" else row for row in rows]
    tables = []
    for k, table in enumerate((rows, other)):
        run = tmp_path / f"run{k}"
        api.train(write(tmp_path / f"t{k}.csv", table), "ERM", ["east"], steps=2, out=run)
        tables.append(json.loads((run / "config.json").read_text())["table"])
    assert tables[0] == tables[1]
    smoker = next(column for column in tables[0]["columns"] if column["name"] == "smoker")
    assert smoker["values"] == ["daily", "never"], "a category of the held-out hospital alone is unknown"


def test_predict_evaluate_and_onnx_read_raw_columns(tmp_path: Path) -> None:
    rows = patients()
    file = write(tmp_path / "patients.csv", rows)
    api.train(file, "ERM", ["east"], steps=30, out=tmp_path / "run")
    fresh = [[*row[:-1]] for row in reversed(rows)]  # no label, another order, more columns
    write(tmp_path / "new.csv", fresh, HEADER[:-1])
    found = api.predict(tmp_path / "run", [tmp_path / "new.csv"])
    again = api.predict(tmp_path / "run", [tmp_path / "patients.csv"])
    assert [row["path"] for row in found["rows"]] == [row[0] for row in fresh]
    assert [row["yes"] for row in found["rows"]] == pytest.approx([row["yes"] for row in again["rows"]][::-1], abs=1e-5)
    assert any("pipe" in note for note in found["notes"]), "values that training did not have are named"
    right = [row["predicted"] == given[6] for row, given in zip(again["rows"], rows, strict=True) if given[1] == "east"]
    accuracy = api.evaluate(tmp_path / "run", file)["accuracy"]["east"]
    assert accuracy == pytest.approx(np.mean(right))
    onnxruntime = pytest.importorskip("onnxruntime")
    done = api.export(tmp_path / "run", "onnx")
    session = onnxruntime.InferenceSession(done["file"], providers=["CPUExecutionProvider"])
    text = columns_of([[*row, ""] for row in fresh])
    fed = {
        "age": np.array(text["age"], float),
        "pressure": np.array([value or "nan" for value in text["pressure"]], float),
        "smoker": np.array(text["smoker"], object),
        "visit": np.array([as_days(value) for value in text["visit"]], float),
    }
    probabilities = session.run(["probabilities"], fed)[0]
    assert probabilities[:, 1] == pytest.approx([row["yes"] for row in found["rows"]], abs=1e-4)
    assert "days since 1970" in done["input"]


values = st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(float("nan")))


@settings(max_examples=40, deadline=None)
@given(st.lists(values, min_size=3, max_size=30), st.lists(st.sampled_from(["a", "b", "c", "", "NA"]), min_size=30))
def test_inputs_are_finite_and_the_encoding_survives_json(numbers: list[Any], names: list[str]) -> None:
    raw = {"n": numbers, "c": names[: len(numbers)], "k": list(range(len(numbers)))}
    columns = tuple(found for name, column in raw.items() if (found := infer(name, column, "it")) is not None)
    table = Table(read_columns(columns, raw, "it"), raw, columns)
    encoding = learn_encoding(table, np.arange(len(numbers)))
    x = encode_columns(encoding, table)
    assert x.shape == (len(numbers), encoding.width) and x.dtype == np.float32
    assert np.isfinite(x).all() and np.abs(x).max() <= 3.0001
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert np.array_equal(encode_columns(again, table), x)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows[5].__setitem__(2, "forty"), "column 'age' of .* holds numbers, but 'forty' in row 6"),
        (lambda rows: rows[7].__setitem__(6, " "), "column 'ill' of .* is empty in row 8"),
        (lambda rows: rows[3].append("more"), "line 5 of .* has 8 values"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: Any, expected: str) -> None:
    rows = patients()
    change(rows)
    with pytest.raises(InputError, match=expected):
        loading.load(write(tmp_path / "patients.csv", rows))


def test_wrong_names_are_named(tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    write(file, patients())
    with pytest.raises(InputError, match="did you mean 'ill'"):
        loading.load(f"{file}?label=il&domain=hospital")
    with pytest.raises(InputError, match="did you mean 'domain'"):
        loading.load(f"{file}?label=ill&domains=hospital")
    api.train(f"{file}?label=ill&domain=hospital&id=patient", "ERM", ["east"], steps=2, out=tmp_path / "run")
    write(tmp_path / "new.csv", patients(), [name.replace("age", "agee") for name in HEADER])
    with pytest.raises(InputError, match=r"lacks the column 'age'.*may be its 'agee'\): rename"):
        api.predict(tmp_path / "run", [tmp_path / "new.csv"])


def test_columns_without_information_are_left_out_and_said_so(tmp_path: Path) -> None:
    rows = [[*row[:6], "1", "", row[6]] for row in patients()]
    header = [*HEADER[:6], "same", "nothing", "ill"]
    data = loading.load(write(tmp_path / "patients.csv", rows, header))
    assert any("'nothing' is empty" in note for note in data.notes)
    api.train(data, "ERM", ["east"], steps=2, out=tmp_path / "run")
    table = json.loads((tmp_path / "run" / "config.json").read_text())["table"]
    assert table["left_out"] == {"same": "constant in training"}
    only = [[row[0], row[1], "1", row[6]] for row in patients()]
    with pytest.raises(InputError, match="no column tells the rows apart"):
        api.train(write(tmp_path / "b.csv", only, ["patient", "hospital", "same", "ill"]), "ERM", ["east"], steps=2)


def test_an_address_comes_back_as_it_was() -> None:
    roles = Roles(label="a&b=c", domain="dömäin", id="?", ignore=("x,y", "z"), text=("t",), encoder="some/model")
    assert divided(address("dir/t.csv", roles)) == ("dir/t.csv", roles)
    assert divided("dir/photo?.png") == ("dir/photo?.png", None)


def test_category_of_numbers() -> None:
    raw = {"code": [1, 2, 1], "y": ["a", "b", "a"], "d": ["u", "v", "u"]}
    data = from_columns(raw, Roles(label="y", domain="d", category=("code",)), name="t", where="t")
    assert data.content.columns == (Column("code", "category", ("1", "2")),)  # type: ignore[union-attr]


ODD = [
    "",
    " ",
    "NA",
    "?",
    "nan",
    "+nan",
    "inf",
    "-Infinity",
    "1_000",
    "1e400",
    "7 kg",
    "٣",
    "0x1",
    "1,5",
    "none",
    "\u00a02",
]
VALUES = st.one_of(
    st.floats().map(str),
    st.sampled_from(ODD),
    st.text(max_size=3),
    st.floats(),
    st.integers(),
    st.none(),
    st.booleans(),
    st.just(np.float64(2.5)),
    st.just(datetime.date(2024, 1, 2)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.lists(VALUES, max_size=6),
        st.lists(st.one_of(st.floats().map(str), st.sampled_from(ODD)), max_size=6),
        st.lists(st.one_of(st.floats(), st.integers(), st.none()), max_size=6),
    )
)
def test_a_column_of_numbers_is_read_at_once_as_it_is_value_by_value(values: list[Any]) -> None:
    """Either the same numbers, or the values are looked at one by one."""
    found = plain_numbers(values)
    one_by_one = [math.nan if is_gap(value) else as_number(value) for value in values]
    if found is not None:
        assert None not in one_by_one
        np.testing.assert_array_equal(found, np.array(one_by_one, np.float64))
    elif {type(value) for value in values} == {str}:
        assert None in one_by_one or any("_" in value for value in values)
