"""Logits of the parts of a split, and the figures that a run reports from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rcalign.data.splits import Splits
from rcalign.distributed import gathered_chunks, own_chunks
from rcalign.evaluation import metrics
from rcalign.evaluation.metric_table import METRICS

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
            # each worker of a run predicts some of the batches, and all of them get all logits
            own = logits_of(predict, inputs(own_chunks(rows, BATCH)), classes)
            logits = gathered_chunks(torch.from_numpy(own), len(rows), BATCH).numpy()
            parts.append(Part(domain, name, logits, y[rows]))
            advance(len(rows))
    return parts


def measure(parts: Sequence[Part], temperature: float | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Metric -> domain -> part -> value, of every metric in the table that these outputs can give.

    temperature: what logits are divided by to give the probabilities that users get; without it, metrics that need
    probabilities are left out. A metric that is not defined for the rows of a part has no value there.

    >>> part = Part("a", "test", np.log([[0.8, 0.2], [0.4, 0.6]]), np.array([0, 0]))
    >>> found = measure([part], temperature=1.0)
    >>> found["accuracy"], round(found["brier"]["a"]["test"], 2), found["auroc"]
    ({'a': {'test': 0.5}}, 0.4, {})
    >>> "brier" in measure([part])
    False
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for metric in METRICS.values():
        if metric.needs == "probabilities" and temperature is None:
            continue
        values = table.setdefault(metric.name, {})
        for part in parts:
            if not len(part.y):
                continue
            scores = part.logits if metric.needs == "logits" else metrics.softmax(part.logits / temperature)
            value = metric.function(scores, part.y)
            if value is not None:
                values.setdefault(part.domain, {})[part.part] = float(value)
    return table


def validation_accuracy(parts: Sequence[Part], source_domains: Sequence[str], protocol: str = "lodo") -> float:
    """What checkpoints are chosen by: the mean over source domains of the accuracy on their validation parts.

    Under protocol "wilds" it is the lowest accuracy of a validation domain, one that neither trains nor is tested, if
    there is one: the out-of-distribution validation of WILDS.

    >>> logits = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> parts = [Part("a", "val", logits, np.array([0, 0])), Part("b", "val", logits, np.array([0, 1]))]
    >>> validation_accuracy(parts, ["a"]), validation_accuracy(parts, ["a"], "wilds")
    (1.0, 0.5)
    """
    if protocol == "wilds":
        tested = {part.domain for part in parts if part.part == "test"}
        aside = [part for part in parts if part.part == "val" and part.domain not in {*source_domains, *tested}]
        if aside:
            return float(min(part.accuracy for part in aside if len(part.y)))
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
    parts: Sequence[Part],
    domains: Sequence[str],
    counts: np.ndarray,
    shots: tuple[int, int] = (100, 20),
    temperature: float = 1.0,
) -> dict[str, Any]:
    """The figures of ``result.json`` from the test parts.

    domains: the K source domains, counts: (K, C) their training samples. Shots go by the training count of the
    (domain, class) pair; for a domain held out, which has none, by the class's mean count over the source domains.
    shots: the limits of many and few, a fact of the data set (``Dataset.shots``). temperature: of the probabilities
    that users get.
    The result: ``metrics``, of all parts; ``accuracy`` and ``balanced``, two of them on the test parts; ``average`` and
    ``worst``, the mean and the smallest accuracy of a domain; ``shots`` and their ``shot_limits``; ``ece``, the
    calibration error of the outputs before the temperature, all rows pooled.
    """
    tests = [part for part in parts if part.part == "test" and len(part.y)]
    if not tests:  # trained on every row there is
        nothing: dict[str, Any] = {"accuracy": {}, "average": None, "worst": None, "balanced": {}, "shots": {}}
        return {**nothing, "shot_limits": list(shots), "ece": None, "metrics": {}}
    typical = np.rint(counts.mean(0)).astype(np.int64)
    rows = np.stack([counts[domains.index(part.domain)] if part.domain in domains else typical for part in tests])
    correct = np.concatenate([part.logits.argmax(1) == part.y for part in tests])
    y = np.concatenate([part.y for part in tests])
    domain = np.concatenate([np.full(len(part.y), k) for k, part in enumerate(tests)])
    probabilities = metrics.softmax(np.concatenate([part.logits for part in tests]))
    measured = measure(parts, temperature)
    accuracy = {part.domain: measured["accuracy"][part.domain]["test"] for part in tests}
    return {
        "accuracy": accuracy,
        "average": float(np.mean(list(accuracy.values()))),
        "worst": float(min(accuracy.values())),
        "balanced": {part.domain: measured["balanced_accuracy"][part.domain]["test"] for part in tests},
        "shots": metrics.shot_accuracy(correct, y, domain, rows, *shots),
        "shot_limits": list(shots),
        "ece": metrics.expected_calibration_error(probabilities, y),
        "metrics": measured,
    }


def calibration(
    parts: Sequence[Part], source_domains: Sequence[str], temperature: float | None = None
) -> dict[str, Any]:
    """The temperature, and the calibration errors before and after logits are divided by it.

    temperature: None fits it on the source domains' validation parts; it is 1 where no finite one is best, as when
    every row is right.
    The result: ``temperature``; ``rows``, the validation rows it was fitted on; ``ece``, part -> calibration error
    ``before`` and ``after``, all rows of a part pooled.

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
    if temperature is None:
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


def class_recalls(parts: Sequence[Part], classes: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Domain -> class -> recall on the test part; None for a class without rows there."""
    return {
        part.domain: dict(zip(classes, metrics.recalls(part.logits, part.y), strict=True))
        for part in parts
        if part.part == "test" and len(part.y)
    }


def confusions(parts: Sequence[Part], classes: int) -> Mapping[str, list[list[int]]]:
    """domain -> (C, C) counts, rows true, columns predicted, of the test parts."""
    return {
        part.domain: metrics.confusion(part.logits.argmax(1), part.y, classes).tolist()
        for part in parts
        if part.part == "test"
    }
