"""Other people's sweeps: folders of DomainBed's ``results.jsonl`` and of BoDA's ``results.json``.

Both programs append one JSON object per evaluation, with the arguments of the run in every one, and leave a file
``done`` when a run ends. Their "in" part (80 %) of a held-out domain is what they test on, their "out" part (20 %) what
they choose by.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.errors import InputError
from rcalign.store.json_files import read_lines
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run

# The order in which both programs number the domains of a data set: their rows say only env0, env1, ...
DOMAINS = {
    "VLCS": ("C", "L", "S", "V"),
    "PACS": ("A", "C", "P", "S"),
    "OfficeHome": ("A", "C", "P", "R"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("clip", "info", "paint", "quick", "real", "sketch"),
    "SVIRO": ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "WILDSCamelyon": tuple(f"hospital_{k}" for k in range(5)),
    "WILDSFMoW": tuple(f"region_{k}" for k in range(6)),
}
Evaluation = Mapping[str, Any]  # one evaluation
SHOT_NAMES = {"many": "sht_many", "medium": "sht_median", "few": "sht_few", "zero": "sht_zero"}
FILES = {"DomainBed": "results.jsonl", "BoDA": "results.json"}


def read_domainbed(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs of a DomainBed sweep, those it lacks included, and what a reader should know."""
    runs, notes = _read(folders, FILES["DomainBed"], domainbed_run)
    return runs + _absent(runs), notes


def read_boda(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs of a BoDA (MDLT) sweep, those it lacks included, and what a reader should know."""
    runs, notes = _read(folders, FILES["BoDA"], boda_run)
    return runs + _absent(runs), notes


def domainbed_run(rows: Sequence[Evaluation], name: str = "", folder: str = "") -> Run:
    """One run from its rows."""
    args = rows[0]["args"]
    names = _domain_names(args["dataset"], rows[0], r"env(\d+)_in_acc")
    held_out = {names[k] for k in args["test_envs"]}
    records = []
    for row in sorted(rows, key=lambda row: row["step"]):
        accuracy = {}
        for k, domain in names.items():
            inner = "test" if domain in held_out else "train"
            accuracy[domain] = {"val": row[f"env{k}_out_acc"], inner: row[f"env{k}_in_acc"]}
        sources = [accuracy[domain]["val"] for domain in names.values() if domain not in held_out]
        records.append(_record(row, accuracy, float(np.mean(sources))))
    return Run(
        name=name,
        data=args["dataset"],
        algorithm=args["algorithm"],
        protocol="lodo",
        domains=tuple(names.values()),
        test_domains=tuple(names[k] for k in args["test_envs"]),
        draw=args.get("hparams_seed", 0),
        trial=args.get("trial_seed", 0),
        seed=args.get("seed", 0),
        hparams=rows[0].get("hparams", {}),
        records=tuple(records),
        seconds=_seconds(rows),
        folder=folder,
    )


def boda_run(rows: Sequence[Evaluation], name: str = "", folder: str = "") -> Run:
    """One run from its rows."""
    args = rows[0]["args"]
    names = _domain_names(args["dataset"], rows[0], r"env(\d+)_test")
    records, shots = [], {}
    for row in sorted(rows, key=lambda row: row["step"]):
        accuracy = {domain: {"val": row[f"env{k}_val"], "test": row[f"env{k}_test"]} for k, domain in names.items()}
        records.append(_record(row, accuracy, float(np.mean([parts["val"] for parts in accuracy.values()]))))
        # BoDA writes -1 for a group that has no pairs
        found = {shot: row.get(key, -1) for shot, key in SHOT_NAMES.items()}
        shots[row["step"]] = {shot: None if value == -1 else value for shot, value in found.items()}
    return Run(
        name=name,
        data=args["dataset"],
        algorithm=args["algorithm"],
        protocol="mdlt",
        domains=tuple(names.values()),
        test_domains=(),
        draw=args.get("hparams_seed", 0),
        trial=args.get("seed", 0),
        seed=args.get("seed", 0),
        hparams=rows[0].get("hparams", {}),
        records=tuple(records),
        shots=shots,
        seconds=_seconds(rows),
        folder=folder,
    )


def _read(
    folders: Sequence[Path], file: str, make: Callable[[Sequence[Evaluation], str, str], Run]
) -> tuple[list[Run], list[str]]:
    runs: list[Run] = []
    notes: list[str] = []
    asked: list[int | None] = []  # the steps that a run was asked for
    for folder in folders:
        rows, cut = read_lines(folder / file)
        notes += cut
        steps = {row.get("step"): row for row in rows}
        if len(steps) < len(rows):
            notes.append(f"'{folder / file}' has several rows for a step, as after a restart: the later ones count.")
            rows = list(steps.values())
        if not rows:
            notes.append(f"'{folder / file}' has no readable line: the run is left out.")
            continue
        try:
            runs.append(make(rows, folder.name, str(folder)))
            asked.append(rows[0]["args"].get("steps"))
        except (KeyError, TypeError, IndexError) as error:
            raise InputError(
                f"'{folder / file}' is not what the program writes ({type(error).__name__}: {error}): move it away, or "
                "restore it."
            ) from None
    marked = any((folder / "done").exists() for folder in folders)
    last_steps = [run.records[-1].step for run in runs]
    usual = {run.data: max(s for s, r in zip(last_steps, runs, strict=True) if r.data == run.data) for run in runs}
    finished = []
    for run, wanted, last in zip(runs, asked, last_steps, strict=True):
        until = wanted - 1 if wanted is not None else usual[run.data]  # steps are counted from 0
        problem = None
        if last < until:
            problem = f"stops at step {last} of {until}"
        elif marked and not (Path(run.folder) / "done").exists():
            problem = "has no file 'done'"
        finished.append(dataclasses.replace(run, problem=problem))
    return finished, notes


def _absent(runs: Sequence[Run]) -> list[Run]:
    """The runs that a sweep of this shape should have: per data set and algorithm, every trial, draw and test set.

    A trial with one draw only is a repetition and lacks no other draw.
    """
    found = []
    for data, algorithm in dict.fromkeys((run.data, run.algorithm) for run in runs):
        group = [run for run in runs if (run.data, run.algorithm) == (data, algorithm)]
        test_sets = _test_sets([run for run in runs if run.data == data])
        have = {(run.trial, run.draw, frozenset(run.test_domains)) for run in group}
        searched = {run.draw for run in group if any(r.trial == run.trial and r.draw != run.draw for r in group)}
        for trial in sorted({run.trial for run in group}):
            draws = sorted({run.draw for run in group if run.trial == trial})
            if len(draws) > 1:
                draws = list(range(min(searched), max(searched) + 1))
            for draw, test_set in itertools.product(draws, test_sets):
                if (trial, draw, frozenset(test_set)) not in have:
                    found.append(
                        dataclasses.replace(
                            group[0],
                            name=f"trial {trial}, draw {draw}",
                            test_domains=test_set,
                            draw=draw,
                            trial=trial,
                            hparams={},
                            records=(),
                            shots={},
                            seconds=None,
                            problem="is not in the folder",
                            folder="",
                        )
                    )
    return found


def _test_sets(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Every domain alone, and every pair if there are pairs: those that DomainBed holds out."""
    sizes = {len(run.test_domains) for run in runs}
    domains = runs[0].domains
    return [pair for size in sorted(sizes) for pair in itertools.combinations(domains, size)]


def _record(row: Evaluation, accuracy: Mapping[str, Mapping[str, float]], validation: float) -> Record:
    known = re.compile(r"env\d+_|sht_|(step|loss|args|hparams|class_acc)$")
    logs = {name: float(value) for name, value in row.items() if not known.match(name) and _is_number(value)}
    return Record(
        step=row["step"], loss=row.get("loss"), metrics={"accuracy": accuracy}, validation=validation, logs=logs
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _domain_names(data: str, row: Evaluation, pattern: str) -> dict[int, str]:
    """The number of a domain -> its name, in order of numbers (env2 before env10)."""
    numbers = sorted(int(found[1]) for found in (re.fullmatch(pattern, key) for key in row) if found)
    known = DOMAINS.get(data, ())
    return {k: known[k] if k < len(known) else f"env{k}" for k in numbers}


def _seconds(rows: Sequence[Evaluation]) -> float | None:
    """Seconds of training steps: each row's mean step time by the steps since the row before."""
    ordered = sorted(rows, key=lambda row: row["step"])
    if any("step_time" not in row for row in ordered):
        return None
    steps = [row["step"] for row in ordered]
    return float(sum(row["step_time"] * n for row, n in zip(ordered, np.diff([-1, *steps]), strict=True)))
