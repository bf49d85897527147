"""The columns of a table in front of an exported graph: one input for each column, text as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcalign.data.columns import Encoding

NOT_SEEN = "(a value that training did not have)"


def columns_text(encoding: Encoding) -> str:
    """How the inputs of the ONNX graph are called, in words; what a graph cannot do is said."""
    words = {
        "number": "double, NaN for a gap",
        "category": "string, empty for a gap",
        "date": "double, days since 1970-01-01 (a graph cannot read a date), NaN for a gap",
    }
    parts = []
    for column in encoding.columns:
        if column.kind == "text":
            kind = f"double (n, {column.width}), the vector that {column.encoder} gives (a graph cannot read text)"
        else:
            kind = f"{words[column.kind]}"
        parts.append(f"'{column.name}': {kind}")
    return "one input (n,) for each column: " + "; ".join(parts)


def matrix_text(encoding: Encoding) -> str:
    """How the matrix that torchscript reads is called, in words."""
    names = ", ".join(f"'{column.name}'" for column in encoding.columns)
    codes = "; ".join(
        f"'{column.name}' " + ", ".join(f"{k} = {value}" for k, value in enumerate(column.values))
        for column in encoding.columns
        if column.kind == "category"
    )
    text = f"x: float64, columns in this order: {names}; NaN for a gap"
    return f"{text}; categories as their position, -1 for any other value: {codes}" if codes else text


def with_columns(graph: Any, encoding: Encoding) -> Any:
    """The graph with one input for each column instead of the matrix ``x``."""
    import onnx
    from onnx import TensorProto, helper

    nodes, inputs, initializers, pieces = [], [], [], []
    initializers.append(helper.make_tensor("rcalign_axis", TensorProto.INT64, [1], [1]))
    for k, column in enumerate(encoding.columns):
        kind = TensorProto.STRING if column.kind == "category" else TensorProto.DOUBLE
        shape: list[str | int | None] = ["n", column.width] if column.kind == "text" else ["n"]
        inputs.append(helper.make_tensor_value_info(column.name, kind, shape))
        at = column.name
        if column.kind == "category":
            codes = [*(float(position) for position in range(len(column.values))), math.nan]
            nodes.append(
                helper.make_node(
                    "LabelEncoder",
                    [at],
                    [f"rcalign_code_{k}"],
                    domain="ai.onnx.ml",
                    keys_strings=[*column.values, ""],
                    values_floats=codes,
                    default_float=-1.0,
                )
            )
            nodes.append(
                helper.make_node("Cast", [f"rcalign_code_{k}"], [f"rcalign_double_{k}"], to=TensorProto.DOUBLE)
            )
            at = f"rcalign_double_{k}"
        if column.kind != "text":
            nodes.append(helper.make_node("Unsqueeze", [at, "rcalign_axis"], [f"rcalign_column_{k}"]))
            at = f"rcalign_column_{k}"
        pieces.append(at)
    nodes.append(helper.make_node("Concat", pieces, ["rcalign_matrix"], axis=1))
    width = sum(column.width for column in encoding.columns)
    matrix = helper.make_tensor_value_info("rcalign_matrix", TensorProto.DOUBLE, ["n", width])
    opset = next(item.version for item in graph.opset_import if item.domain == "")
    before = helper.make_model(
        helper.make_graph(nodes, "columns", inputs, [matrix], initializers),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=graph.ir_version,
    )
    return onnx.compose.merge_models(before, graph, io_map=[("rcalign_matrix", "x")])


def feed(encoding: Encoding, raw: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of the ONNX graph for numbers (n, c) as ``Encoding.read`` gives them."""
    fed: dict[str, np.ndarray] = {}
    at = 0
    for column in encoding.columns:
        values = raw[:, at : at + column.width]
        at += column.width
        if column.kind == "text":
            fed[column.name] = values
        elif column.kind == "category":
            fed[column.name] = np.array([_category(column.values, code) for code in values[:, 0]], dtype=object)
        else:
            fed[column.name] = values[:, 0]
    return fed


def _category(values: Sequence[str], code: float) -> str:
    if math.isnan(code):
        return ""
    return values[int(code)] if 0 <= code < len(values) else NOT_SEEN


def noise(encoding: Encoding, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, c) such as the encoding may meet, gaps and unknown categories among them."""
    pieces = []
    for item in encoding.inputs:
        column = item.column
        if column.kind == "category":
            values = rng.integers(-1, len(column.values), (rows, 1)).astype(np.float64)
        else:
            values = item.center + item.scale * rng.normal(size=(rows, column.width))
        if column.kind != "text":
            values[rng.random((rows, 1)) < 0.2] = math.nan
        pieces.append(values)
    return np.concatenate(pieces, axis=1)
