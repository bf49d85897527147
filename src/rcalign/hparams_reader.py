"""Hyperparameters of an algorithm of this package, without importing torch: its file is parsed, not imported.

Of the file, only what the dataclass ``Hparams`` needs is executed: the class itself, its base classes, and the
constants and functions that its fields name. A test compares the result with what importing gives, for every algorithm.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

AS_STRINGS = __future__.annotations.compiler_flag  # annotations are kept as strings
PACKAGE = "rcalign.algorithms"
FOLDER = Path(__file__).parent / "algorithms"
Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.ImportFrom | ast.Import


def read_hparams(module: str, algorithm: str) -> type:
    """The dataclass ``Hparams`` of a class in a file of ``algorithms/``.

    >>> read_hparams("swad", "SWAD")().learning_rate
    5e-05
    """
    found: type = _value(module, algorithm).Hparams
    return found


@functools.cache
def _definitions(module: str) -> dict[str, Definition]:
    """What each name at the top level of a file stands for."""
    found: dict[str, Definition] = {}
    for node in ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {name.id: node for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name: node for alias in node.names}
    return found


@functools.cache
def _value(module: str, name: str) -> Any:
    """The value of a name; an algorithm is a namespace with its ``Hparams`` and nothing else."""
    node = _definitions(module)[name]
    if isinstance(node, ast.ImportFrom):
        return _imported(node, name)
    if isinstance(node, ast.Import):
        return importlib.import_module(name)
    if isinstance(node, ast.ClassDef) and not _is_dataclass(node):
        return SimpleNamespace(Hparams=_hparams_of(module, node))
    return _executed(module, node)[name]


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)


def _hparams_of(module: str, algorithm: ast.ClassDef) -> Any:
    """Its own dataclass, the one it names, or that of its first base that has one."""
    for node in algorithm.body:
        if isinstance(node, ast.ClassDef) and node.name == "Hparams":
            return _executed(module, node)["Hparams"]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == "Hparams":
                return eval(compile(ast.Expression(node.value), module, "eval"), _names_in(module, node.value))
    for base in algorithm.bases:
        if isinstance(base, ast.Name) and isinstance(found := _value(module, base.id), SimpleNamespace):
            return found.Hparams
    return None


def _imported(node: ast.ImportFrom, name: str) -> Any:
    original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
    source = node.module or ""
    if source.startswith(f"{PACKAGE}."):
        return _value(source.removeprefix(f"{PACKAGE}."), original)
    parent = importlib.import_module(source)
    return getattr(parent, original) if hasattr(parent, original) else importlib.import_module(f"{source}.{original}")


def _executed(module: str, node: ast.stmt) -> dict[str, Any]:
    """The names that a statement defines, beside those that it uses."""
    is_function = isinstance(node, ast.FunctionDef)  # the types of its arguments are not needed, and may be torch's
    names = _names_in(module, *(node.body if isinstance(node, ast.FunctionDef) else [node]))
    flags = AS_STRINGS if is_function else 0
    exec(compile(ast.Module([node], []), f"{module}.py", "exec", flags=flags, dont_inherit=True), names)
    return names


def _names_in(module: str, *nodes: ast.AST) -> dict[str, Any]:
    """The values of the names that are read anywhere in the nodes."""
    read = {
        found.id
        for node in nodes
        for found in ast.walk(node)
        if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)
    }
    known = {name for name in read if name in _definitions(module) and not hasattr(builtins, name)}
    return {"__name__": f"{PACKAGE}.{module}"} | {name: _value(module, name) for name in known}
