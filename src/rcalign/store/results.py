"""The result of a finished run: ``result.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MetricTable = Mapping[str, Mapping[str, Mapping[str, float]]]  # metric -> domain -> "val" or "test" -> value
_layouts: dict[tuple[tuple[str, str, str], ...], tuple[tuple[str, str, str], ...]] = {}  # each is kept once


class FlatMetrics(Mapping[str, Mapping[str, Mapping[str, float]]]):
    """A ``MetricTable`` that keeps its values in one tuple and shares the names with all others that have the same:
    a fifth of the memory of nested dicts, of which a report on thousands of runs would hold millions.

    >>> table = FlatMetrics({"accuracy": {"a": {"val": 0.5, "test": 0.25}, "b": {"val": 1.0}}})
    >>> table["accuracy"]
    {'a': {'val': 0.5, 'test': 0.25}, 'b': {'val': 1.0}}
    >>> list(table), table == {"accuracy": table["accuracy"]}
    (['accuracy'], True)

    A domain without a value has no place here: ``flat`` leaves such a table as it is.
    """

    __slots__ = ("_layout", "_values")

    def __init__(self, table: MetricTable) -> None:
        cells = [
            (metric, domain, part, value)
            for metric, domains in table.items()
            for domain, parts in domains.items()
            for part, value in parts.items()
        ]
        layout = tuple(cell[:3] for cell in cells)
        self._layout = _layouts.setdefault(layout, layout)
        self._values = tuple(cell[3] for cell in cells)

    def __getitem__(self, metric: str) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for (name, domain, part), value in zip(self._layout, self._values, strict=True):
            if name == metric:
                found.setdefault(domain, {})[part] = value
        if not found:
            raise KeyError(metric)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _, _ in self._layout))

    def __len__(self) -> int:
        return len({name for name, _, _ in self._layout})


def flat(table: MetricTable) -> MetricTable:
    """The same table in less memory, if every metric has a domain and every domain a value.

    >>> flat({"accuracy": {"a": {}}})
    {'accuracy': {'a': {}}}
    """
    whole = all(domains and all(domains.values()) for domains in table.values())
    return FlatMetrics(table) if whole else table


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run found with the weights it chose.

    accuracy, balanced: test domain -> accuracy, and its mean over classes. average, worst: the mean and the smallest
    accuracy of a test domain; None if no row was left to test on. shots: "many", "medium", "few", "zero" -> accuracy of
    the pairs (domain, class) with so many training samples; shot_limits: those of many and few. ece: calibration error
    of the test outputs before the temperature. calibration: ``temperature``, the ``rows`` it was fitted on, and ``ece``
    before and after it. validation: what the checkpoint was chosen by. weights: how it was chosen, in words.
    confusion: test domain -> (C, C) counts, true classes in rows. metrics: all metrics of all parts; a result of an
    earlier version has none.
    """

    algorithm: str
    seed: int
    protocol: str
    preset: str
    data: str
    test_domains: list[str]
    accuracy: Mapping[str, float]
    average: float | None
    worst: float | None
    balanced: Mapping[str, float]
    shots: Mapping[str, float | None]
    shot_limits: list[int] | None = None
    ece: float | None
    metrics: MetricTable = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None
    validation: float
    steps: int
    seconds: float
    best_step: int
    weights: str
    batch_dependent: bool = False
    confusion: Mapping[str, list[list[int]]] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)

    @property
    def temperature(self) -> float:
        """What logits are divided by before they are probabilities."""
        return float((self.calibration or {}).get("temperature", 1.0))

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        """The result of a file, also of one that an earlier version wrote; raises KeyError where a field is missing.

        >>> old = dict(algorithm="ERM", seed=0, protocol="lodo", preset="arrays", data="rows", test_domains=["b"],
        ...            accuracy={"b": 0.5}, average=0.5, worst=0.5, balanced={"b": 0.4}, shots={}, ece=0.1,
        ...            validation=0.9, steps=100, seconds=2.0, best_step=50, weights="best validation accuracy")
        >>> RunResult.from_json(old).temperature, RunResult.from_json(old).metrics
        (1.0, {})
        """
        known = {item.name: item for item in dataclasses.fields(cls)}
        missing = [
            name
            for name, item in known.items()
            if name not in values
            and item.default is dataclasses.MISSING
            and item.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise KeyError(missing[0])
        return cls(**{name: value for name, value in values.items() if name in known})
