"""Logits of the parts of a split, and the figures that a run reports from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rcalign.data.splits import Splits
from rcalign.evaluation import metrics

BATCH = 64  # fixed, so that test-batch adaptation (a declared trait) means the same thing in every run


@dataclass(frozen=True)
class Part:
    """Logits (n, C) and labels (n,) of one domain's "val" or "test" part."""

    domain: str
    part: str
    logits: np.ndarray
    y: np.ndarray

    @property
    def accuracy(self) -> float:
        return metrics.accuracy(self.logits, self.y)


def logits_of(predict: Callable[[Tensor], Tensor], inputs: Iterable[Tensor], classes: int) -> np.ndarray:
    """Logits (n, C) over batches of inputs, in order."""
    pieces = [predict(x).float().cpu().numpy() for x in inputs]
    return np.concatenate(pieces) if pieces else np.zeros((0, classes), dtype=np.float32)


def evaluate_parts(
    predict: Callable[[Tensor], Tensor],
    splits: Splits,
    y: np.ndarray,
    inputs: Callable[[np.ndarray], Iterable[Tensor]],
    classes: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Part]:
    """Every domain's validation and test parts. inputs: row numbers -> batches of network inputs."""
    parts = []
    for name, rows_of in (("val", splits.val), ("test", splits.test)):
        for domain, rows in rows_of.items():
            parts.append(Part(domain, name, logits_of(predict, inputs(rows), classes), y[rows]))
            advance(len(rows))
    return parts


def by_domain(parts: Sequence[Part], value: Callable[[Part], float]) -> dict[str, dict[str, float]]:
    """domain -> part -> value."""
    table: dict[str, dict[str, float]] = {}
    for part in parts:
        if len(part.y):
            table.setdefault(part.domain, {})[part.part] = value(part)
    return table


def validation_accuracy(parts: Sequence[Part], source_domains: Sequence[str]) -> float:
    """Mean over source domains of the accuracy on their validation parts: what checkpoints are chosen by."""
    values = [part.accuracy for part in parts if part.part == "val" and part.domain in source_domains and len(part.y)]
    return float(np.mean(values))


def validation_loss(parts: Sequence[Part], source_domains: Sequence[str]) -> float:
    """Mean over source domains of the negative log likelihood on their validation parts."""
    return float(
        np.mean(
            [
                metrics.negative_log_likelihood(part.logits, part.y)
                for part in parts
                if part.part == "val" and part.domain in source_domains and len(part.y)
            ]
        )
    )


def summary(
    parts: Sequence[Part], domains: Sequence[str], counts: np.ndarray, shots: tuple[int, int] = (100, 20)
) -> dict[str, Any]:
    """The figures of ``result.json`` from the test parts.

    domains: the K source domains, counts: (K, C) their training samples. Shots go by the training count of the
    (domain, class) pair; for a domain held out, which has none, by the class's mean count over the source domains.
    shots: the limits of many and few, a fact of the data set (``Dataset.shots``).
    """
    tests = [part for part in parts if part.part == "test" and len(part.y)]
    if not tests:  # trained on every row there is
        return {"accuracy": {}, "average": None, "worst": None, "balanced": {}, "shots": {}, "ece": None}
    accuracy = {part.domain: part.accuracy for part in tests}
    typical = np.rint(counts.mean(0)).astype(np.int64)
    rows = np.stack([counts[domains.index(part.domain)] if part.domain in domains else typical for part in tests])
    correct = np.concatenate([part.logits.argmax(1) == part.y for part in tests])
    y = np.concatenate([part.y for part in tests])
    domain = np.concatenate([np.full(len(part.y), k) for k, part in enumerate(tests)])
    probabilities = metrics.softmax(np.concatenate([part.logits for part in tests]))
    return {
        "accuracy": accuracy,
        "average": float(np.mean(list(accuracy.values()))),
        "worst": float(min(accuracy.values())),
        "balanced": {part.domain: metrics.balanced_accuracy(part.logits, part.y) for part in tests},
        "shots": metrics.shot_accuracy(correct, y, domain, rows, *shots),
        "ece": metrics.expected_calibration_error(probabilities, y),
    }


def calibration(parts: Sequence[Part], source_domains: Sequence[str]) -> dict[str, Any]:
    """The temperature fitted on the source domains' validation parts, and the calibration errors it leaves.

    temperature: what logits are divided by before softmax; 1 where no finite one is best, as when every row is right.
    rows: validation rows it was fitted on. ece: part -> calibration error before and after, all rows of a part pooled.

    >>> logits = np.log([[0.8, 0.2]] * 10) * 3
    >>> found = calibration([Part("a", "val", logits, np.array([0] * 8 + [1] * 2))], ["a"])
    >>> round(found["temperature"], 6), round(found["ece"]["val"]["before"], 4), round(found["ece"]["val"]["after"], 4)
    (3.0, 0.1846, 0.0)
    """
    pools = {
        "val": [part for part in parts if part.part == "val" and part.domain in source_domains and len(part.y)],
        "test": [part for part in parts if part.part == "test" and len(part.y)],
    }
    rows = {
        name: (np.concatenate([part.logits for part in pool]), np.concatenate([part.y for part in pool]))
        for name, pool in pools.items()
        if pool
    }
    temperature = metrics.fit_temperature(*rows["val"]) if "val" in rows else 1.0
    if temperature in metrics.TEMPERATURES:
        temperature = 1.0

    def error(logits: np.ndarray, y: np.ndarray) -> float:
        return metrics.expected_calibration_error(metrics.softmax(logits), y)

    return {
        "temperature": temperature,
        "rows": len(rows["val"][1]) if "val" in rows else 0,
        "ece": {name: {"before": error(z, y), "after": error(z / temperature, y)} for name, (z, y) in rows.items()},
    }


def confusions(parts: Sequence[Part], classes: int) -> Mapping[str, list[list[int]]]:
    """domain -> (C, C) counts, rows true, columns predicted, of the test parts."""
    return {
        part.domain: metrics.confusion(part.logits.argmax(1), part.y, classes).tolist()
        for part in parts
        if part.part == "test"
    }
