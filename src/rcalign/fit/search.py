"""Compares candidates by leaving one domain out at a time, within a budget, by successive halving.

A round trains every remaining candidate once for each domain left out, for the same number of steps; the better ones
go on to a round of more steps. Where the budget allows all steps for all candidates there is one round. What a step
takes is measured first. The plan is written down, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.source import Dataset
from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.fit.folds import EVALUATIONS, Fold, Outcome, folder_of, read_outcome, run_fold
from rcalign.fit.portfolio import Candidate
from rcalign.interrupts import asked_to_stop
from rcalign.sweeps.progress import duration

PROBE_STEPS = 30
FEWEST_STEPS = 40  # of a round: fewer say nothing
SAFETY = 1.25  # how much longer than measured a fold may take
RAY_START = 10.0  # seconds until Ray and its workers are there, at least
WORTH = 6.0  # how many times as long as their start processes must be of use
PAGE = 6.0  # seconds for what follows the last training


class Clock:
    """How much of the budget is left. budget: seconds. begun: the time.monotonic() from which it counts, or now."""

    def __init__(self, budget: float, begun: float | None = None) -> None:
        self.budget = budget
        self._started = time.monotonic() if begun is None else begun

    @property
    def spent(self) -> float:
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        return self.budget - self.spent


def seconds_of(text: str) -> float:
    """A budget in seconds, from text such as "30m", "90s", "1.5h" or "0".

    >>> seconds_of("30m"), seconds_of("90s"), seconds_of("1.5h"), seconds_of("0"), seconds_of("45")
    (1800.0, 90.0, 5400.0, 0.0, 45.0)
    """
    plain = text.strip().lower()
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(plain[-1:])
    number = plain[:-1] if unit is not None else plain
    try:
        value = float(number) * (unit or 1.0)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise InputError(f"the budget is '{text}', but a time such as 30m, 90s, 1h or 0 is expected.")
    return value


@dataclass(frozen=True)
class Round:
    """Candidates that were trained for some steps. scores: candidate -> domain -> accuracy, of finished folds."""

    steps: int
    candidates: tuple[Candidate, ...]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    folds: Mapping[tuple[str, str], Fold]

    def complete(self, domains: Sequence[str]) -> list[str]:
        """Candidates that have a result on every domain."""
        return [c.name for c in self.candidates if all(d in self.outcomes[c.name] for d in domains)]

    def scores(self, domains: Sequence[str]) -> dict[str, list[float]]:
        """The scores of the candidates that are complete."""
        return {name: [self.outcomes[name][d].accuracy for d in domains] for name in self.complete(domains)}


@dataclass
class Search:
    """The state of a comparison. say: a line that stays. show: (done, planned, text) of what goes on."""

    dataset: Dataset
    data: str
    out: Path
    clock: Clock
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    say: Callable[[str], None] = lambda line: None
    show: Callable[[int, int, str], None] = lambda done, planned, text: None
    rule: str = "mean"
    failed: dict[str, str] = field(default_factory=dict)
    seconds_per_step: float = 0.0
    overhead: float = 0.0
    start_seconds: float = RAY_START
    ratios: list[float] = field(default_factory=list)  # of the seconds of a fold to those that were expected

    @property
    def domains(self) -> tuple[str, ...]:
        return self.dataset.domains

    # --- costs ---------------------------------------------------------------------------------------------------

    def probe(self, candidate: Candidate, steps: int = PROBE_STEPS) -> None:
        """Measures what a step and a fold take, once; a plan that was written before is kept."""
        file = self.out / "costs.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("fingerprint") == self.dataset.fingerprint and known.get("frozen") == candidate.frozen:
            self.seconds_per_step, self.overhead = known["seconds_per_step"], known["overhead"]
            return
        few = steps < EVALUATIONS  # then an evaluation would be taken for part of each step: it is measured apart
        first, second = (self._probed(candidate, n, 1 if few else EVALUATIONS) for n in (steps, 3 * steps))
        self.seconds_per_step = max(1e-4, (second - first) / (2 * steps))
        self.overhead = max(0.05, first - steps * self.seconds_per_step)
        if few:
            third = self._probed(candidate, 3 * steps, 3)
            self.overhead += (EVALUATIONS - 1) * max(0.0, (third - second) / 2)
        plan = {
            "fingerprint": self.dataset.fingerprint,
            "frozen": candidate.frozen,
            "seconds_per_step": self.seconds_per_step,
            "overhead": self.overhead,
        }
        write_whole(file, json.dumps(plan).encode())

    def _probed(self, candidate: Candidate, steps: int, evaluations: int) -> float:
        """Seconds that a short fold takes."""
        folder = self.out / "folds" / f".probe-{steps}-{evaluations}-{candidate.frozen}"
        fold = Fold(candidate, self.domains[0], steps, str(folder), self.seed, self.settings, evaluations)
        begun = time.monotonic()
        outcome = run_fold(self.dataset, fold)
        if outcome.end == "interrupted":
            raise KeyboardInterrupt
        if outcome.end == "failed":
            raise InputError(outcome.error)
        return time.monotonic() - begun

    @property
    def slowness(self) -> float:
        """How much longer folds take than was measured first, as when other programs need the machine; at least 1."""
        return max(1.0, float(np.median(self.ratios))) if self.ratios else 1.0

    def learn_from(self, fold: Fold, seconds: float) -> None:
        """Takes what a fold has taken into account for what follows."""
        if fold.candidate.network and self.seconds_per_step > 0:
            self.ratios.append(seconds / (self.overhead + fold.steps * self.seconds_per_step * fold.candidate.cost))

    def seconds(self, candidate: Candidate, steps: int) -> float:
        """The seconds that a fold of a candidate may take."""
        if not candidate.network:
            return SAFETY * (2.0 + len(self.dataset) / 5000)
        return SAFETY * self.slowness * (self.overhead + steps * self.seconds_per_step * candidate.cost)

    def round_seconds(self, candidates: Sequence[Candidate], steps: int) -> float:
        """The seconds that a round may take, on all workers."""
        return sum(self.seconds(c, steps) for c in candidates) * len(self.domains) / self.workers

    def final_seconds(self, steps: int) -> float:
        """The seconds that the final model may take: all domains, more rows, the slowest candidate."""
        more = len(self.domains) / max(1, len(self.domains) - 1)
        return SAFETY * self.slowness * (self.overhead + 1.3 * more * steps * self.seconds_per_step) + PAGE

    def steps_left(self) -> int:
        """The steps that one training may have in what is left of the budget, at least a few."""
        left = self.clock.left - PAGE - SAFETY * self.slowness * self.overhead
        return max(FEWEST_STEPS, int(left / (SAFETY * self.slowness * 1.3 * self.seconds_per_step)))

    # --- rounds --------------------------------------------------------------------------------------------------

    def run(self, candidates: Sequence[Candidate], full_steps: int) -> list[Round]:
        """All rounds, the last one being what is chosen from."""
        remembered = self._remembered()
        available = self.clock.left - (self.start_seconds if self.workers > 1 else 0)
        steps, chosen = full_steps, list(candidates)
        if remembered:
            steps = remembered[0]["steps"]
            known = [c for c in candidates if c.name in remembered[0]["candidates"]]
            chosen = [*known, *(c for c in candidates if c not in known)]
            while len(chosen) > len(known) and not self._fits(chosen[len(known) :], steps, available):
                chosen.pop()
        elif not self._fits(chosen, full_steps, available):
            steps, chosen = self._first_round(chosen, full_steps, available)
        if not chosen:
            return []
        if len(chosen) < len(candidates):
            left = ", ".join(c.name for c in candidates if c not in chosen)
            self.say(f"The budget has no room for: {left}.")
        first = self._round(chosen, steps, position=0)
        rounds = [first]
        if steps >= full_steps or self.clock.left <= self.final_seconds(steps):
            return rounds
        ranked = self._ranked(first)
        if len(ranked) < 2:
            return rounds
        available = self.clock.left - (self.start_seconds if self.workers > 1 else 0)
        keep = ranked[: max(2, math.ceil(len(ranked) / 3))]
        boosting = [c for c in chosen if not c.network]
        more = self._affordable(keep, full_steps, available)
        if len(remembered) > 1:
            more = remembered[1]["steps"]
            keep = [c for c in chosen if c.name in remembered[1]["candidates"] and c.network]
        if more >= 1.5 * steps:
            self.say(f"Going on with {' and '.join(c.name for c in keep)} for {more} steps.")
            second = self._round([*keep, *boosting], more, position=1)
            if len(second.complete(self.domains)) > len(boosting):
                rounds.append(second)
        return rounds

    def _first_round(
        self, candidates: Sequence[Candidate], full_steps: int, available: float
    ) -> tuple[int, list[Candidate]]:
        """As many candidates as fit with few steps, in their order, and the steps that half of the time allows."""
        chosen = list(candidates)
        while chosen and not self._fits(chosen, FEWEST_STEPS, available):
            chosen.pop()
        if not chosen:
            return 0, []
        share = 1.0 if len(chosen) < 3 else 0.55
        return max(FEWEST_STEPS, self._affordable(chosen, full_steps, share * available)), chosen

    def _fits(self, candidates: Sequence[Candidate], steps: int, available: float) -> bool:
        """Whether a round and the final model after it fit into a time."""
        return self.round_seconds(candidates, steps) + self.final_seconds(steps) <= available

    def _affordable(self, candidates: Sequence[Candidate], most: int, available: float) -> int:
        """The steps that candidates may have in a time, in which the final model is trained as well."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(candidates, middle, available):
                low = middle
            else:
                high = middle - 1
        return low

    def _ranked(self, done: Round) -> list[Candidate]:
        scores = done.scores(self.domains)
        value = np.mean if self.rule == "mean" else np.min
        names = sorted(scores, key=lambda name: -float(value(scores[name])))
        by_name = {c.name: c for c in done.candidates}
        return [by_name[name] for name in names if by_name[name].network]

    def _round(self, candidates: Sequence[Candidate], steps: int, position: int) -> Round:
        self._remember(position, candidates, steps)
        folds = {
            (c.name, d): Fold(c, d, steps, folder_of(self.out, c, d, k, steps), self.seed, self.settings)
            for c in candidates
            for k, d in enumerate(self.domains)
        }
        outcomes: dict[str, dict[str, Outcome]] = {c.name: {} for c in candidates}
        todo = []
        for (name, domain), fold in folds.items():
            known = read_outcome(fold)
            if known is None:
                todo.append(fold)
            else:
                outcomes[name][domain] = known
        done = Round(steps, tuple(candidates), outcomes, folds)
        if todo:
            kept = len(folds) - len(todo)
            found = f" ({kept} of them done before)" if kept else ""
            self.say(
                f"Comparing {len(candidates)} methods, {steps} steps each, leaving out each of {len(self.domains)} "
                f"domains: {len(folds)} trainings{found}."
            )
            self._train(todo, done)
        return done

    def _train(self, folds: Sequence[Fold], done: Round) -> None:
        total = len(folds)
        count = 0

        def out_of_time() -> bool:
            return self.clock.left <= self.final_seconds(done.steps)

        def ended(position: int, outcome: Outcome | None) -> None:
            nonlocal count
            fold = folds[position]
            name = fold.candidate.name
            if outcome is None:
                outcome = Outcome("failed" if not out_of_time() else "interrupted", error="its process died")
            if outcome.end == "finished":
                count += 1
                self.learn_from(fold, outcome.seconds)
                done.outcomes[name][fold.domain] = outcome  # type: ignore[index]
                if len(done.outcomes[name]) == len(self.domains):
                    values = [result.accuracy for result in done.outcomes[name].values()]
                    self.say(f"  {name}: mean {100 * np.mean(values):.1f} %, worst {100 * min(values):.1f} %")
            elif outcome.end == "failed" and name not in self.failed:
                self.failed[name] = outcome.error
                self.say(f"  {name} failed without '{fold.domain}': {outcome.error}")
            self.show(count, total, self._progress(fold, done))

        self.show(0, total, f"{folds[0].candidate.name} without {folds[0].domain}")
        if self.workers > 1:
            from rcalign.sweeps.run_on_ray import run_tasks

            run_tasks(run_fold, [(self.data, fold) for fold in folds], self.workers, ended, out_of_time)
            return
        with asked_to_stop() as stopped, interrupt_after(self.clock.left - self.final_seconds(done.steps)):
            for position, fold in enumerate(folds):
                if fold.candidate.name in self.failed:
                    continue
                self.show(count, total, f"{fold.candidate.name} without {fold.domain}")
                outcome = run_fold(self.dataset, fold)
                ended(position, outcome)
                if out_of_time():
                    return
                if stopped.is_set() or outcome.end == "interrupted":
                    raise KeyboardInterrupt

    def _progress(self, fold: Fold, done: Round) -> str:
        scores = done.scores(self.domains)
        text = f"{fold.candidate.name} without {fold.domain}"
        if scores:
            value = np.mean if self.rule == "mean" else np.min
            best = max(scores, key=lambda name: float(value(scores[name])))
            text += f", best so far {best} {100 * float(value(scores[best])):.1f} %"
        if math.isfinite(self.clock.budget):
            text += f", {duration(max(0.0, self.clock.left))} of the budget left"
        return text

    # --- the plan ------------------------------------------------------------------------------------------------

    def _remembered(self) -> list[dict[str, Any]]:
        file = self.out / "rounds.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        return list(known["rounds"]) if known.get("fingerprint") == self.dataset.fingerprint else []

    def _remember(self, position: int, candidates: Sequence[Candidate], steps: int) -> None:
        rounds = self._remembered()[:position]
        rounds.append({"steps": steps, "candidates": [c.name for c in candidates]})
        text = json.dumps({"fingerprint": self.dataset.fingerprint, "rounds": rounds})
        write_whole(self.out / "rounds.json", text.encode())


def start_seconds(clock: Clock) -> float:
    """How long further processes take to be there, from how long this one took."""
    return max(RAY_START, 1.5 * clock.spent)


def workers_for(left: float, start: float) -> int:
    """Processes to use: this one where others would hardly be there when the time is over, else one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if left < WORTH * start else cores


class interrupt_after:
    """Asks this process to stop after some seconds, as Ctrl-C would; only where signals arrive (the main thread)."""

    def __init__(self, seconds: float) -> None:
        self._timer: threading.Timer | None = None
        if threading.current_thread() is threading.main_thread() and math.isfinite(seconds):
            self._timer = threading.Timer(max(0.0, seconds), signal.raise_signal, [signal.SIGINT])
            self._timer.daemon = True

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Plain values of a candidate."""
    return {**dataclasses.asdict(candidate), "hparams": dict(candidate.hparams)}
