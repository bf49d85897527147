"""A budget is kept: what is begun can end, the final training is as long as time allows, and what is cut is said.

Time is a counter here, which every training step and every fold moves on by a known amount.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from rcalign.algorithms.erm import ERM
from rcalign.data import loading
from rcalign.data.source import Dataset
from rcalign.fit import leaders
from rcalign.fit.boosting import FIRST_ROUNDS, fit_in_time
from rcalign.fit.final import FEWEST_FINAL_STEPS, FinalTraining, train_in_time, train_trees
from rcalign.fit.folds import LEFT_OUT, Fold, Outcome
from rcalign.fit.pipeline import run_pipeline
from rcalign.fit.portfolio import portfolio, stages_cost
from rcalign.fit.search import Round, Search
from rcalign.fit.timing import CLOSING, MEASURED_STEPS, Clock, at_once
from rcalign.store.run_folder import RunFolder
from rcalign.training.job import Job, prepare_run
from rcalign.training.options import TrainOptions

WANTED = 60
BUDGET = 1000.0


class Machine:
    """A clock that stands still but for training steps. step: seconds of one. slower: after so many steps, how much."""

    def __init__(self) -> None:
        self.now, self.step, self.made = 0.0, 1.0, 0
        self.slower: tuple[int, float] = (10**9, 1.0)

    def train_one(self) -> None:
        self.made += 1
        after, factor = self.slower
        self.now += self.step * (factor if self.made > after else 1.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    step = ERM.step

    def timed(self: ERM, batch: Any) -> Any:
        found.train_one()
        return step(self, batch)

    monkeypatch.setattr(ERM, "step", timed)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    y, domain = rng.integers(2, size=90), np.arange(90) % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(90, 4)) + np.eye(4)[y], y=y, domain=domain)
    return loading.load(str(tmp_path / "rows.npz"))


def job_of(data: Dataset, steps: int = WANTED, **options: Any) -> Job:
    options = {"schedule": "cosine", "test_domains": ("2",), **options}  # a schedule goes by the number of steps
    return prepare_run(TrainOptions(algorithm="ERM", steps=steps, **{"evaluate_every": steps, **options}), data)


def weights(folder: Path) -> bytes:
    return (folder / "best.safetensors").read_bytes()


MEASURING = 1 + MEASURED_STEPS[0]  # steps, where each takes a second


def test_with_time_enough_the_clock_changes_nothing(data: Dataset, tmp_path: Path, machine: Machine) -> None:
    free = train_in_time(job_of(data), tmp_path / "free", Clock(0), average_from=40)
    kept = train_in_time(job_of(data), tmp_path / "kept", Clock(BUDGET), average_from=40)
    assert free == kept == FinalTraining(WANTED, WANTED, WANTED, cut=False) and not kept.sentence
    for name in ("best.safetensors", "last.safetensors", "records.jsonl"):
        assert (tmp_path / "free" / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()
    before = machine.made
    assert train_in_time(job_of(data), tmp_path / "kept", Clock(BUDGET), average_from=40) == kept
    assert machine.made == before, "found finished"


@pytest.mark.parametrize("seconds", [12.0, 25.0, 40.0])
def test_as_many_steps_are_planned_as_fit_and_schedule_and_average_end_with_them(
    data: Dataset, tmp_path: Path, machine: Machine, seconds: float
) -> None:
    clock = Clock(CLOSING + MEASURING + seconds)
    found = train_in_time(job_of(data), tmp_path / "run", clock, average_from=45)
    assert FEWEST_FINAL_STEPS <= found.planned < WANTED and found.made == found.planned and not found.cut
    assert clock.left >= CLOSING, "what follows has its time"
    assert found.made >= 0.8 * seconds, "and the time is used"
    assert f"had {found.made} of {WANTED} steps" in found.sentence
    start = max(1, round(45 * found.planned / WANTED))
    train_in_time(job_of(data, found.planned), tmp_path / "short", Clock(0), average_from=start)
    assert weights(tmp_path / "run") == weights(tmp_path / "short")


def test_a_machine_that_becomes_slower_ends_in_time_and_goes_on_later(
    data: Dataset, tmp_path: Path, machine: Machine
) -> None:
    train_in_time(job_of(data), tmp_path / "whole", Clock(0), average_from=40)
    machine.made, machine.slower = 0, (MEASURING + 5, 4.0)
    clock = Clock(CLOSING + MEASURING + 1.3 * WANTED)
    cut = train_in_time(job_of(data), tmp_path / "cut", clock, average_from=40)
    assert cut.cut and cut.planned == WANTED and FEWEST_FINAL_STEPS < cut.made < WANTED
    assert clock.left >= CLOSING - machine.step * 4, "at most one step late"
    assert f"stopped after {cut.made} of {WANTED} steps by the budget" in cut.sentence
    result = RunFolder(tmp_path / "cut").result()
    assert result is not None and result.steps == cut.made
    machine.slower = (10**9, 1.0)
    assert train_in_time(job_of(data), tmp_path / "cut", Clock(1.0), average_from=40) == cut, "no time: as it was"
    on = train_in_time(job_of(data), tmp_path / "cut", Clock(BUDGET), average_from=40)
    assert on == FinalTraining(WANTED, WANTED, WANTED, cut=False)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")


def test_without_time_a_few_steps_are_made_and_with_more_time_it_begins_again(
    data: Dataset, tmp_path: Path, machine: Machine
) -> None:
    none = train_in_time(job_of(data), tmp_path / "run", Clock(1.0))
    assert none.made == none.planned == FEWEST_FINAL_STEPS and none.sentence
    little = train_in_time(job_of(data), tmp_path / "run", Clock(CLOSING + MEASURING + 1.2 * FEWEST_FINAL_STEPS))
    assert little == none, "hardly more: kept"
    whole = train_in_time(job_of(data), tmp_path / "run", Clock(BUDGET))
    train_in_time(job_of(data), tmp_path / "whole", Clock(0))
    assert whole.made == WANTED and weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_run_that_was_stopped_goes_on_although_it_would_be_evaluated_otherwise_now(
    data: Dataset, tmp_path: Path, machine: Machine
) -> None:
    machine.slower = (5, 1e6)
    cut = train_in_time(job_of(data, evaluate_every=30), tmp_path / "run", Clock(BUDGET))
    machine.slower = (10**9, 1.0)
    assert cut.cut
    assert train_in_time(job_of(data, evaluate_every=12), tmp_path / "run", Clock(BUDGET)).made == WANTED


def test_what_another_run_left_is_removed(data: Dataset, tmp_path: Path) -> None:
    """Not only another algorithm: also other averaging, as of two methods of the same algorithm."""
    train_in_time(job_of(data, 12), tmp_path / "run", Clock(0))
    train_in_time(job_of(data, 12, average="ema"), tmp_path / "run", Clock(0))
    train_in_time(job_of(data, 12, average="ema"), tmp_path / "alone", Clock(0))
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")
    assert train_in_time(job_of(data, 8, average="ema"), tmp_path / "run", Clock(0)).made == 8, "fewer are wanted now"


def test_two_stages_take_the_time_of_both() -> None:
    crt = portfolio(["CRT"], domains=4, images=False, table=False)[1]
    assert crt.cost > 1 and stages_cost("CRT") > 2 and stages_cost("ERM") == 1


def test_tasks_end_when_the_last_worker_does() -> None:
    rng = np.random.default_rng(0)
    for workers in (1, 2, 3):
        for _ in range(20):
            seconds = list(rng.exponential(size=int(rng.integers(0, 9))))
            found = at_once(seconds, workers)
            least = max(sum(seconds) / workers, max(seconds, default=0.0))
            assert least - 1e-9 <= found <= least + (1 - 1 / workers) * max(seconds, default=0.0) + 1e-9


# --- folds ------------------------------------------------------------------------------------------------------------


def folds_of_known_cost(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, seconds: Callable[[Fold], float]
) -> list[tuple[Fold, float]]:
    """Folds that only take time; they are not real, so that the right answer is known. Each with when it ended."""
    ended: list[tuple[Fold, float]] = []

    def run(data: object, fold: Fold, callbacks: Any = ()) -> Outcome:
        machine.now += seconds(fold)
        ended.append((fold, machine.now))
        outcome = Outcome("finished", accuracy=0.5, balanced=0.5, seconds=seconds(fold))
        folder = Path(fold.folder)
        folder.mkdir(parents=True)
        (folder / LEFT_OUT).touch()
        (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))
        return outcome

    monkeypatch.setattr("rcalign.fit.search.run_fold", run)
    return ended


@pytest.mark.parametrize("slow", [1.0, 1.5, 2.0])
def test_no_fold_begins_that_cannot_end(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, slow: float
) -> None:
    search = Search(data, "", tmp_path, Clock(200.0), seconds_per_step=0.1, overhead=1.0)
    ended = folds_of_known_cost(
        monkeypatch, machine, lambda fold: slow * search.expected_seconds(fold.candidate, fold.steps)
    )
    candidates = portfolio(domains=3, images=False, table=False)
    done = search.run_round(candidates, 100, position=0)
    complete = done.complete(data.domains)
    assert len(complete) < len(candidates), "11 seconds or more for each of 21 folds and the final model"
    assert complete == [c.name for c in candidates[: len(complete)]] and complete
    known = 1 if slow > 1 else 0  # that the machine is slower shows when the first fold has ended
    for fold, at in ended[known:]:
        assert search.clock.budget - at >= search.rest_seconds(100) - 1e-9, (fold.candidate.name, fold.domain)
    assert {fold.candidate.name for fold, _ in ended} == set(complete), "nor one of a method that cannot be compared"
    (sentence,) = search.omitted
    assert all(f"{c.name} (0 of 3)" in sentence for c in candidates if c.name not in complete)


@pytest.mark.parametrize("budget", [450.0, 700.0, 1500.0, 6000.0])
def test_one_call_leaves_time_for_the_leaders_and_uses_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, budget: float
) -> None:
    """Features 0.02 seconds a step, fine-tuning 0.3: with time for it, the comparison on features does not take it."""
    candidates = portfolio(domains=3, images=True, table=False)

    def measured(tuning: Search, candidate: object) -> bool:
        tuning.seconds_per_step, tuning.overhead = 0.3, 3.0
        return True

    def seconds(fold: Fold) -> float:
        per_step, start = (0.02, 0.5) if fold.candidate.frozen else (0.3, 3.0)
        return start + per_step * fold.candidate.cost * fold.steps

    monkeypatch.setattr(leaders, "measure_tuning", measured)
    ended = folds_of_known_cost(monkeypatch, machine, seconds)
    search = Search(data, "", tmp_path, Clock(budget), seconds_per_step=0.02, overhead=0.5)
    search.reserve = leaders.reserve_for_leaders(search, candidates)
    rounds = search.run(candidates, 1000)
    assert search.clock.left >= search.reserve - 1e-9
    tuned: list[Round] = leaders.fine_tune_leaders(search, rounds[-1])
    assert len(tuned) == leaders.LEADERS and not any("fine-tuned" in sentence for sentence in search.omitted)
    steps = tuned[0].steps
    final = 3.0 + 0.3 * 3 / 2 * steps + CLOSING
    assert search.clock.left >= final, "the final model is yet to come"
    assert steps == leaders.MOST_STEPS or search.clock.left - final < 0.35 * budget, "the time is used"
    assert sum(not fold.candidate.frozen for fold, _ in ended) == 2 * 3


def test_without_room_for_fine_tuning_nothing_is_kept_for_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(data, "", tmp_path, Clock(60.0), seconds_per_step=0.02, overhead=0.5)

    def measured(tuning: Search, candidate: object) -> bool:
        tuning.seconds_per_step, tuning.overhead = 5.0, 3.0
        return True

    monkeypatch.setattr(leaders, "measure_tuning", measured)
    assert leaders.reserve_for_leaders(search, portfolio(domains=3, images=True, table=False)) == 0.0


# --- all of it --------------------------------------------------------------------------------------------------------


def test_a_final_training_that_was_cut_is_said_on_the_page_and_in_the_summary(data: Dataset, tmp_path: Path) -> None:
    """A budget that is over before anything begins: the default, few steps of it, and nothing is claimed."""
    fitted = run_pipeline(data, data.name, tmp_path / "out", budget=0.5, workers=1)
    assert fitted.expectation is None and fitted.final is not None and fitted.final.made < fitted.final.wanted
    summary = json.loads((tmp_path / "out" / "fit.json").read_text())["final_training"]
    assert (summary["made"], summary["planned"], summary["wanted"]) == dataclasses.astuple(fitted.final)[2::-1]
    assert summary["sentence"] == fitted.final.sentence
    page = (tmp_path / "out" / "report.html").read_text()
    assert fitted.final.sentence in page
    assert "nothing is known about the next domain" in page


# --- gradient boosting ------------------------------------------------------------------------------------------------


class TimedTrees(HistGradientBoostingClassifier):
    """Every round of trees takes a second of the clock, and beginning to fit takes two."""

    machine: Machine

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TimedTrees:
        before = getattr(self, "n_iter_", 0) if self.warm_start else 0
        super().fit(X, y, sample_weight)
        for _ in range(self.n_iter_ - before):
            self.machine.train_one()
        self.machine.now += 2.0
        return self


def rows_of(seed: int, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int) + (x[:, 2] > 1)


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True, "n_iter_no_change": 3}])
@pytest.mark.parametrize("budget", [5.0, 30.0, 60.0, 110.0, 1000.0])
def test_trees_end_in_time_and_are_the_first_ones_of_all(
    machine: Machine, budget: float, settings: dict[str, Any]
) -> None:
    x, y = rows_of(0)
    TimedTrees.machine = machine
    whole = HistGradientBoostingClassifier(random_state=0, **settings).fit(x, y)
    model = TimedTrees(random_state=0, **settings)
    begun = machine.now
    cut = fit_in_time(model, x, y, lambda: begun + budget - machine.now)
    made = model.n_iter_
    assert machine.now - begun <= max(budget, FIRST_ROUNDS + 2) and made >= min(FIRST_ROUNDS, whole.n_iter_)
    assert cut == (made < whole.n_iter_) and model.max_iter == 100
    if budget >= 1000:
        assert not cut
    elif cut and budget >= 30:
        assert made >= 0.6 * budget, "and the time is used"
    staged = list(whole.staged_decision_function(x))
    np.testing.assert_array_equal(model.decision_function(x), staged[made - 1])


def test_trees_on_a_machine_that_becomes_slower_end_in_time(machine: Machine) -> None:
    """Twice as slow after the first rounds: what was begun takes at most what was left."""
    x, y = rows_of(1)
    TimedTrees.machine = machine
    machine.slower = (FIRST_ROUNDS, 2.0)
    model = TimedTrees(random_state=0)
    assert fit_in_time(model, x, y, lambda: 60.0 - machine.now)
    assert machine.now <= 60.0 + 2.0 and FIRST_ROUNDS < model.n_iter_ < 100


def test_trees_that_were_cut_are_said_and_with_more_time_they_are_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["shop,price,weight,sells"]
    for k in range(90):
        price, weight = rng.normal(size=2)
        lines.append(f"{'abc'[k % 3]},{price:.3f},{weight:.3f},{'yes' if price * weight > 0 else 'no'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    table = loading.load(f"{tmp_path / 't.csv'}?label=sells&domain=shop")
    options: dict[str, Any] = {"seed": 0, "settings": {}}
    cut = train_trees(table, table.name, tmp_path / "cut", clock=Clock(1e-3), **options)
    assert cut.cut and cut.made == FIRST_ROUNDS
    assert f"stopped after {FIRST_ROUNDS} of 100 rounds of trees by the budget" in cut.sentence
    result = RunFolder(tmp_path / "cut").result()
    assert result is not None and result.steps == FIRST_ROUNDS and "10 of 100" in result.weights
    for name, clock in (("free", Clock(0)), ("kept", Clock(3600.0))):
        whole = train_trees(table, table.name, tmp_path / name, clock=clock, **options)
        assert not whole.cut and not whole.sentence and whole.made == 100
    assert weights(tmp_path / "free") == weights(tmp_path / "kept")


def test_the_budget_that_is_said_to_be_enough_compares_two_methods(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    candidates, costs = portfolio(domains=3, images=False, table=False), {"seconds_per_step": 0.1, "overhead": 1.0}
    small = Search(data, "", tmp_path, Clock(20.0), **costs)
    assert small.needed_budget(candidates, 100) is None  # nothing is known before a round was planned
    folds_of_known_cost(monkeypatch, machine, lambda fold: small.expected_seconds(fold.candidate, fold.steps))
    assert small.run(candidates, 100) == []
    needed = small.needed_budget(candidates, 100)
    assert needed is not None and needed > 20
    (done,) = Search(data, "", tmp_path, Clock(needed), **costs).run(candidates, 100)
    assert done.complete(data.domains) == [c.name for c in candidates[:2]]
