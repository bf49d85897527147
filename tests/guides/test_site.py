"""The documentation site: builds without a warning, knows every algorithm, and every example in it is run."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import blocks

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WARNING" not in ended.stdout + ended.stderr
    page = (tmp_path / "site" / "api" / "estimator" / "index.html").read_text()
    assert "predict_proba" in page and "Calibrated probabilities" in page and "&gt;&gt;&gt;" in page
    for file in (tmp_path / "site").rglob("*.html"):  # nothing is fetched from elsewhere
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', file.read_text()), file


def test_every_algorithm_has_a_page_that_the_index_links() -> None:
    spec = importlib.util.spec_from_file_location("list_algorithms", DOCS / "list_algorithms.py")
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = hook.on_page_markdown((DOCS / "algorithms" / "index.md").read_text())
    listed = dict(re.findall(r"^\| \[([^\]]+)\]\((\w+)\.md\)", text, flags=re.MULTILINE))
    assert set(listed) == set(registry.names(parts=True))
    for name, page in listed.items():
        assert (DOCS / "algorithms" / f"{page}.md").is_file(), f"{name} has no page docs/algorithms/{page}.md"


def test_blocks_outside_the_guides_are_examples_or_text() -> None:
    """A block that looks as if it could be run is run: as a doctest here, or by the guides' own test."""
    for page in DOCS.rglob("*.md"):
        for block in blocks(page):
            if page.parent.name != "guides" and block.language == "python":
                assert block.text.lstrip().startswith(">>>"), f"{page.name}, line {block.line} is never run"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_examples_in_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n\n".join(block.text for block in blocks(page) if block.language == "python")
    if ">>>" not in text:
        pytest.skip("the page has no examples")
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0


def test_the_extension_of_the_site() -> None:
    pytest.importorskip("griffe", reason="the extra 'docs' is not installed")
    spec = importlib.util.spec_from_file_location("fenced_doctests", DOCS / "fenced_doctests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module).failed == 0
    twice = module.fenced("A.\n>>> 1\n1\n\nB.\n\n>>> 2\n2\n")
    assert twice.count("```python") == 2 and twice.count("```") == 4
