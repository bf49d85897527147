"""Trains the leaders of a comparison on features again with their backbone, if the budget has room for it.

One leader after the other, so that the first has a result on every domain whatever becomes of the second. A leader is
begun only if all its folds fit into what is left of the budget; if the machine turns out to be slower, its folds end
and it begins again with fewer steps, or not at all. So what is left at the end is always a whole comparison.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from rcalign.evaluation.evaluate import BATCH, logits_of
from rcalign.fit.folds import EVALUATIONS, Fold, prepare_fold, read_outcome
from rcalign.fit.portfolio import Candidate
from rcalign.fit.search import Round, Search
from rcalign.fit.timing import at_once, threads_of_fold, torch_threads
from rcalign.sweeps.progress import duration
from rcalign.training.run import make_model

LEADERS = 2
TUNED = ", fine-tuned"  # after the name of a method
FEWEST_TUNING_STEPS = 100  # fewer are not worth trying
MOST_STEPS = 1000
MEASURED_STEPS = 2
MORE = 1.5  # times as many steps as an earlier call had, from which it is worth training again


def fine_tune_leaders(search: Search, last: Round) -> list[Round]:
    """A round for each leader that could be fine-tuned within the budget. What could not is in ``search.omitted``."""
    leaders = [dataclasses.replace(c, name=c.name + TUNED, frozen=False) for c in search.ranked(last)[:LEADERS]]
    if not leaders:
        return []
    tuning = dataclasses.replace(
        search, seconds_per_step=0.0, overhead=0.0, ratios=[search.slowness], out=search.out / "fine-tuned"
    )
    tuning.out.mkdir(exist_ok=True)
    enough = tuning.recall_costs(leaders[0]) or measure_steps(tuning, leaders[0])
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
            f"{'about' if enough else 'at least'} {duration(least)}, and {duration(max(0.0, tuning.available))} were "
            "left. The same command with a larger budget goes on from here."
        )
    return done


def measure_steps(tuning: Search, candidate: Candidate) -> bool:
    """Measures what a step takes; False as soon as it is clear that there is not enough time for the fewest steps."""
    fold = Fold(candidate, tuning.domains[0], FEWEST_TUNING_STEPS, "", tuning.seed, tuning.settings)
    begun = time.monotonic()
    with torch_threads(threads_of_fold(tuning.workers)):
        job = prepare_fold(tuning.dataset, fold)
        model = make_model(job.task, job.config)
        start = time.monotonic() - begun
        train = np.concatenate(list(job.task.splits.train.values()))
        val = sum(map(len, job.task.splits.val.values()))
        begun = time.monotonic()
        predicted = len(logits_of(model.predict, job.task.inputs.batches(train[:BATCH]), len(tuning.dataset.classes)))
        per_row = (time.monotonic() - begun) / predicted
        tuning.overhead = start + per_row * (EVALUATIONS * val + len(tuning.dataset) / len(tuning.domains))
        rows = model.hparams.batch_size * len(job.task.splits.train)
        tuning.seconds_per_step = 2 * per_row * rows / candidate.cost  # forwards and backwards, at the very least
        if tuning.affordable([candidate], FEWEST_TUNING_STEPS, tuning.available) < FEWEST_TUNING_STEPS:
            return False
        batches = job.task.batches(model.hparams.batch_size, tuning.seed, model.traits.balanced_sampling)
        times = [time.monotonic()]
        for batch in batches.iterate(0, MEASURED_STEPS):
            model.step(batch)
            times.append(time.monotonic())
    tuning.seconds_per_step = float(np.diff(times).min()) / candidate.cost
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
        steps = tuning.affordable([leader], steps, tuning.available)
    while steps >= FEWEST_TUNING_STEPS:
        done = tuning.run_round([leader], steps, position, whole=True)
        if done.complete(tuning.domains):
            return done
        if leader.name in tuning.failed:
            return None
        steps = tuning.affordable([leader], steps - 1, tuning.available)
    return None
