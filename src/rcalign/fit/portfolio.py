"""The methods that are compared, as data. Nothing outside this file knows one of them by name.

Chosen by our own evidence (docs/results): plain training as the measure of all, weight averaging, what helps where
classes are of unequal size, and one method of each idea that led somewhere. Earlier ones are tried first, so that a
small budget compares the most useful.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rcalign import registry

SHIFTED = 0.15  # prior shift from which domains count as different in their shares of classes


@dataclass(frozen=True)
class Candidate:
    """A method to compare: an algorithm with hyperparameters and perhaps weight averaging.

    cost: of a step, in those of plain training. frozen: on the features of a backbone that is not trained (images).
    network: False for gradient boosting, which is fitted by scikit-learn and knows no steps.
    """

    name: str
    algorithm: str = ""
    average: str | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    network: bool = True
    cost: float = 1.0


PORTFOLIO = (
    Candidate("ERM", "ERM"),
    Candidate("SWAD", "SWAD"),
    Candidate("BSoftmax + SWAD", "BSoftmax", average="swad"),
    Candidate("RC-Align, equal shares", "RC-Align", hparams={"target_prior": "equal"}),
    Candidate("CORAL", "CORAL"),
    Candidate("Fish", "Fish"),
    Candidate("RC-Align", "RC-Align"),
)
SHIPPED = PORTFOLIO[-1]  # where the shares of classes differ between domains
PLAIN = PORTFOLIO[1]
FEWEST_ALIGNED = 3  # domains from which SHIPPED has two to align while it holds one out
BOOSTING = Candidate("gradient boosting", "Gradient boosting", network=False, cost=0.1)


def portfolio(more: Sequence[str] = (), *, domains: int, images: bool, table: bool) -> list[Candidate]:
    """The candidates for some data, those that were asked for first among the others.

    more: names of algorithms, with ``+swad`` (or ema, polynomial, swa) after them for weight averaging. A method that
    needs more source domains than are left when one is held out is not in the list.

    >>> [c.name for c in portfolio(["mldg+swad"], domains=4, images=False, table=False)][:4]
    ['ERM', 'MLDG + SWAD', 'SWAD', 'BSoftmax + SWAD']
    """
    asked = [_asked(text) for text in more]
    known = {candidate.name for candidate in PORTFOLIO}
    chosen = [PORTFOLIO[0], *(item for item in asked if item.name not in known), *PORTFOLIO[1:]]
    found = []
    for candidate in chosen:
        traits = registry.description(candidate.algorithm).traits
        if traits.min_domains > max(1, domains - 1) and candidate not in asked:
            continue
        cost = max(step_cost(candidate.algorithm), 0.5) * stages_cost(candidate.algorithm)
        found.append(dataclasses.replace(candidate, cost=cost, frozen=images))
    return [found[0], BOOSTING, *found[1:]] if table else found


@functools.cache
def _costs() -> dict[str, float | None]:
    return json.loads((resources.files("rcalign") / "algorithms" / "costs.json").read_text())


def step_cost(algorithm: str) -> float:
    """What a step takes, without those of a first stage, in those of plain training."""
    return float(_costs().get(algorithm) or 1.0)


def stages_cost(algorithm: str) -> float:
    """What a step of all stages of a method takes, in those of its last stage.

    >>> stages_cost("ERM"), stages_cost("CRT") > 2
    (1.0, True)
    """
    before = registry.description(algorithm).traits.stage_one
    return 1.0 if before is None else 1.0 + stages_cost(before) * step_cost(before) / step_cost(algorithm)


def _asked(text: str) -> Candidate:
    name, _, average = text.partition("+")
    entry = registry.description(name.strip())
    kind = average.strip().lower() or None
    return Candidate(entry.name if kind is None else f"{entry.name} + {kind.upper()}", entry.name, average=kind)


def recommended(domains: int, prior_shift: float, *, images: bool) -> tuple[Candidate, str]:
    """What to train where nothing may be compared, and why, by docs/results (a test computes it from the records).

    What trains for equal shares of classes is not it: where all domains share a frequent class, it loses by far.
    """
    if prior_shift > SHIFTED and domains >= FEWEST_ALIGNED:
        why = "the shares of classes differ between domains, where this led on data that nobody had tuned"
        return dataclasses.replace(SHIPPED, frozen=images), why
    return dataclasses.replace(PLAIN, frozen=images), "weight averaging led in our evidence, at no cost"
