"""What ``fit`` prints, writes and shows: the same figures everywhere, each sentence once, the best first."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.fit.expectation import RULES, choose_method, expect
from rcalign.fit.folds import Outcome
from rcalign.fit.pipeline import _table
from rcalign.fit.portfolio import PORTFOLIO
from rcalign.fit.search import Round
from toy import patients as table

Run = Callable[..., tuple[int, str, str]]
DOMAINS = ("u", "v", "w", "x")


def sentences(text: str) -> list[str]:
    """The sentences of a text that have at least four words."""
    found = (part.strip() for part in re.split(r"(?<=[.!?])\s|\n", text))
    return [part for part in found if len(part.split()) >= 4]


def page_text(page: Path) -> str:
    body = page.read_text().split("<body>")[1]
    return html.unescape(re.sub(r"<[^>]+>", "\n", re.sub(r"</?(strong|em|code|span|b)\b[^>]*>", "", body)))


def repeated(text: str) -> list[str]:
    return [sentence for sentence, times in Counter(sentences(text)).items() if times > 1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(5))
def test_the_first_row_has_the_best_value_by_the_rule(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def played(candidates: Any, steps: int) -> Round:
        outcomes = {c.name: {d: Outcome("finished", accuracy=rng.random()) for d in DOMAINS} for c in candidates}
        return Round(steps, tuple(candidates), outcomes, {})

    rounds = [played(PORTFOLIO, 40), played(PORTFOLIO[2:5], 100)]
    scores = rounds[-1].scores(DOMAINS)
    rows = _table(rounds, DOMAINS, scores, rule)
    assert [row["method"] for row in rows if row["last"]] == [row["method"] for row in rows[:3]]
    for part in (rows[:3], rows[3:]):
        values = [row[rule] for row in part]
        assert values == sorted(values, reverse=True)
    best = choose_method(scores, rule=rule)
    assert rows[0]["method"] in best.tied


@pytest.mark.parametrize("rule", RULES)
def test_the_worst_seen_is_the_worst_of_the_scores_that_are_shown(rule: str) -> None:
    """Each domain has the score of the method that the others choose; what is called the worst is one of these."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        found = expect({name: rng.random(4).tolist() for name in "abc"}, DOMAINS, rule=rule)
        assert found.worst == min(found.nested.values()) == found.nested[found.worst_domain]
        assert f"{100 * found.worst:.0f} % ({found.worst_domain})" in found.sentence
        assert found.expected == pytest.approx(np.mean(list(found.nested.values())))


def test_the_chosen_one_is_called_the_cheapest_only_if_it_is() -> None:
    scores = {"a": [0.8, 0.7], "b": [0.79, 0.71], "c": [0.8, 0.69]}
    assert "no other of them is cheaper" in choose_method(scores, {"a": 1.0, "b": 1.0, "c": 2.0}).reason
    assert "b is the cheapest of them" in choose_method(scores, {"a": 1.1, "b": 1.0, "c": 2.0}).reason


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_everything_is_said_once(rcalign: Run, tmp_path: Path, rule: str) -> None:
    file = table(tmp_path / "p.csv")
    options = ["--label", "ill", "--domain", "hospital", "--budget", "30m", "--steps", "6", "--workers", "1"]
    code, out, err = rcalign("fit", file, *options, "--for", rule, "--out", "out")
    assert code == 0
    assert not repeated(page_text(tmp_path / "out" / "report.html"))
    assert not repeated(out + "\n" + err)
    result = json.loads((tmp_path / "out" / "fit.json").read_text())
    page = " ".join(page_text(tmp_path / "out" / "report.html").split())
    assert result["expectation"]["sentence"] in page and result["expectation"]["sentence"] in out
    assert result["rule"] == rule and f"Rule: the {rule} o" in page
    assert result["reason"] in err and result["reason"][1:] in page
    first = result["table"][0]
    assert first[rule] == max(row[rule] for row in result["table"] if row["last"])
    for row in result["table"]:
        for name in ("mean", "worst", "balanced"):
            assert f"{100 * row[name]:.1f} %" in page and f"{100 * row[name]:.1f}" in out


def test_a_shortened_training_is_said_once(rcalign: Run, tmp_path: Path) -> None:
    """A budget that is over when the program has started: the default method, few of its steps."""
    file = table(tmp_path / "p.csv")
    code, out, err = rcalign("fit", file, "--label", "ill", "--domain", "hospital", "--budget", "1s", "--out", "out")
    assert code == 0
    assert not repeated(page_text(tmp_path / "out" / "report.html"))
    assert not repeated(out + "\n" + err)
    sentence = json.loads((tmp_path / "out" / "fit.json").read_text())["final_training"]["sentence"]
    assert sentence and (out + err).count(sentence) == 1


def test_a_fit_of_one_domain_says_everything_once(tmp_path: Path) -> None:
    rows = table(tmp_path / "all.csv").read_text().splitlines()
    (tmp_path / "one.csv").write_text("\n".join([rows[0], *(row for row in rows if row.startswith("north,"))]) + "\n")
    api.fit(tmp_path / "one.csv", label="ill", domain="hospital", budget=0, steps=5, out=tmp_path / "out")
    assert not repeated(page_text(tmp_path / "out" / "report.html"))


def test_a_class_that_a_domain_lacks_is_said_once(tmp_path: Path) -> None:
    lines = table(tmp_path / "all.csv").read_text().splitlines()
    kept = [line for line in lines if not (line.startswith("north,") and line.endswith(",y"))]
    (tmp_path / "some.csv").write_text("\n".join(kept) + "\n")
    found = api.fit(tmp_path / "some.csv", label="ill", domain="hospital", budget=0, steps=5, out=tmp_path / "out")
    said = [*found["look"]["sentences"], *found["notes"]]
    assert sum("class 'y'" in sentence for sentence in said) == 1
