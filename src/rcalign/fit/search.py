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
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.source import Dataset
from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.fit import boosting
from rcalign.fit.folds import EVALUATIONS, Fold, Outcome, folder_of, read_outcome, run_fold
from rcalign.fit.portfolio import Candidate
from rcalign.fit.timing import Clock, Pace, StepTimes, at_once, interrupt_when, threads_of_fold, torch_threads
from rcalign.interrupts import asked_to_stop
from rcalign.sweeps.progress import duration

PROBE_STEPS = 18
PROBE_EVALUATIONS = 3
PROBE_SHARE = 0.25  # of what is left of the budget, at most
AGAIN_SHARE = 0.1  # of what is left: a first measurement that took less is repeated
FEWEST_STEPS = 40  # of a round, unless fewer are asked for: fewer say nothing
SAFETY = 1.25  # how much longer than measured a fold may take
DEAR = 1.2  # the cost of a step of a dear method, in those of plain training
RAY_START = 10.0  # seconds until Ray and its workers are there, at least
WORTH = 6.0  # how many times as long as their start processes must be of use
RECENT = 5  # folds that say how fast the machine is now


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
    omitted: list[str] = field(default_factory=list)  # what the budget had no room for, in sentences
    seconds_per_step: float = 0.0
    overhead: float = 0.0
    warm_up: float = 0.0  # seconds by which the first fold of a process takes longer
    cold: int = 0  # processes that have trained no fold yet
    start_seconds: float = RAY_START
    reserve: float = 0.0  # seconds that are kept for what follows the comparison, if the final model takes fewer
    least_tuning: tuple[float, float] | None = None  # seconds of a step and overhead that left no time for fine-tuning
    preparing: float | None = None  # seconds that went before the first round, starting the workers included
    boosting_seconds: float = 0.0  # of the longest fold of gradient boosting so far
    processes: ExitStack = field(default_factory=ExitStack)  # ends Ray
    ratios: list[float] = field(default_factory=list)  # of the seconds of a fold to those that were expected

    @property
    def domains(self) -> tuple[str, ...]:
        return self.dataset.domains

    # --- costs ---------------------------------------------------------------------------------------------------

    def probe(self, candidate: Candidate) -> bool:
        """Measures what a step and a fold take, with as many threads as a fold will have.

        The first training in a process takes longer than the others, since much is imported with it. So a second one is
        measured, unless the first took a good part of the time.
        False if that alone takes more than its share of the time: then there is none to compare methods in.
        """
        if self.recall_costs(candidate):
            return True
        limit = (1 - PROBE_SHARE) * self.clock.left
        cold = self._probe_once(candidate, limit, "cold")
        if cold is None:
            return False
        found = cold
        if cold < AGAIN_SHARE * self.clock.left:
            found = self._probe_once(candidate, limit, "warm") or cold
        self.warm_up = max(0.0, cold - found)
        self.cold = self.workers if self.workers > 1 else 0  # this process is warm by now
        self.keep_costs(candidate)
        return True

    def _probe_once(self, candidate: Candidate, limit: float, name: str) -> float | None:
        """Trains a short fold for what its steps and the rest take. -> its seconds; None if time was up before."""
        times = StepTimes()
        folder = self.out / "folds" / f".probe-{candidate.frozen}-{name}"
        # what an earlier call left, with other threads or killed, has nothing to measure
        shutil.rmtree(folder, ignore_errors=True)
        fold = Fold(candidate, self.domains[0], PROBE_STEPS, str(folder), self.seed, self.settings, PROBE_EVALUATIONS)
        begun = time.monotonic()
        with (
            torch_threads(threads_of_fold(self.workers)),
            asked_to_stop() as stopped,
            interrupt_when(lambda: self.clock.left < limit),
        ):
            outcome = run_fold(self.dataset, fold, [times])
        if outcome.end == "failed":
            raise InputError(outcome.error)
        if outcome.end == "interrupted" or not times.steps:
            if self.clock.left >= limit or (stopped.is_set() and outcome.end == "finished"):
                raise KeyboardInterrupt
            return None
        seconds = time.monotonic() - begun
        self.seconds_per_step = max(1e-4, float(np.median(times.steps)))
        evaluation = float(np.median(times.evaluations)) if times.evaluations else 0.0
        rest = seconds - times.first - sum(times.evaluations) - PROBE_STEPS * self.seconds_per_step
        self.overhead = max(0.05, rest) + EVALUATIONS * evaluation
        return seconds

    def recall_costs(self, candidate: Candidate) -> bool:
        """Takes over what an earlier call measured, if there is such."""
        file = self.out / "costs.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        if any(known.get(name) != value for name, value in self._measured_for(candidate).items()):
            return False
        self.seconds_per_step, self.overhead = known["seconds_per_step"], known["overhead"]
        self.warm_up, self.cold = known.get("warm_up", 0.0), self.workers
        return True

    def keep_costs(self, candidate: Candidate) -> None:
        """Writes what was measured beside the folds."""
        costs = {"seconds_per_step": self.seconds_per_step, "overhead": self.overhead, "warm_up": self.warm_up}
        write_whole(self.out / "costs.json", json.dumps(self._measured_for(candidate) | costs).encode())

    def _measured_for(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "fingerprint": self.dataset.fingerprint,
            "frozen": candidate.frozen,
            "threads": threads_of_fold(self.workers),
        }

    @property
    def slowness(self) -> float:
        """How much longer folds take than was measured first, as when other programs need the machine; at least 1."""
        return max(1.0, float(np.median(self.ratios[-RECENT:]))) if self.ratios else 1.0

    def learn_from(self, fold: Fold, seconds: float) -> None:
        """Takes what a fold has taken into account for what follows."""
        if self.cold:  # perhaps the first of its process
            self.cold -= 1
            seconds = max(0.0, seconds - self.warm_up)
        if not fold.candidate.network:
            self.boosting_seconds = max(self.boosting_seconds, seconds)
        elif self.seconds_per_step > 0:
            self.ratios.append(seconds / self.expected_seconds(fold.candidate, fold.steps))

    def expected_seconds(self, candidate: Candidate, steps: int) -> float:
        """The seconds that a fold takes on a machine as it was when it was measured."""
        if not candidate.network:
            return self.boosting_seconds or boosting.expected_seconds(self.dataset)
        return self.overhead + steps * self.seconds_per_step * candidate.cost

    def seconds(self, candidate: Candidate, steps: int) -> float:
        """The seconds that a fold of a candidate may take."""
        return SAFETY * self.slowness * self.expected_seconds(candidate, steps)

    def round_seconds(self, candidates: Sequence[Candidate], steps: int) -> float:
        """The seconds that a round may take, on all workers."""
        return at_once([self.seconds(c, steps) for c in candidates for _ in self.domains], self.workers)

    def final_seconds(self, steps: int, slowness: float | None = None) -> float:
        """The seconds that the final model may take: all domains, more rows, a dear candidate."""
        more = len(self.domains) / max(1, len(self.domains) - 1)
        slow = self.slowness if slowness is None else slowness
        network = self.overhead + DEAR * more * steps * self.seconds_per_step
        return SAFETY * slow * max(network, more * self.boosting_seconds) + self.clock.closing

    def rest_seconds(self, steps: int, slowness: float | None = None) -> float:
        """The seconds that are kept for what follows a round of so many steps."""
        return max(self.reserve, self.final_seconds(steps, slowness))

    @property
    def available(self) -> float:
        """The seconds that are left for rounds and the final model, once the workers are there and warm."""
        start = (self.start_seconds if self.workers > 1 else 0.0) + (self.warm_up if self.cold else 0.0)
        return self.clock.left - self.reserve - start

    def needed_budget(self, candidates: Sequence[Candidate], full_steps: int) -> float | None:
        """The seconds in which the first two methods would be compared; None if nothing was measured."""
        if self.preparing is None:
            return None
        fewest = min(FEWEST_STEPS, full_steps)
        return self.preparing + self.round_seconds(candidates[:2], fewest) + self.rest_seconds(fewest)

    def omit(self, sentence: str) -> None:
        """Says, now and on the page, what the budget has no room for."""
        self.omitted.append(sentence)
        self.say(sentence)

    # --- rounds --------------------------------------------------------------------------------------------------

    def run(self, candidates: Sequence[Candidate], full_steps: int) -> list[Round]:
        """All rounds, the last one being what is chosen from."""
        remembered = self.remembered()
        if remembered and remembered[0]["steps"] > full_steps:  # of a call that asked for more
            remembered = []
        available = self.available
        self.preparing = self.clock.budget - self.reserve - available
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
            self.omit(f"The budget has no room for: {left}.")
        first = self.run_round(chosen, steps, position=0)
        rounds = [first]
        if steps >= full_steps or self.clock.left <= self.rest_seconds(steps):
            return rounds
        ranked = self.ranked(first)
        if len(ranked) < 2:
            return rounds
        keep = ranked[: max(2, math.ceil(len(ranked) / 3))]
        boosting = [c for c in chosen if not c.network]
        more = self.affordable(keep, full_steps, self.available)
        if len(remembered) > 1:
            more = remembered[1]["steps"]
            keep = [c for c in chosen if c.name in remembered[1]["candidates"] and c.network]
        if more >= 1.5 * steps:
            self.say(f"Going on with {', '.join(c.name for c in keep)} for {more} steps.")
            second = self.run_round([*keep, *boosting], more, position=1)
            if len(second.complete(self.domains)) > len(boosting):
                rounds.append(second)
        return rounds

    def _first_round(
        self, candidates: Sequence[Candidate], full_steps: int, available: float
    ) -> tuple[int, list[Candidate]]:
        """As many candidates as fit with few steps, in their order, and the steps that half of the time allows."""
        chosen, fewest = list(candidates), min(FEWEST_STEPS, full_steps)
        while chosen and not self._fits(chosen, fewest, available):
            chosen.pop()
        if not chosen:
            return 0, []
        share = 1.0 if len(chosen) < 3 else 0.55
        return max(fewest, self.affordable(chosen, full_steps, share * available)), chosen

    def _fits(self, candidates: Sequence[Candidate], steps: int, available: float) -> bool:
        """Whether a round, and of what follows it what was not reserved, fit into a time."""
        return self.round_seconds(candidates, steps) + self.rest_seconds(steps) - self.reserve <= available

    def affordable(self, candidates: Sequence[Candidate], most: int, available: float) -> int:
        """The steps that candidates may have in a time, in which the final model is trained as well."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(candidates, middle, available):
                low = middle
            else:
                high = middle - 1
        return low

    def ranked(self, done: Round) -> list[Candidate]:
        """The networks that have a result on every domain, the best first."""
        scores = done.scores(self.domains)
        value = np.mean if self.rule == "mean" else np.min
        names = sorted(scores, key=lambda name: -float(value(scores[name])))
        by_name = {c.name: c for c in done.candidates}
        return [by_name[name] for name in names if by_name[name].network]

    def folds(self, candidates: Sequence[Candidate], steps: int) -> dict[tuple[str, str], Fold]:
        """The folds of a round, by candidate and domain."""
        return {
            (c.name, d): Fold(c, d, steps, folder_of(self.out, c, d, k, steps), self.seed, self.settings)
            for c in candidates
            for k, d in enumerate(self.domains)
        }

    def run_round(self, candidates: Sequence[Candidate], steps: int, position: int, whole: bool = False) -> Round:
        """Trains the folds of some candidates, as far as the budget allows.

        whole: a part of the folds is of no use. Then the round ends as soon as it is clear that the time will not
        suffice for all of them.
        """
        self._remember(position, candidates, steps)
        folds = self.folds(candidates, steps)
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
            what = f"{len(candidates)} methods" if len(candidates) > 1 else candidates[0].name
            self.say(
                f"Comparing {what}, {steps} steps{' each' if len(candidates) > 1 else ''}, leaving out each of "
                f"{len(self.domains)} domains: {len(folds)} trainings{found}."
            )
            self._train(todo, done, whole)
        return done

    def _train(self, folds: Sequence[Fold], done: Round, whole: bool) -> None:
        total = len(folds)
        count = 0
        over = False
        begun: set[str] = set()  # folders
        late: set[str] = set()  # candidates that cannot have a result on every domain any more
        pace = Pace(folds, lambda fold: self.expected_seconds(fold.candidate, fold.steps)) if whole else None

        def out_of_time() -> bool:
            nonlocal over
            over = over or self.clock.left <= self.rest_seconds(done.steps) or (pace is not None and self._late(pace))
            return over

        def may_begin(position: int) -> bool:
            """Whether this fold and all further ones of its candidate can end in time."""
            fold = folds[position]
            name = fold.candidate.name
            if name in self.failed or name in late:
                return False
            rest = [f for f in folds if f.candidate.name == name and f.folder not in begun]
            needed = at_once([self.slowness * self.expected_seconds(f.candidate, f.steps) for f in rest], self.workers)
            if self.clock.left < needed + self.rest_seconds(done.steps):
                late.add(name)
                return False
            begun.add(fold.folder)
            self.show(count, total, f"{name} without {fold.domain}")
            return True

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

        if self.workers > 1:
            from rcalign.sweeps.run_on_ray import Resources, connected, run_tasks

            # one Ray for all rounds: its workers keep what they have imported and loaded
            self.processes.enter_context(connected(Resources(workers=self.workers)))
            self.start_seconds = 0.0
            run_tasks(run_fold, [(self.data, fold) for fold in folds], self.workers, ended, out_of_time, may_begin)
        else:
            self._train_here(folds, ended, out_of_time, may_begin)
        unfinished = [c for c in done.candidates if c.name not in (*done.complete(self.domains), *self.failed)]
        if unfinished and not whole:
            names = ", ".join(f"{c.name} ({len(done.outcomes[c.name])} of {len(self.domains)})" for c in unfinished)
            self.omit(
                f"For lack of time, without a result on every domain at {done.steps} steps: {names}. The same command "
                "with a larger budget goes on from here."
            )

    def _train_here(
        self,
        folds: Sequence[Fold],
        ended: Callable[[int, Outcome | None], None],
        out_of_time: Callable[[], bool],
        may_begin: Callable[[int], bool],
    ) -> None:
        with asked_to_stop() as stopped, interrupt_when(out_of_time):
            for position, fold in enumerate(folds):
                if out_of_time():
                    return
                if not may_begin(position):
                    continue
                outcome = run_fold(self.dataset, fold)
                ended(position, outcome)
                if not out_of_time() and (stopped.is_set() or outcome.end == "interrupted"):
                    raise KeyboardInterrupt

    def _late(self, pace: Pace) -> bool:
        """Whether what is left of the budget will not suffice for all folds and what follows them."""
        seen = pace.look()
        if seen is None:
            return False
        left, slow = seen[0], max(seen[1], self.slowness)
        needed = at_once([slow * seconds for seconds in left], self.workers)
        if needed + self.rest_seconds(pace.steps, slow) <= self.clock.left:
            return False
        self.ratios = [slow]  # what is planned next goes by it
        return True

    def _progress(self, fold: Fold, done: Round) -> str:
        scores = done.scores(self.domains)
        text = f"{fold.candidate.name} without {fold.domain}"
        if scores:
            value = np.mean if self.rule == "mean" else np.min
            best = max(scores, key=lambda name: float(value(scores[name])))
            text += f", best so far {best} ({self.rule} {100 * float(value(scores[best])):.1f} %)"
        if math.isfinite(self.clock.budget):
            text += f", {duration(max(0.0, self.clock.left))} of the budget left"
        return text

    # --- the plan ------------------------------------------------------------------------------------------------

    def remembered(self) -> list[dict[str, Any]]:
        """The rounds of earlier calls: their steps and the names of their candidates."""
        file = self.out / "rounds.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        return list(known["rounds"]) if known.get("fingerprint") == self.dataset.fingerprint else []

    def _remember(self, position: int, candidates: Sequence[Candidate], steps: int) -> None:
        rounds = self.remembered()[:position]
        rounds.append({"steps": steps, "candidates": [c.name for c in candidates]})
        text = json.dumps({"fingerprint": self.dataset.fingerprint, "rounds": rounds})
        write_whole(self.out / "rounds.json", text.encode())


def start_seconds(clock: Clock) -> float:
    """How long further processes take to be there, from how long this one took."""
    return max(RAY_START, 1.5 * clock.start)


def workers_for(left: float, start: float) -> int:
    """Processes to use: this one where others would hardly be there when the time is over, else one for each core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if left < WORTH * start else cores


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Plain values of a candidate."""
    return {**dataclasses.asdict(candidate), "hparams": dict(candidate.hparams)}
