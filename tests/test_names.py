"""No two things of the package share a name: not two modules, nor two public classes, functions or types."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import rcalign

ROOT = Path(rcalign.__file__).parent
# a command is named for the function of api that it calls, and its file for the command
COMMANDS = ROOT / "cli"
# each kind of source, and each benchmark that is not a folder of images, offers the same functions by the same names:
# data.loading and the table of data.benchmarks.actions choose the module
OFFERED_BY_EVERY_SOURCE = {"load", "prepare", "verify", "drawn"}
# the name that DomainBed's own code expects of a base class
EXPECTED_BY_OTHERS = {ROOT / "compat" / "domainbed.py": {"Algorithm"}}


def files() -> Iterator[Path]:
    return (path for path in sorted(ROOT.rglob("*.py")) if COMMANDS not in path.parents)


def public_names(path: Path) -> Iterator[str]:
    """Classes, functions and types that a module defines at its top level. Constants are read beside their module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            names = [name for name in names if len(name) > 1 and not name.isupper()]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def allowed(path: Path, name: str) -> bool:
    if name in OFFERED_BY_EVERY_SOURCE:
        return ROOT / "data" in path.parents
    return name in EXPECTED_BY_OTHERS.get(path, ())


def test_no_two_modules_define_the_same_public_name() -> None:
    where = defaultdict(list)
    for path in files():
        for name in public_names(path):
            if not allowed(path, name):
                where[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_no_two_modules_have_the_same_name() -> None:
    where = defaultdict(list)
    for path in files():
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        where[module.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_every_exception_is_needed() -> None:
    """A name that no longer occurs twice is no exception any more."""
    found = {path: set(public_names(path)) for path in files()}
    for name in OFFERED_BY_EVERY_SOURCE:
        assert sum(name in names for path, names in found.items() if ROOT / "data" in path.parents) > 1, name
    for path, names in EXPECTED_BY_OTHERS.items():
        elsewhere = set().union(*(others for other, others in found.items() if other != path))
        assert names <= found[path] & elsewhere
