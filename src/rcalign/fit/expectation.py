"""What the chosen method will bring on the next domain, without the optimism of having chosen it.

S[m, k] is the accuracy of method m on domain k when k was left out of its training. The method with the best mean is
chosen, and so its own mean is too good: the largest of several noisy numbers. Nested leave-one-out removes that: for
each domain k the choice is made again from the other domains alone, and

    T_k = S[choice without k, k]

is what the whole procedure, choosing included, brings on a domain that it has not seen. The T_k are taken as K draws of
one distribution, of which the next domain is one more draw: mean -+ t s sqrt(1 + 1 / K), t of Student's distribution
with K - 1 degrees of freedom (``evaluation.metrics.next_value_interval``). tests/fit/test_expectation.py simulates it.

What it assumes: the next domain is drawn like these. What it leaves out: the final model is trained on all K domains,
the folds on K - 1 each, so that it tends to be a little better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from rcalign.errors import InputError
from rcalign.evaluation.metrics import next_value_interval

RULE_WORDS = {"mean": "mean over the domains left out", "worst": "worst of the domains left out"}
RULES = tuple(RULE_WORDS)
FEW = 5  # domains below which the interval mostly says how little is known
TIE = 0.5  # of the standard error of the difference: methods closer than that are tied


@dataclass(frozen=True)
class ChosenMethod:
    """The chosen method, by which rule, and which others were tied with it."""

    method: str
    rule: str
    score: float
    tied: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Expectation:
    """expected: accuracy on the next domain. interval: where it lies with probability ``level``.

    nested: domain -> T_k, of which worst is the lowest. optimism: how much the chosen method's own mean was too good.
    sentence: all of it in words.
    """

    expected: float
    interval: tuple[float, float]
    level: float
    worst: float
    worst_domain: str
    optimism: float
    nested: Mapping[str, float]
    sentence: str


def choose_method(
    scores: Mapping[str, Sequence[float]], costs: Mapping[str, float] | None = None, rule: str = "mean"
) -> ChosenMethod:
    """The best method by its mean or worst domain; of methods that are tied with the best, the cheapest.

    scores: method -> accuracy on each left-out domain, the same domains in the same order. costs: seconds of training,
    or any other unit. Tied with the best: by "mean", the mean difference is less than half of its own standard error
    over the domains; by "worst", less than one point.

    >>> scores = {"a": [0.70, 0.80, 0.60], "b": [0.71, 0.79, 0.60], "c": [0.5, 0.6, 0.4]}
    >>> choose_method(scores, {"a": 9.0, "b": 1.0, "c": 1.0}).method, choose_method(scores).tied
    ('b', ('a', 'b'))
    """
    if rule not in RULES:
        raise InputError(f"the rule is '{rule}', but 'mean' or 'worst' is expected.")
    if not scores:
        raise InputError("no method has been tried on every domain: give a larger `budget`.")
    table = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    value = {name: float(row.mean() if rule == "mean" else row.min()) for name, row in table.items()}
    best = max(value, key=lambda name: value[name])
    tied = tuple(name for name in table if name == best or _tied(table[best], table[name], rule))
    prices = costs or {}
    chosen = min(tied, key=lambda name: (prices.get(name, 0.0), -value[name]))
    what = "the highest mean over left-out domains" if rule == "mean" else "the highest accuracy on its worst domain"
    reason = f"{chosen} has {what}"
    if len(tied) > 1:
        others = ", ".join(name for name in tied if name != chosen)
        how = "half the standard error of the difference" if rule == "mean" else "one point"
        as_cheap = sum(prices.get(name, 0.0) == prices.get(chosen, 0.0) for name in tied) > 1
        which = "no other of them is cheaper" if as_cheap else f"{chosen} is the cheapest of them"
        reason = f"{chosen} and {others} are tied (within {how}); {which}"
    return ChosenMethod(chosen, rule, value[chosen], tied, reason)


def _tied(best: np.ndarray, other: np.ndarray, rule: str) -> bool:
    if rule == "worst":
        return float(best.min() - other.min()) < 0.01
    difference = best - other
    if len(difference) < 2:
        return float(difference.mean()) == 0.0
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    return float(difference.mean()) <= TIE * error


def expect(
    scores: Mapping[str, Sequence[float]],
    domains: Sequence[str],
    costs: Mapping[str, float] | None = None,
    rule: str = "mean",
    level: float = 0.9,
    rows: Sequence[int] | None = None,
) -> Expectation:
    """What to expect on the next domain from the method that ``choose_method`` takes.

    rows: of each domain. The interval is then never narrower than counting so few rows allows, even where all domains
    gave the same accuracy.

    >>> found = expect({"a": [0.7, 0.8, 0.6], "b": [0.6, 0.7, 0.5]}, ["u", "v", "w"])
    >>> round(found.expected, 2), round(found.optimism, 2), found.worst_domain
    (0.7, 0.0, 'w')
    """
    choice = choose_method(scores, costs, rule)
    own = np.asarray(scores[choice.method], dtype=np.float64)
    count = len(domains)
    if len(own) != count:
        raise InputError(f"there are {len(own)} scores for {count} domains: give one for each.")
    nested = []
    for k in range(count):
        others = {name: [v for j, v in enumerate(row) if j != k] for name, row in scores.items()}
        again = choose_method(others, costs, rule).method if count > 1 else choice.method
        nested.append(float(scores[again][k]))
    expected = float(np.mean(nested))
    low, high = next_value_interval(nested, level)
    if rows is not None and count > 1:
        spread = _counting_spread(expected, rows, count, level)
        low, high = max(0.0, min(low, expected - spread)), min(1.0, max(high, expected + spread))
    worst = int(np.argmin(nested))
    return Expectation(
        expected=expected,
        interval=(low, high),
        level=level,
        worst=nested[worst],
        worst_domain=domains[worst],
        optimism=float(own.mean()) - expected,
        nested=dict(zip(domains, nested, strict=True)),
        sentence=_sentence(expected, low, high, level, count, nested[worst], domains[worst]),
    )


def _counting_spread(mean: float, rows: Sequence[int], count: int, level: float) -> float:
    """Half the width that the noise of counting rows gives alone; one right and one wrong row more are assumed."""
    each = float(np.mean(rows))
    share = (mean * each + 1) / (each + 2)
    return float(student_t.ppf((1 + level) / 2, count - 1) * np.sqrt(share * (1 - share) / each * (1 + 1 / count)))


def _sentence(expected: float, low: float, high: float, level: float, count: int, worst: float, where: str) -> str:
    text = (
        f"On the next domain expect about {100 * expected:.0f} % accuracy; with {100 * level:.0f} % probability it "
        f"lies between {100 * low:.0f} and {100 * high:.0f} %, if that domain is drawn like the {count} here. The "
        f"worst seen was {100 * worst:.0f} % ({where})."
    )
    if count < FEW:
        text += (
            f" {count} domains are few: little is known of how domains differ, hence a wide interval where they "
            "did, and only more domains would tell more."
        )
    return text
