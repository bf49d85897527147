"""The raw records of a study, one line for each run, small enough to commit. Every figure is made from these alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rcalign.files import write_whole
from rcalign.store.read_runs import RunCollection, read_runs
from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run
from rcalign.training.tracking import read_tracking

DIGITS = 6


def condense(folder: Path, file: Path) -> None:
    """Writes the finished runs of a sweep: what was trained, and what came out at the checkpoint it chose."""
    sweep = read_runs(folder)
    head = {"name": sweep.name, "tuned": sweep.tuned, "domains": sweep.runs[0].domains}
    lines = [json.dumps(head), *(json.dumps(_short(_line(run))) for run in sweep.runs)]
    write_whole(file, ("\n".join(lines) + "\n").encode())


def _line(run: Run) -> dict[str, Any]:
    line: dict[str, Any] = {
        "id": run.name,
        "data": run.data,
        "label": run.algorithm,
        "protocol": run.protocol,
        "test_domains": run.test_domains,
        "draw": run.draw,
        "trial": run.trial,
        "phase": run.phase,
        "hparams": run.hparams if run.phase == "search" and run.trial == 0 else None,
    }
    if run.result is None:
        return {**line, "lost": run.lost, "problem": run.problem}
    kept = ("validation", "best_step", "accuracy", "balanced", "shots", "ece")
    line |= {name: getattr(run.result, name) for name in kept} | {"seconds": run.seconds}
    tracking = Path(run.folder) / "tracking.jsonl"
    if tracking.exists():
        rows = read_tracking(tracking)
        line["tracking"] = [[row["step"], row["target"], row["alignment"], row["gap"]] for row in rows]
    return line


def _short(line: Mapping[str, Any]) -> dict[str, Any]:
    """Rounded, but for the figure that runs are chosen by: rounding makes ties, and a tie another winner."""
    return {name: value if name == "validation" else _rounded(value) for name, value in line.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of the runs."""
    return [json.loads(line) for line in file.read_text().splitlines()[1:]]


def load(file: Path) -> RunCollection:
    """The records as a sweep that reports can be made from; each run has the one checkpoint that it chose."""
    head = json.loads(file.read_text().splitlines()[0])
    domains = tuple(head["domains"])
    runs = tuple(_run(line, domains) for line in lines_of(file))
    return RunCollection(head["name"], str(file), "rcalign", runs, tuned=head["tuned"])


def _run(line: Mapping[str, Any], domains: tuple[str, ...]) -> Run:
    records: tuple[Record, ...] = ()
    shots = {}
    if "accuracy" in line:
        accuracy = {name: {"test": value} for name, value in line["accuracy"].items()}
        step = line["best_step"]
        records = (Record(step=step, loss=None, metrics={"accuracy": accuracy}, validation=line["validation"]),)
        shots = {step: line["shots"]}
    return Run(
        name=line["id"],
        data=line["data"],
        algorithm=line["label"],
        protocol=line["protocol"],
        domains=domains,
        test_domains=tuple(line["test_domains"]),
        draw=line["draw"],
        trial=line["trial"],
        seed=line["trial"],
        phase=line["phase"],
        hparams=line["hparams"] or {},
        records=records,
        shots=shots,
        seconds=line.get("seconds"),
        lost=line.get("lost"),
        problem=line.get("problem"),
        result=_result(line) if "accuracy" in line else None,
    )


def _result(line: Mapping[str, Any]) -> RunResult:
    """What the records keep of a run's result."""
    accuracy = line["accuracy"]
    return RunResult(
        algorithm=line["label"],
        seed=line["trial"],
        protocol=line["protocol"],
        preset="",
        data=line["data"],
        test_domains=list(line["test_domains"]),
        accuracy=accuracy,
        average=sum(accuracy.values()) / len(accuracy) if accuracy else None,
        worst=min(accuracy.values(), default=None),
        balanced=line["balanced"],
        shots=line["shots"],
        ece=line["ece"],
        validation=line["validation"],
        steps=line["best_step"],
        seconds=line["seconds"],
        best_step=line["best_step"],
        weights="",
    )
