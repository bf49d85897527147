"""What runs that are not trained yet will take: disk and hours, from runs that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.errors import InputError
from rcalign.store.names import short_data_name
from rcalign.store.run_folder import RunFolder, read_config

TEXT = (".json", ".jsonl")


@dataclass(frozen=True)
class Measured:
    """What a finished run takes. bytes_of: "best", "last" or "every" -> bytes of those weights; "text" -> the rest."""

    data: str
    seconds_per_step: float
    bytes_of: Mapping[str, int]

    def bytes(self, keep: str) -> int:
        """On the disk, once such a run is finished and keeps these weights."""
        kept = {"none": (), "best": ("best",), "last": ("best", "last"), "every": ("best", "last", "every")}[keep]
        return self.bytes_of["text"] + sum(self.bytes_of[name] for name in kept)


def measured(path: Path | str) -> Measured:
    """A finished run as a measure, its first stage included; all weights of a training are as large as its chosen ones,
    which it must have kept.
    """
    folder = RunFolder(path)
    result, config = folder.result(), read_config(path)
    if result is None:
        raise InputError(f"the run '{path}' is not finished: measure with one that is.")
    if not folder.best_file.exists():
        raise InputError(f"the run '{path}' kept no weights, so that their size is not known: measure with another.")
    sizes, seconds = {"text": 0, "best": 0, "last": 0, "every": 0}, 0.0
    for training in folder.trainings():
        sizes["text"] += sum(file.stat().st_size for file in training.path.iterdir() if file.suffix in TEXT)
        best = training.best_file.stat().st_size if training.best_file.exists() else 0
        sizes["best"] += best
        sizes["last"] += best
        sizes["every"] += best * len(training.records())
        own = training.result()
        seconds += own.seconds if own is not None else 0.0
    return Measured(short_data_name(config.data), seconds / max(result.steps, 1), sizes)


def forecast(
    runs: Sequence[Mapping[str, Any]], measures: Sequence[Measured], *, steps: Sequence[int], at_once: int = 1
) -> dict[str, Any]:
    """Bytes and hours of planned runs (entries of ``plan.json``), whose numbers of steps are given.

    A run on data of which none was measured is taken to be like the largest that was. No costs of other algorithms or
    networks than the measured ones are known here. Where runs keep no weights, ``winners`` are those that one would
    train again to have them: one of each data set, method and choice of test domains.

    >>> one = Measured("PACS", 0.5, {"text": 1000, "best": 10, "last": 10, "every": 50})
    >>> planned = [{"data": "PACS", "label": "ERM", "test_domains": ["photo"], "keep": "none"}] * 4
    >>> forecast(planned, [one], steps=[3600] * 4, at_once=2)
    {'bytes': 4000, 'hours': 1.0, 'winners': {'runs': 1, 'bytes': 1010}, 'measured': ['PACS'], 'not_measured': []}
    """
    by_data = {measure.data: measure for measure in measures}
    largest = max(measures, key=lambda measure: measure.bytes("last"))
    total, seconds, unknown_data = 0, 0.0, set()
    winners: dict[tuple[Any, ...], int] = {}
    for run, number in zip(runs, steps, strict=True):
        name = short_data_name(run["data"])
        if name not in by_data:
            unknown_data.add(name)
        measure, keep = by_data.get(name, largest), run.get("keep", "last")
        total += measure.bytes(keep)
        seconds += measure.seconds_per_step * number
        if keep == "none" and not run.get("companion"):  # those only serve to choose
            winners[name, run["label"], *run["test_domains"]] = measure.bytes("best")
    repeated = any(run.get("phase") == "repeat" for run in runs)  # the plan itself repeats its winners, and keeps them
    return {
        "bytes": total,
        "hours": round(seconds / 3600 / at_once, 4),
        "winners": None if repeated or not winners else {"runs": len(winners), "bytes": sum(winners.values())},
        "measured": sorted(by_data),
        "not_measured": sorted(unknown_data),
    }
