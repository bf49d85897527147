"""One run as selection and reports see it, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record, RunConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A planned run, finished or not.

    domains: all domains of the data set, in its order. test_domains: those held out; none under protocol "mdlt", where
    every domain trains and is tested. draw: the number of its hyperparameters; trial: of its repetition; within a
    trial the best draw is chosen. phase: "search", or "repeat" for the winner of a search trained again.
    companion: it holds out one domain more than is tested, and only serves leave-one-domain-out selection.
    records: its evaluations, by step. shots: step -> "many", "medium", "few", "zero" -> accuracy, where known.
    problem: why it is incomplete, None for a finished run. lost: why it cannot be chosen although it ended: it
    diverged, or was given up. config and result are there for our own runs only.
    """

    name: str
    data: str
    algorithm: str
    protocol: str
    domains: tuple[str, ...]
    test_domains: tuple[str, ...]
    draw: int = 0
    trial: int = 0
    seed: int = 0
    phase: str = "search"
    companion: bool = False
    preset: str = ""
    hparams: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    shots: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    seconds: float | None = None
    problem: str | None = None
    lost: str | None = None
    last_lines: tuple[str, ...] = ()
    folder: str = ""
    config: RunConfig | None = None
    result: RunResult | None = None

    @property
    def tested(self) -> tuple[str, ...]:
        """The domains whose test part counts."""
        return self.test_domains or self.domains

    @property
    def checkpoints(self) -> tuple[Record, ...]:
        """What may be chosen: all evaluations, or only that of the averaged weights where a run averages."""
        averaged = tuple(record for record in self.records if record.averaged)
        return averaged or self.records


def describe_run(run: Run) -> str:
    """What a run is, in words.

    >>> describe_run(
    ...     Run(name="x", data="PACS", algorithm="ERM", protocol="lodo", domains=(), test_domains=("A",), draw=3)
    ... )
    'ERM on PACS, A held out, trial 0, draw 3'
    """
    held_out = f", {' + '.join(run.test_domains)} held out" if run.test_domains else ""
    phase = " (repeat)" if run.phase == "repeat" else ""
    return f"{run.algorithm} on {run.data}{held_out}, trial {run.trial}, draw {run.draw}{phase}"
