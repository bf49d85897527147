"""Each stage imports only stages before it, and no stage knows an algorithm by name."""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

import rcalign
import rcalign.algorithms
from rcalign import registry

ROOT = Path(rcalign.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[1]
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
# a module may import those of its own layer and of the layers above it in this list
LAYERS = [
    {"errors", "interrupts", "extensions"},
    {"spec", "types", "files", "checkpoints", "pages", "devices", "distributed", "compiled"},
    {"spaces", "registry", "presets"},
    {"training.options"},  # records keep them, so they come before the rest of training
    {"store"},
    {"functional"},
    {"data"},
    {"models"},
    {"algorithms"},
    {"hparams_reader", "catalogue", "environment"},
    {"evaluation"},
    {"training"},
    {"selection"},
    {"sweeps"},
    {"diagnosis"},
    {"reports"},
    {"estimator", "exports", "predictions"},
    {"fit"},
    {"api"},
    {"demo", "compat"},
    {"cli", "__init__", "__main__"},  # the package itself offers, when first used, what its last stages hold
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def layer(path: Path) -> str:
    return known(".".join(path.relative_to(ROOT).with_suffix("").parts))


def known(module: str) -> str:
    """The part of rcalign whose layer a name is in: a module that has one of its own, or the first package."""
    while module not in LEVEL and "." in module:
        module = module.rpartition(".")[0]
    return module


def imported(tree: ast.AST) -> set[str]:
    """Top-level parts of rcalign that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {known(name.removeprefix("rcalign.")) for name in names if name.startswith("rcalign.")}
    return {name for name in found if name in LEVEL}


def only_for_types(tree: ast.Module) -> ast.Module:
    """The module without what stands under ``if TYPE_CHECKING``."""
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    return ast.Module(kept, [])


def modules() -> dict[str, Path]:
    """Dotted names within rcalign, without those of packages themselves that only gather what is in them."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    return {
        name.removesuffix(".__init__"): path for name, path in names.items() if name not in ("__init__", "__main__")
    }


def needed(path: Path, known_modules: dict[str, Path]) -> set[str]:
    """Modules of rcalign that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(only_for_types(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("rcalign.") in known_modules else node.module for name in inside]
        else:
            continue
        found |= {name.removeprefix("rcalign.") for name in names if name.startswith("rcalign.")}
    return found & known_modules.keys()


def test_no_two_modules_need_each_other() -> None:
    known_modules = modules()
    graph = {name: needed(path, known_modules) - {name} for name, path in known_modules.items()}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"these need each other: {' -> '.join(error.args[1])}")


def test_the_documentation_has_the_layers() -> None:
    text = ARCHITECTURE.read_text()
    table = text[text.index("| layer |") : text.index("Beside the package")]
    rows = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    assert [set(re.findall(r"`([\w.]+)`", row)) for row in rows] == LAYERS


def test_files_that_the_documentation_names_are_there() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", ARCHITECTURE.read_text()))
    base = ROOT / "algorithms"
    missing = [name for name in named if not any((at / name).is_file() for at in (ROOT, base, REPOSITORY))]
    assert len(named) > 10 and not {name for name in missing if "NAME" not in name}


def test_every_module_has_a_layer() -> None:
    assert {layer(path) for path in FILES} <= LEVEL.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    level = LEVEL[layer(path)]
    later = {name for name in imported(only_for_types(ast.parse(path.read_text()))) if LEVEL[name] > level}
    assert not later, f"{layer(path)} imports {later}"


def test_no_algorithm_is_known_by_name() -> None:
    names = set(registry.names(parts=True)) - {"BoDA"}  # also the name of a repository whose files we read
    free = {"training.options", "demo", "algorithms", "compat", "estimator"}
    tables = {"portfolio.py"}  # what ``fit`` compares, as data
    for path in FILES:
        if layer(path) in free or path.name in tables:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names, f"{path.name} knows '{node.value}'"


def test_only_files_named_for_it_import_ray() -> None:
    for path in FILES:
        if not path.name.endswith("_on_ray.py"):
            modules = {part for node in ast.walk(ast.parse(path.read_text())) for part in _modules(node)}
            assert "ray" not in modules, path


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [node.module.split(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []
