"""What runs that are not trained yet will take: disk and hours, from runs that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.errors import InputError
from rcalign.store.names import short_data_name
from rcalign.store.run_folder import RunFolder, read_config


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
    """A finished run as a measure; all weights of a run are as large as its chosen ones, which it must have kept."""
    folder = RunFolder(path)
    result, config = folder.result(), read_config(path)
    if result is None:
        raise InputError(f"the run '{path}' is not finished: measure with one that is.")
    best = folder.best_file.stat().st_size if folder.best_file.exists() else 0
    if not best:
        raise InputError(f"the run '{path}' kept no weights, so that their size is not known: measure with another.")
    evaluations = len(folder.records())
    text = sum(file.stat().st_size for file in folder.path.iterdir() if file.suffix in (".json", ".jsonl"))
    sizes = {"text": text, "best": best, "last": best, "every": best * evaluations}
    return Measured(short_data_name(config.data), result.seconds / max(result.steps, 1), sizes)


def forecast(
    runs: Sequence[Mapping[str, Any]], measures: Sequence[Measured], *, steps: Sequence[int], at_once: int = 1
) -> dict[str, Any]:
    """Bytes and hours of planned runs (entries of ``plan.json``), whose numbers of steps are given.

    A run on data of which none was measured is taken to be like the largest that was. No costs of other algorithms or
    networks than the measured ones are known here.

    >>> one = Measured("PACS", 0.5, {"text": 1000, "best": 10, "last": 10, "every": 50})
    >>> forecast([{"data": "PACS", "keep": "none"}] * 4, [one], steps=[3600] * 4, at_once=2)
    {'bytes': 4000, 'hours': 1.0, 'measured': ['PACS'], 'not_measured': []}
    """
    by_data = {measure.data: measure for measure in measures}
    largest = max(measures, key=lambda measure: measure.bytes("last"))
    total, seconds, unknown_data = 0, 0.0, set()
    for run, number in zip(runs, steps, strict=True):
        name = short_data_name(run["data"])
        if name not in by_data:
            unknown_data.add(name)
        measure = by_data.get(name, largest)
        total += measure.bytes(run.get("keep", "last"))
        seconds += measure.seconds_per_step * number
    return {
        "bytes": total,
        "hours": round(seconds / 3600 / at_once, 1),
        "measured": sorted(by_data),
        "not_measured": sorted(unknown_data),
    }
