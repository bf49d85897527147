"""Every guide is run as it stands, block by block."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Block, blocks, run_console, run_page

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry
from rcalign.data.sources import named

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
CONTRACT = ROOT / "tests" / "algorithms" / "test_contract.py"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder, a cache and registries of its own for each page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setenv("RCALIGN_DATA", str(tmp_path / ".data"))
    monkeypatch.setenv("COLUMNS", "110")
    modules, algorithms, data = set(sys.modules), dict(registry._entries), dict(named._entries)
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for entries, before in ((registry._entries, algorithms), (named._entries, data)):
        entries.clear()
        entries.update(before)


LONG = ("fit",)  # more than a few seconds
IN_A_SHELL = ("algorithm", "dataset")  # where it matters that another process finds what the page defines


PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in LONG else [])
    for page in GUIDES
    if page.stem not in IN_A_SHELL
]


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_runs(page: Path) -> None:
    if page.stem == "images":
        pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    if page.stem == "clip":
        pytest.importorskip("open_clip", reason="the extra 'clip' is not installed")
    if page.stem == "logging":
        pytest.importorskip("tensorboard", reason="the extra 'exports' is not installed")
    run_page(page)


@pytest.mark.slow
def test_a_data_set_of_ones_own_works_in_a_shell() -> None:
    run_page(ROOT / "docs" / "guides" / "dataset.md", shell=True)


@pytest.mark.slow
def test_the_algorithm_of_the_guide_works_in_a_shell_and_passes_the_contract(tmp_path: Path) -> None:
    before = set(registry.names(parts=True))
    run_page(ROOT / "docs" / "guides" / "algorithm.md", shell=True)
    (name,) = set(registry.names(parts=True)) - before
    ran = 0
    for function, arguments in contract(name):
        (tmp_path / str(ran)).mkdir()
        if "tmp_path" in inspect.signature(function).parameters:
            arguments["tmp_path"] = tmp_path / str(ran)
        with contextlib.suppress(pytest.skip.Exception):
            function(**arguments)
        ran += 1
    assert ran > 12


def contract(name: str) -> Iterator[tuple[Callable[..., None], dict[str, Any]]]:
    """Every test of the contract suite with its parameters, for one algorithm; its page is the guide itself."""
    spec = importlib.util.spec_from_file_location("contract", CONTRACT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function in vars(module).values():
        if not getattr(function, "__name__", "").startswith("test_") or function.__name__ == "test_has_a_page":
            continue
        given = {mark.args[0]: mark.args[1] for mark in function.pytestmark if mark.name == "parametrize"}
        others = [key for key in given if key != "name"]
        for values in itertools.product(*(given[key] for key in others)):
            yield function, {"name": name, **dict(zip(others, values, strict=True))}


def test_all_guides_are_there_and_have_code() -> None:
    found = {page.stem for page in GUIDES}
    assert found == {
        "images",
        "table",
        "sensors",
        "embeddings",
        "algorithm",
        "dataset",
        "domainbed",
        "cluster",
        "fit",
        "fine-tuning",
        "clip",
        "logging",
        "adaptation",
    }
    for page in GUIDES:
        assert {block.language for block in blocks(page)} & {"python", "console"}, page.name


def test_a_wrong_command_or_output_is_noticed(tmp_path: Path) -> None:
    def console(text: str) -> Block:
        return Block(tmp_path / "page.md", 1, "console", None, text)

    run_console(console("$ rcalign --version\nrcalign ...\n"))
    with pytest.raises(AssertionError, match="ended with 2"):
        run_console(console("$ rcalign evaluate nothing\n"))
    with pytest.raises(AssertionError, match="printed"):
        run_console(console("$ rcalign --version\nanother ...\n"))
    (tmp_path / "page.md").write_text("# x\n\n```python\nassert False\n```\n")
    with pytest.raises(AssertionError):
        run_page(tmp_path / "page.md")
