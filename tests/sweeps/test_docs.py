"""The plans in docs/sweeps.md are plans, and its numbers are those of the recipes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rcalign.sweeps.plan import DataSummary, Sweep, expand
from rcalign.sweeps.plan_file import _KEYS, parse_plan, read_plan, recipes
from rcalign.training.options import in_plans

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
PLANS = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("text", PLANS)
def test_a_plan_of_the_page_expands(text: str) -> None:
    assert expand(parse_plan(tomllib.loads(text)), lambda data: DataSummary(("a", "b", "c"), arrays=True))


def test_every_key_is_explained() -> None:
    assert PLANS
    for key in _KEYS:
        if key != "variants" and key not in in_plans():  # those are explained by 'rcalign train --help'
            assert re.search(rf"[`\[]{key}[`\]]", PAGE.read_text()), key
    assert "[variants." in PAGE.read_text()


def test_the_numbers_of_runs_are_those_of_the_recipes() -> None:
    found = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+(?: \+ [\d,]+)?) \|$", PAGE.read_text(), flags=re.MULTILINE))
    for name in recipes():
        if not name.startswith("emoji"):
            assert found[name] == _numbers(read_plan(name)), name
    both = ", ".join(_numbers(read_plan(name)) for name in ("emoji", "emoji-mlt"))
    assert f"| {both} |" in PAGE.read_text()


def _numbers(sweep: Sweep) -> str:
    runs = expand(sweep)
    if sweep.seed_rule == "domainbed":
        return f"{len(runs):,}"
    groups = {run.group for run in runs}
    return f"{len(runs):,} + {len(groups) * (len(sweep.seeds) - 1):,}"
