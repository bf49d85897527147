"""From a folder to runs: one run, a tree of run folders, a sweep, or a sweep of another program."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.errors import InputError
from rcalign.store import other_programs
from rcalign.store.names import short_data_name
from rcalign.store.results import RunResult, flat
from rcalign.store.run_folder import STAGE_ONE, Record, RunConfig, RunFolder, read_config
from rcalign.store.run_view import Run, describe_run
from rcalign.store.sweep_folder import SweepFolder

# what says which run it is among those of an experiment, not how it was made
PLACE = ("data", "data_fingerprint", "spec", "algorithm", "test_domains", "protocol", "seed")


@dataclass(frozen=True, eq=False)
class RunCollection:
    """What a report is made from. runs: all that were planned, finished or not. notes: what a reader should know.

    written_by: "rcalign", "DomainBed" or "BoDA". tuned: one draw is chosen for all trials ("tune-then-repeat").
    """

    name: str
    folder: str
    written_by: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    tuned: bool = False

    @property
    def missing(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.problem is not None)


def read_runs(folder: Path | str) -> RunCollection:
    """The runs of a folder, whoever wrote them."""
    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.is_file() else "does not exist"
        raise InputError(f"'{path}' {what}, but a run folder or a folder of runs is expected.")
    found = _Found(path)
    if found.kinds > 1:
        raise InputError(f"'{path}' holds {found.listed()}: report on one of them at a time.")
    name = path.resolve().name
    if found.plans:
        return _read_sweep(found.plans[0])
    if found.domainbed:
        return _sweep(name, path, "DomainBed", *other_programs.read_domainbed(found.domainbed))
    if found.boda:
        return _sweep(name, path, "BoDA", *other_programs.read_boda(found.boda))
    if not found.runs:
        raise InputError(
            f"'{path}' holds no runs: expected folders that 'rcalign train' or 'rcalign sweep' wrote, DomainBed's with "
            "results.jsonl, or BoDA's with results.json."
        )
    runs, notes = _read_folders(found.runs, path)
    return _sweep(name, path, "rcalign", runs, notes)


class _Found:
    """What lies in a tree: sweeps, run folders (not looked into any further), folders of other programs."""

    def __init__(self, root: Path) -> None:
        self.plans: list[Path] = []
        self.runs: list[Path] = []
        self.domainbed: list[Path] = []
        self.boda: list[Path] = []
        for where, folders, files in os.walk(root):
            here = Path(where)
            folders.sort()
            if "plan.json" in files:
                self.plans.append(here)
            elif "config.json" in files and _is_run(here):
                self.runs.append(here)
            elif other_programs.FILES["DomainBed"] in files:
                self.domainbed.append(here)
            elif other_programs.FILES["BoDA"] in files:
                self.boda.append(here)
            else:
                continue
            folders.clear()  # a run's own first stage, a sweep's runs

    @property
    def kinds(self) -> int:
        """How many things lie here of which a report can only be about one."""
        return len(self.plans) + bool(self.runs) + bool(self.domainbed) + bool(self.boda)

    def listed(self) -> str:
        names = [f"the sweep '{path}'" for path in self.plans[:3]]
        names += [f"{len(self.plans) - 3} further sweeps"] if len(self.plans) > 3 else []
        names += [f"{len(self.runs)} runs outside a sweep"] if self.runs else []
        names += [f"{len(self.domainbed)} runs of DomainBed"] if self.domainbed else []
        names += [f"{len(self.boda)} runs of BoDA"] if self.boda else []
        return ", ".join(names[:-1]) + f" and {names[-1]}"


def _is_run(folder: Path) -> bool:
    """A config.json of another program is not ours to read; one that is damaged may be, and is then reported."""
    text = (folder / "config.json").read_text(errors="replace")
    return '"algorithm"' in text and '"test_domains"' in text


def _sweep(name: str, path: Path, written_by: str, runs: Sequence[Run], notes: Sequence[str]) -> RunCollection:
    runs, more = _without_twins(runs)
    return RunCollection(name, str(path), written_by, tuple(runs), (*notes, *more))


def _read_sweep(path: Path) -> RunCollection:
    """A sweep: its plan says which runs there should be."""
    plan = SweepFolder(path).plan()
    runs, notes = [], []
    for planned in plan["runs"]:
        run, cut = _planned_run(path, planned)
        runs.append(run)
        notes += cut
    known = {planned["id"] for planned in plan["runs"]}
    folders = [entry.name for entry in os.scandir(path / "runs")] if (path / "runs").is_dir() else []
    extra = sorted(name for name in folders if name not in known)
    if extra:
        some = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        notes.append(f"{len(extra)} folders in '{path / 'runs'}' are not in the plan and are left out: {some}.")
    runs = _named_domains(runs)
    tuned = plan.get("seed_rule") == "tune-then-repeat"
    return RunCollection(
        str(plan.get("name") or path.resolve().name), str(path), "rcalign", *_uniform(runs, notes), tuned
    )


def _planned_run(path: Path, planned: Mapping[str, Any]) -> tuple[Run, list[str]]:
    folder = path / "runs" / planned["id"]
    if (folder / "config.json").is_file():
        run, notes = _read_run(folder, planned["id"])
    else:
        notes = []
        run = Run(
            name=planned["id"],
            data=short_data_name(str(planned["data"])),
            algorithm=planned["algorithm"],
            protocol=planned.get("protocol") or "lodo",
            domains=(),
            test_domains=tuple(planned.get("test_domains", ())),
            seed=planned.get("seed", 0),
            preset=planned.get("preset") or "",
            hparams=planned.get("hparams") or {},
            problem="not started",
        )
    if run.problem is not None:
        run = dataclasses.replace(run, **_what_happened(path, planned["id"]))
    place = {name: planned[name] for name in ("draw", "trial", "phase", "companion") if name in planned}
    # a variant of an algorithm goes by its own name
    return dataclasses.replace(run, algorithm=planned.get("label") or run.algorithm, **place), notes


def _what_happened(path: Path, run: str) -> dict[str, Any]:
    """What the sweep noted on a run that is not finished. One that diverged or was given up is not trained again."""
    folder = SweepFolder(path)
    given_up = folder.noted("given-up", run)
    if given_up is not None:
        return {"problem": None, "lost": f"given up at step {given_up.get('step', '?')}"}
    failure = folder.noted("failures", run)
    if failure is None:
        return {}
    lines = tuple(str(line) for line in failure.get("last_lines", ()))
    error = str(failure.get("error", "its note is damaged"))
    if failure.get("kind") == "diverged":
        return {"problem": None, "lost": f"diverged: {error}", "last_lines": lines}
    return {"problem": f"failed: {error}", "last_lines": lines}


def _read_folders(folders: Sequence[Path], root: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Runs trained one by one: a seed is a trial, other hyperparameters (or steps, backbone, ...) are another draw."""
    runs, notes = [], []
    for folder in folders:
        run, cut = _read_run(folder, str(folder.relative_to(root)) if folder != root else root.resolve().name)
        runs.append(run)
        notes += cut
    draws: dict[tuple[str, str, str], list[str]] = {}
    numbered = []
    for run in runs:
        settings = draws.setdefault((run.data, run.protocol, run.algorithm), [])
        own = _settings(run)
        if own not in settings:
            settings.append(own)
        numbered.append(dataclasses.replace(run, trial=run.seed, draw=settings.index(own)))
    numbered = _named_domains(numbered)
    return _uniform(numbered + _untested(numbered), notes)


def _settings(run: Run) -> str:
    """Everything that was chosen for a run but its seed, its data and what it holds out."""
    assert run.config is not None
    settings = run.config.identity()
    for name in PLACE:
        settings.pop(name, None)
    return json.dumps(settings, sort_keys=True)


def _untested(runs: Sequence[Run]) -> list[Run]:
    """A seed for which no run holds out a domain that others hold out: the average over domains needs one."""
    found = []
    for (data, protocol), group in _by(runs, lambda run: (run.data, run.protocol)):
        test_sets = dict.fromkeys(run.test_domains for run in group)
        for _, own in _by(group, lambda run: (run.algorithm, run.trial)):
            for held_out in test_sets:
                if len(held_out) == 1 and all(set(run.test_domains) != set(held_out) for run in own):
                    first = own[0]
                    found.append(
                        Run(
                            name=f"seed {first.seed}",
                            data=data,
                            algorithm=first.algorithm,
                            protocol=protocol,
                            domains=first.domains,
                            test_domains=held_out,
                            trial=first.trial,
                            seed=first.seed,
                            problem="not trained",
                        )
                    )
    return found


def _read_run(folder: Path, name: str) -> tuple[Run, list[str]]:
    config = read_config(folder)
    files = RunFolder(folder)
    found, notes = files.read_records()
    records = tuple(dataclasses.replace(record, metrics=flat(record.metrics)) for record in found)
    result, problem = _result(files, config, records)
    if result is not None:
        records = tuple(_with_result(record, result) for record in records)
    seconds = None
    if result is not None:
        seconds = result.seconds + _first_stage_seconds(folder)
    run = Run(
        name=name,
        data=short_data_name(config.data),
        algorithm=config.algorithm,
        protocol=config.protocol,
        domains=tuple(records[0].accuracy) if records else (),
        test_domains=config.test_domains,
        seed=config.seed,
        preset=config.preset,
        hparams=config.hparams,
        records=records,
        shots={} if result is None else {result.best_step: result.shots},
        seconds=seconds,
        problem=problem,
        folder=str(folder),
        config=config,
        result=result,
    )
    return run, notes


def _result(files: RunFolder, config: RunConfig, records: Sequence[Record]) -> tuple[RunResult | None, str | None]:
    """The result of a run, if there is one, and why the run is incomplete, if it is."""
    last = records[-1].step if records else 0
    try:
        result = files.result()
    except InputError:
        return None, "its result.json is damaged"
    if result is None:
        return None, f"stopped at step {last:,} of {config.steps:,}" if records else "started, not yet evaluated"
    if last < result.steps:  # e.g. a line of its records is cut
        return result, f"its records stop at step {last:,} of {result.steps:,}"
    return result, None


def _with_result(record: Record, result: RunResult) -> Record:
    """The checkpoint that a run chose also has the metrics that need the temperature of the finished run."""
    if not (record.averaged or record.step == result.best_step):
        return record
    return dataclasses.replace(record, metrics={**result.metrics, **record.metrics})


def _first_stage_seconds(folder: Path) -> float:
    """Two-stage methods cost both stages."""
    first = folder / STAGE_ONE
    if not first.is_dir():
        return 0.0
    result = RunFolder(first).result()
    return (result.seconds if result else 0.0) + _first_stage_seconds(first)


def _named_domains(runs: Sequence[Run]) -> list[Run]:
    """All domains of a data set, for runs that could not know them: in the data's order, or the plan's."""
    found = []
    orders: dict[str, tuple[str, ...]] = {}
    for data, group in _by(runs, lambda run: run.data):
        known = [run.domains for run in group if run.domains]
        same = len({frozenset(names) for names in known}) == 1 and len(set(known)) == 1
        union = dict.fromkeys(itertools.chain(*known, *(run.test_domains for run in group)))
        orders[data] = (
            known[0] if same and set(known[0]) == set(union) else tuple(union if not known else sorted(union))
        )
    for run in runs:
        found.append(dataclasses.replace(run, domains=orders[run.data]))
    return found


def _uniform(runs: Sequence[Run], notes: Sequence[str]) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Different data under one name get two names; different versions, devices or precisions are said."""
    prints: dict[str, set[str]] = {}
    for run in runs:
        if run.config is not None:
            prints.setdefault(run.data, set()).add(run.config.data_fingerprint)
    twice = {data for data, found in prints.items() if len(found) > 1}
    said = list(notes)
    said += [f"'{data}' is not the same data in all runs: each version has a table of its own." for data in twice]
    renamed = []
    for run in runs:
        if run.data in twice and run.config is not None:
            run = dataclasses.replace(run, data=f"{run.data} ({run.config.data_fingerprint[:6]})")
        renamed.append(run)
    configs = [run.config for run in runs if run.config is not None]
    for what, values in {
        "versions": [", ".join(f"{name} {version}" for name, version in config.versions.items()) for config in configs],
        "devices": [config.device for config in configs],
        "precisions": [config.precision for config in configs],
    }.items():
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        if len(counts) > 1:
            listed = "; ".join(f"{value} ({n} runs)" for value, n in counts.items())
            said.append(f"the runs were made with different {what}: {listed}.")
    return tuple(renamed), tuple(said)


def _without_twins(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Of two runs that are the same, a finished one counts; two finished ones mean that two sweeps were mixed."""
    kept: dict[tuple[Any, ...], Run] = {}
    notes = []
    for run in runs:
        key = (run.data, run.protocol, run.algorithm, frozenset(run.test_domains), run.trial, run.draw, run.phase)
        other = kept.get(key)
        if other is None:
            kept[key] = run
        elif run.problem is None and other.problem is None:
            raise InputError(
                f"'{other.name}' and '{run.name}' are the same run twice ({describe_run(run)}), as if two sweeps lay "
                "in one folder: keep one of them, or report on a folder of its own."
            )
        else:
            kept[key] = other if other.problem is None else run
            notes.append(
                f"'{other.name}' and '{run.name}' are the same run ({describe_run(run)}); the finished one counts."
            )
    return list(kept.values()), notes


def _by(runs: Iterable[Run], key: Any) -> Iterator[tuple[Any, list[Run]]]:
    """Runs that share a key, in order of first appearance."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    yield from groups.items()
