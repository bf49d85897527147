"""Trains the leaders of a comparison on features again with their backbone, if the budget has room for it.

What fine-tuning takes is measured before the comparison on features begins. If there is room for it, two thirds of the
time are kept for it, since it is what changes most, and more if only that suffices for both leaders.
One leader after the other, so that the first has a result on every domain whatever becomes of the second. A leader is
begun only if all its folds fit into what is left of the budget; if the machine turns out to be slower, its folds end
and it begins again with fewer steps, or not at all. So what is left at the end is always a whole comparison.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from rcalign.fit.folds import EVALUATIONS, Fold, prepare_fold, read_outcome
from rcalign.fit.portfolio import Candidate
from rcalign.fit.reading import exactly
from rcalign.fit.search import FEWEST_STEPS, Round, Search
from rcalign.fit.timing import TrainingCosts, at_once, measure_costs, threads_of_fold, torch_threads

LEADERS = 2
TUNED = ", fine-tuned"  # after the name of a method
FEWEST_TUNING_STEPS = 100  # fewer are not worth trying
MOST_STEPS = 1000
KEPT_SHARE = 2 / 3  # of the time, for fine-tuning and the final model
NEARLY = 0.9  # of the steps that were planned
MORE = 1.5  # times as many steps as an earlier call had, from which it is worth training again


def reserve_for_leaders(search: Search, candidates: Sequence[Candidate]) -> float:
    """The seconds to keep for fine-tuning while methods are compared on features; 0 if there is no room for it."""
    dearest = max(candidates, key=lambda candidate: candidate.cost)
    leader = dataclasses.replace(dearest, frozen=False)
    tuning = _tuning_search(search)
    if not (tuning.recall_costs(leader) or measure_tuning(tuning, leader)):
        search.least_tuning = (tuning.seconds_per_step, tuning.overhead)
        return 0.0
    available = search.available
    for count, compared in ((LEADERS, candidates), (1, candidates[:LEADERS])):
        least = tuning.round_seconds([leader] * count, FEWEST_TUNING_STEPS) + tuning.final_seconds(FEWEST_TUNING_STEPS)
        if search.round_seconds(compared, FEWEST_STEPS) + least <= available:
            return max(least, KEPT_SHARE * available)
    return 0.0


def _tuning_search(search: Search) -> Search:
    """The same search with costs, slowness and a folder of its own, which keeps time for the final model only."""
    out = search.out / "fine-tuned"
    out.mkdir(exist_ok=True)
    slowness = [search.slowness]
    return dataclasses.replace(search, seconds_per_step=0.0, overhead=0.0, ratios=slowness, out=out, reserve=0.0)


def fine_tune_leaders(search: Search, last: Round) -> list[Round]:
    """A round for each leader that could be fine-tuned within the budget. What could not is in ``search.omitted``."""
    leaders = [dataclasses.replace(c, name=c.name + TUNED, frozen=False) for c in search.ranked(last)[:LEADERS]]
    if not leaders:
        return []
    tuning = _tuning_search(search)
    if search.least_tuning is not None:  # too much at the start, so too much now: measuring again would cost time
        tuning.seconds_per_step, tuning.overhead = search.least_tuning
        enough = False
    else:
        enough = tuning.recall_costs(leaders[0]) or measure_tuning(tuning, leaders[0])
    steps = _planned_steps(tuning, leaders) if enough else 0
    done: list[Round] = []
    for position, leader in enumerate(leaders):
        found = _fine_tuned(tuning, leader, position, steps)
        if found is None:
            break
        done.append(found)
        steps = found.steps  # the same for all, so that they can be compared
    missing = [c.name for c in leaders[len(done) :] if c.name not in search.failed]
    if missing:
        names = " and ".join(name.removesuffix(TUNED) for name in missing)
        least = tuning.round_seconds(leaders[:1], FEWEST_TUNING_STEPS) + tuning.final_seconds(FEWEST_TUNING_STEPS)
        search.omit(
            f"Not fine-tuned, for lack of time: {names}. {FEWEST_TUNING_STEPS} steps of one method take "
            f"{'about' if enough else 'at least'} {exactly(least)}, and {exactly(max(0.0, tuning.available))} were "
            "left. The same command with a larger budget goes on from here."
        )
    return done


def measure_tuning(tuning: Search, candidate: Candidate) -> bool:
    """Measures what a step takes; False as soon as it is clear that there is not enough time for the fewest steps."""
    fold = Fold(candidate, tuning.domains[0], FEWEST_TUNING_STEPS, "", tuning.seed, tuning.settings)

    def enough(costs: TrainingCosts) -> bool:
        evaluated = EVALUATIONS * sum(map(len, job.task.splits.val.values())) + len(tuning.dataset) / len(
            tuning.domains
        )
        tuning.overhead = prepared + costs.start + costs.row * evaluated
        tuning.seconds_per_step = costs.step / candidate.cost
        return tuning.affordable([candidate], FEWEST_TUNING_STEPS, tuning.available) >= FEWEST_TUNING_STEPS

    begun = time.monotonic()
    with torch_threads(threads_of_fold(tuning.workers)):
        job = prepare_fold(tuning.dataset, fold)
        prepared = time.monotonic() - begun
        costs = measure_costs(job, enough)
    if costs is None:
        return False
    enough(costs)
    tuning.keep_costs(candidate)
    return True


def _planned_steps(tuning: Search, leaders: Sequence[Candidate]) -> int:
    """The steps that all leaders may have, or the first one alone."""
    for some in (leaders, leaders[:1]):
        steps = tuning.affordable(some, MOST_STEPS, tuning.available)
        if steps >= FEWEST_TUNING_STEPS:
            return steps
    return 0


def _fine_tuned(tuning: Search, leader: Candidate, position: int, steps: int) -> Round | None:
    """The round of a leader with that many steps, or fewer if that is what fits; None if it does not."""
    before = tuning.remembered()[position : position + 1]
    if before and before[0]["candidates"] == [leader.name] and steps < MORE * before[0]["steps"]:
        steps = before[0]["steps"]
        missing = [f for f in tuning.folds([leader], steps).values() if read_outcome(f) is None]
        needed = at_once([tuning.seconds(leader, steps) for _ in missing], tuning.workers)
        if missing and needed + tuning.final_seconds(steps) > tuning.available:
            steps = tuning.affordable([leader], steps - 1, tuning.available)
    else:
        fitting = tuning.affordable([leader], steps, tuning.available)
        steps = steps if fitting >= NEARLY * steps else fitting  # as the other leader had, which can be compared
    while steps >= FEWEST_TUNING_STEPS:
        done = tuning.run_round([leader], steps, position, whole=True)
        if done.complete(tuning.domains):
            return done
        if leader.name in tuning.failed:
            return None
        steps = tuning.affordable([leader], steps - 1, tuning.available)
    return None
