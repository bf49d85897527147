"""The interval for the next domain, and the choice, on problems whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from rcalign.errors import InputError
from rcalign.fit.expectation import choose_method, expect


def problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Measured accuracies (methods, domains), and those of 400 further domains: logits of a method, a domain and both,
    and the noise of counting rows."""
    domains, methods = int(rng.integers(3, 13)), int(rng.integers(2, 9))
    level = rng.normal(rng.uniform(0.5, 1.8), rng.uniform(0, 0.3), methods)[:, None]
    between, both = rng.uniform(0.1, 0.8), rng.uniform(0.05, 0.4)
    rows = int(rng.integers(50, 400))

    def draw(count: int) -> np.ndarray:
        logits = level + rng.normal(0, between, count) + rng.normal(0, both, (methods, count))
        return rng.binomial(rows, 1 / (1 + np.exp(-logits))) / rows

    return draw(domains), draw(400)


def table(scores: np.ndarray) -> dict[str, list[float]]:
    return {f"method {m}": row.tolist() for m, row in enumerate(scores)}


@pytest.mark.parametrize("rule", ["mean", "worst"])
def test_the_interval_covers_the_next_domain_as_often_as_it_says(rule: str) -> None:
    """200 problems of 3 to 12 domains and 2 to 8 methods: 90 % stated, 85 to 95 % demanded."""
    rng = np.random.default_rng(7)
    covered, naive, nested = [], [], []
    for _ in range(200):
        scores, truth = problem(rng)
        named = table(scores)
        found = expect(named, [f"d{k}" for k in range(scores.shape[1])], rule=rule)
        chosen = truth[list(named).index(choose_method(named, rule=rule).method)]
        covered.append(float(np.mean((chosen >= found.interval[0]) & (chosen <= found.interval[1]))))
        nested.append(found.expected - chosen.mean())
        naive.append(found.expected + found.optimism - chosen.mean())
    assert 0.85 <= np.mean(covered) <= 0.95, f"{np.mean(covered):.3f}"
    assert abs(np.mean(nested)) < 0.01, "without the optimism nothing is left to remove"
    if rule == "mean":
        assert np.mean(naive) > 0.005, "the mean of the best of several is too good, or this test shows nothing"


@pytest.mark.parametrize("domains", [3, 5, 10])
def test_it_covers_at_every_number_of_domains(domains: int) -> None:
    rng = np.random.default_rng(domains)
    covered, width = [], []
    while len(covered) < 60:
        scores, truth = problem(rng)
        if scores.shape[1] < domains:
            continue
        named = table(scores[:, :domains])
        found = expect(named, [str(k) for k in range(domains)])
        chosen = truth[list(named).index(choose_method(named).method)]
        covered.append(float(np.mean((chosen >= found.interval[0]) & (chosen <= found.interval[1]))))
        width.append(found.interval[1] - found.interval[0])
    assert 0.82 <= np.mean(covered) <= 0.97, f"{domains}: {np.mean(covered):.3f}"
    few = "domains are few" in found.sentence
    assert few == (domains < 5)


def test_few_domains_give_wide_intervals() -> None:
    narrow = expect({"a": [0.7, 0.8] * 6}, [str(k) for k in range(12)]).interval
    wide = expect({"a": [0.7, 0.8]}, ["u", "v"]).interval
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    assert expect({"a": [0.7]}, ["u"]).interval == (0.0, 1.0)


def test_equal_domains_do_not_make_it_certain() -> None:
    """Three domains of forty rows that were all right say little about the next one."""
    scores, names = {"a": [1.0, 1.0, 1.0]}, ["u", "v", "w"]
    small, large = (expect(scores, names, rows=[n] * 3).interval for n in (40, 4000))
    assert small[0] < 0.95 < large[0] and small[1] == large[1] == 1.0
    spread = {"a": [0.5, 0.9, 0.7]}
    assert expect(spread, names, rows=[4000] * 3).interval == expect(spread, names).interval


def test_ties_go_to_the_cheaper_one_and_clear_wins_do_not() -> None:
    scores = {"dear": [0.80, 0.70, 0.90], "cheap": [0.79, 0.71, 0.90], "poor": [0.5, 0.4, 0.6]}
    costs = {"dear": 5.0, "cheap": 1.0, "poor": 0.1}
    assert choose_method(scores, costs).method == "cheap" and "tied" in choose_method(scores, costs).reason
    assert choose_method({**scores, "cheap": [0.70, 0.60, 0.80]}, costs).method == "dear"
    steady = {"high": [0.9, 0.9, 0.5], "even": [0.7, 0.7, 0.7]}
    assert choose_method(steady, rule="mean").method == "high" and choose_method(steady, rule="worst").method == "even"


def test_wrong_input_is_said() -> None:
    with pytest.raises(InputError, match="'mean' or 'worst'"):
        choose_method({"a": [0.5]}, rule="best")
    with pytest.raises(InputError, match="larger `budget`"):
        choose_method({})
