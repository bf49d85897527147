"""From a sweep to its runs. Pure: the same file gives the same runs, with the same ids, in the same order.

A sweep is read from a TOML file by ``plan_file``. The id of a run is a hash of everything that determines its result,
so a plan that grows keeps what is already done. What a run is called (label, draw, phase) is not part of it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rcalign import presets, registry, spaces
from rcalign.data import sources
from rcalign.errors import InputError, unknown
from rcalign.presets import Preset
from rcalign.spaces import Space
from rcalign.training.options import in_plans

FORMAT = 1  # of plan.json
NOT_IN_ID = ("keep", "kept_precision", "accumulate", "log")  # what changes no result, nor the run that it belongs to
DOMAINBED, TUNE_THEN_REPEAT = "domainbed", "tune-then-repeat"
SEED_RULES = (DOMAINBED, TUNE_THEN_REPEAT)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep.

    label: the name it is reported under, that of its algorithm or of a variant. draw: the number of its
    hyperparameters, 0 for the defaults. trial: the repetition it belongs to. phase: "search", or "repeat" for the
    winner of a search. companion: it holds out one domain more, and is there for leave-one-domain-out selection only.
    options: its other fields of ``TrainOptions``.
    """

    id: str
    data: str
    label: str
    algorithm: str
    protocol: str
    preset: str
    test_domains: tuple[str, ...]
    draw: int
    trial: int
    seed: int
    phase: str
    companion: bool
    hparams: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def group(self) -> tuple[str, str, tuple[str, ...]]:
        """Runs among which a draw is chosen."""
        return self.data, self.label, self.test_domains


@dataclass(frozen=True)
class Searched:
    """Where a plan looks for a hyperparameter instead of in its own space; default: draw 0, None for the preset's."""

    space: Space
    default: Any = None


@dataclass(frozen=True)
class EarlyStopping:
    """A draw is given up when, ``after`` so many steps, its best validation accuracy is below the median that its
    ``peers`` (finished draws of the same group and seed, at least so many) had at the same step."""

    after: int
    peers: int = 3


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep file, checked. base: the folder that its paths are relative to.

    seeds: the trials ("domainbed"), or all seeds of the winner ("tune-then-repeat"); search_seeds: those of the search.
    """

    name: str
    base: Path
    data: tuple[str, ...]
    algorithms: tuple[str, ...]
    seed_rule: str = DOMAINBED
    draws: int = 1
    seeds: tuple[int, ...] = (0,)
    search_seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overrides: tuple[Mapping[str, Any], ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    early_stopping: EarlyStopping | None = None

    def located(self, text: str) -> str:
        """A name as it is; a path, relative to the sweep file or else to here, as an absolute one."""
        if not sources.is_name(text):
            for path in (self.base / text, Path(text)):
                if path.exists():
                    return str(path.resolve())
        return text

    def entry(self, run: PlannedRun) -> dict[str, Any]:
        """What ``plan.json`` says of a run."""
        values = {item.name: getattr(run, item.name) for item in dataclasses.fields(run) if item.name != "options"}
        values |= {"data": self.located(run.data), "test_domains": list(run.test_domains), "hparams": dict(run.hparams)}
        weights = {"weights": self.located(run.options["weights"])} if "weights" in run.options else {}
        # a search that keeps no weights still keeps those of the winners that it repeats
        winner = {"keep": "best"} if run.phase == "repeat" and run.options.get("keep") == "none" else {}
        return {**values, **run.options, **weights, **winner}


@dataclass(frozen=True)
class DataSummary:
    """What a plan needs to know of a data set. arrays: rows or series, not images."""

    domains: tuple[str, ...]
    arrays: bool


def _no_summary(data: str) -> DataSummary:
    raise InputError(f"the plan needs the domains of '{data}': list them under [domains], or name a preset too.")


def expand(sweep: Sweep, summarise: Callable[[str], DataSummary] = _no_summary) -> tuple[PlannedRun, ...]:
    """All runs of a sweep; of a "tune-then-repeat" sweep those of the search.

    summarise: asked for a data set whose domains the file does not list, or for which it names no preset.

    >>> sweep = Sweep(name="", base=Path(), data=("pacs",), algorithms=("ERM",), draws=2, seeds=(0, 1, 2),
    ...               settings={"preset": "domainbed"}, domains={"pacs": ("art", "cartoon")})
    >>> runs = expand(sweep)
    >>> len(runs), runs[0].test_domains, runs[0].hparams["learning_rate"], len({run.id for run in runs})
    (12, ('art',), 5e-05, 12)
    """
    import rcalign.algorithms  # noqa: F401  (registers; here, so that a wrong plan is refused before torch is imported)

    drawn: dict[tuple[Any, ...], dict[str, Any]] = {}  # hyperparameters are drawn once for all data and test domains
    runs: dict[str, PlannedRun] = {}
    for data in sweep.data:
        for label in sweep.algorithms:
            for run in _expand_pair(sweep, data, label, summarise, drawn):
                before = runs.setdefault(run.id, run)
                if before.label != run.label:
                    raise InputError(
                        f"'{before.label}' and '{run.label}' describe the same runs: make them differ, or drop one."
                    )
    return tuple(runs.values())  # two draws that came out equal are one run


def _expand_pair(
    sweep: Sweep,
    data: str,
    label: str,
    summarise: Callable[[str], DataSummary],
    drawn: dict[tuple[Any, ...], dict[str, Any]],
) -> Iterable[PlannedRun]:
    """The runs of one data set and one algorithm: by seed, then by test domains, then by draw."""
    settings = _settings_of(sweep, data, label)
    entry = registry.get(settings.get("algorithm", label))
    preset = _preset(settings, lambda: summarise(data))
    protocol = settings.get("protocol") or preset.protocol
    options: dict[str, Any] = {
        "steps": preset.steps,
        "evaluate_every": preset.evaluate_every,
        **{key: settings[key] for key in in_plans() if key in settings and key not in ("preset", "protocol")},
    }
    if options.get("freeze_backbone") and entry.traits.images_only:
        raise InputError(f"{label} works on images, but freeze_backbone gives it features: leave one of them out.")
    fixed, search = settings.get("hparams", {}), settings.get("search", {})
    space = (entry.name, preset.name, json.dumps(fixed, sort_keys=True), repr(search))
    held_out_sets = _held_out_sets(sweep, data, protocol, settings, summarise)
    by_trial = sweep.seed_rule == DOMAINBED
    for seed in sweep.seeds if by_trial else sweep.search_seeds:
        for held_out, companion in held_out_sets.items():
            for draw in range(sweep.draws):
                key = (*space, _draw_seed(draw, seed if by_trial else 0))
                if key not in drawn:
                    drawn[key] = _draw(label, entry, preset.name, key[-1], fixed, search)
                if protocol == "adapt":
                    registry.check_adapts(entry.name, entry.traits, drawn[key])
                run = PlannedRun(
                    id="",
                    data=data,
                    label=label,
                    algorithm=entry.name,
                    protocol=protocol,
                    preset=preset.name,
                    test_domains=held_out,
                    draw=draw,
                    trial=seed,
                    seed=seed,
                    phase="search",
                    companion=companion,
                    hparams=drawn[key],
                    options=options,
                )
                yield _identified(run, entry)


def _identified(run: PlannedRun, entry: registry.RegisteredAlgorithm) -> PlannedRun:
    """The run with its id: of everything that determines its result, as the file says it."""
    later = _added_later(entry.algorithm.Hparams)  # type: ignore[arg-type]  # a class can be hashed
    what = [
        run.data,
        run.algorithm,
        run.protocol,
        run.preset,
        sorted(run.test_domains),
        run.seed,
        {name: value for name, value in run.hparams.items() if name not in later or value != later[name]},
        {name: value for name, value in run.options.items() if name not in NOT_IN_ID},
    ]
    text = json.dumps([FORMAT, *what], sort_keys=True)
    return dataclasses.replace(run, id=hashlib.sha256(text.encode()).hexdigest()[:16])


@functools.cache  # the same for every run of an algorithm
def _added_later(hparams: type) -> Mapping[str, Any]:
    """The hyperparameters that were added after the first version, with the defaults that they came with: runs that
    have these keep the ids that they had."""
    found = {}
    known = spaces.fields_of(hparams)
    for item in dataclasses.fields(hparams):
        field = known[item.name]
        if field.added_later:
            found[item.name] = item.default if field.first_default is spaces.KEEP else field.first_default
    return found


def _settings_of(sweep: Sweep, data: str, label: str) -> dict[str, Any]:
    """The file's own settings, then the variant's, then the overrides that fit, in order; the last one wins."""
    layers = [sweep.settings, sweep.variants.get(label, {})]
    algorithm = sweep.variants.get(label, {}).get("algorithm", label)
    for override in sweep.overrides:
        fits = data in override.get("data", sweep.data)
        if fits and ("algorithm" not in override or {label, algorithm} & set(override["algorithm"])):
            layers.append({key: value for key, value in override.items() if key not in ("data", "algorithm")})
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = {**merged.get(key, {}), **value} if key in ("hparams", "search") else value
    return merged


def _preset(settings: Mapping[str, Any], summarise: Callable[[], DataSummary]) -> Preset:
    """The preset that the file names; without one, that of the kind of data."""
    name = settings.get("preset")
    return presets.choose_preset(
        name, arrays=name is None and summarise().arrays, freeze_backbone=settings.get("freeze_backbone", False)
    )


def _held_out_sets(
    sweep: Sweep, data: str, protocol: str, settings: Mapping[str, Any], summarise: Callable[[str], DataSummary]
) -> dict[tuple[str, ...], bool]:
    """What is held out, in order -> whether only as a companion."""
    if protocol in ("mdlt", "wilds"):
        if "test_domains" in settings or settings.get("pairs"):
            raise InputError(f"protocol {protocol} says which domains are tested: leave test_domains and pairs out.")
        return {(): False}
    domains = sweep.domains.get(data) or summarise(data).domains
    given = settings.get("test_domains", "each")
    asked = [(name,) for name in domains] if given == "each" else given
    for held_out in asked:
        for name in held_out:
            if name not in domains:
                raise unknown(f"domain of '{data}'", name, domains)
        if len(set(held_out)) == len(domains):
            raise InputError(f"all {len(domains)} domains of '{data}' are held out: leave at least one to train on.")
    found = dict.fromkeys(asked, False)
    if settings.get("pairs"):
        for held_out in asked:
            for name in domains:
                more = tuple(known for known in domains if known in (*held_out, name))
                if name not in held_out and len(more) < len(domains):
                    found.setdefault(more, True)
    return found


def _draw_seed(draw: int, trial: int) -> int:
    """Draw 0 is the default in every trial; the others differ from trial to trial."""
    if draw == 0 or trial == 0:
        return draw
    return int.from_bytes(hashlib.sha256(f"draw {draw} of trial {trial}".encode()).digest()[:8], "little")


def _draw(
    label: str,
    entry: registry.RegisteredAlgorithm,
    preset: str,
    seed: int,
    fixed: Mapping[str, Any],
    search: Mapping[str, Searched],
) -> dict[str, Any]:
    """The hyperparameters of a draw, of the first stage too where there is one. What is fixed is not searched."""
    stages = [registry.get(entry.traits.stage_one)] if entry.traits.stage_one is not None else []
    kinds = [stage.algorithm.Hparams for stage in [*stages, entry]]
    known = {name for kind in kinds for name in spaces.fields_of(kind)}
    for name in (*fixed, *search):
        if name not in known:
            raise unknown(f"hyperparameter of {label}", name, known)
    if seed == 0:
        sampled = {name: searched.default for name, searched in search.items() if searched.default is not None}
    else:
        sampled = {name: spaces.sample_value(searched.space, seed, name) for name, searched in search.items()}
    values: dict[str, Any] = {}
    for kind in kinds:
        own = {name: value for name, value in {**sampled, **fixed}.items() if name in spaces.fields_of(kind)}
        values |= dataclasses.asdict(spaces.draw(kind, preset, seed, **own))  # type: ignore[call-overload]
    return values


# --- tune, then repeat ---------------------------------------------------------------------------------------------


def repeats(
    sweep: Sweep, runs: Sequence[PlannedRun], validation: Mapping[str, float | None]
) -> tuple[tuple[PlannedRun, ...], tuple[PlannedRun, ...]]:
    """The winners of a search with the seeds that the search did not use, and the runs that groups still wait for.

    validation: run id -> validation accuracy on the source domains, None for a draw that was tried and cannot win (it
    diverged or was given up). The winner is the draw with the largest mean over the search seeds, of equals the first.

    >>> sweep = Sweep(name="", base=Path(), data=("pacs",), algorithms=("ERM",), draws=2, seeds=(0, 1, 2),
    ...               settings={"preset": "mdlt"}, seed_rule="tune-then-repeat")
    >>> first, second = expand(sweep)
    >>> again, waiting = repeats(sweep, [first, second], {first.id: 0.5, second.id: 0.75})
    >>> [(run.draw, run.seed, run.phase) for run in again], waiting
    ([(1, 1, 'repeat'), (1, 2, 'repeat')], ())
    """
    if sweep.seed_rule != TUNE_THEN_REPEAT:
        return (), ()
    groups: dict[Any, list[PlannedRun]] = {}
    for run in runs:
        if run.phase == "search" and not run.companion:
            groups.setdefault(run.group, []).append(run)
    again: list[PlannedRun] = []
    waiting: list[PlannedRun] = []
    for group in groups.values():
        missing = [run for run in group if run.id not in validation]
        waiting += missing
        winner = None if missing else _winner(group, validation)
        if winner is not None:
            for seed in sweep.seeds:
                if seed not in sweep.search_seeds:
                    repeated = dataclasses.replace(winner, seed=seed, trial=seed, phase="repeat")
                    again.append(_identified(repeated, registry.get(winner.algorithm)))
    return tuple(again), tuple(waiting)


def _winner(group: Sequence[PlannedRun], validation: Mapping[str, float | None]) -> PlannedRun | None:
    best, best_score = None, -1.0
    for draw in dict.fromkeys(run.draw for run in group):
        own = [run for run in group if run.draw == draw]
        values = [validation[run.id] for run in own]
        if any(value is None for value in values):
            continue
        score = sum(value for value in values if value is not None) / len(values)
        if score > best_score:
            best, best_score = own[0], score
    return best


def hopeless(
    rule: EarlyStopping, curve: Sequence[tuple[int, float]], peers: Sequence[Sequence[tuple[int, float]]]
) -> bool:
    """Whether a draw is given up. curve and peers: (step, validation accuracy), by step.

    >>> rule = EarlyStopping(after=200, peers=2)
    >>> peers = [[(100, 0.3), (200, 0.7)], [(100, 0.4), (200, 0.8)]]
    >>> hopeless(rule, [(100, 0.2)], peers), hopeless(rule, [(100, 0.2), (200, 0.6)], peers)
    (False, True)
    """
    if not curve or curve[-1][0] < rule.after:
        return False
    step = curve[-1][0]
    theirs = sorted(max(value for at, value in peer if at <= step) for peer in peers if peer and peer[-1][0] >= step)
    if len(theirs) < rule.peers:
        return False
    return max(value for _, value in curve) < statistics.median(theirs)
