"""The rules against what DomainBed and BoDA themselves chose, and against cases small enough to see through."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign.errors import InputError
from rcalign.selection import RULES, ChosenRun, Missing, choose, choose_per_trial, get_rule, rank, tune_then_repeat
from rcalign.store.other_programs import boda_run
from rcalign.store.read_runs import read_runs
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run

# domainbed-sweep/expected-tables.txt: what DomainBed's own program prints for that sweep
EXPECTED = {
    "training-domain": {"C": (98.0, 0.2), "L": (64.2, 0.8), "S": (74.1, 0.4), "V": (77.1, 0.2)},
    "leave-one-domain-out": {"C": (96.9, 1.0), "L": (64.4, 0.9), "S": (70.5, 0.5), "V": (76.7, 0.1)},
    "oracle": {"C": (96.9, 1.0), "L": (65.9, 0.5), "S": (71.6, 1.3), "V": (76.9, 0.3)},
}


def record(step: int, val: float, test: float, seen: float = 0.5, averaged: bool = False) -> Record:
    accuracy = {"a": {"val": seen, "test": seen}, "b": {"val": seen, "test": seen}, "c": {"val": val, "test": test}}
    return Record(step=step, loss=1.0, metrics={"accuracy": accuracy}, validation=seen, averaged=averaged)


def run(name: str, *records: Record, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "data": "toy",
        "algorithm": "ERM",
        "protocol": "lodo",
        "domains": ("a", "b", "c"),
        "test_domains": ("c",),
    }
    return Run(name=name, records=records, **values | changes)


@pytest.mark.parametrize("rule", EXPECTED)
def test_domainbed_chose_the_same(reference: Path, rule: str) -> None:
    runs = read_runs(reference / "domainbed-sweep").runs
    for domain, expected in EXPECTED[rule].items():
        choices = choose_per_trial(RULES[rule], runs, [domain]).values()
        values = [100 * choice.accuracy[domain] for choice in choices if isinstance(choice, ChosenRun)]
        assert len(values) == 2
        figure = (round(np.mean(values), 1), round(np.std(values) / np.sqrt(len(values)), 1))
        assert figure == expected


@pytest.mark.parametrize(
    ("rule", "theirs"), [("mdlt", "ValMeanAccSelectionMethod"), ("oracle", "OracleSelectionMethod")]
)
def test_boda_ranked_the_same(reference: Path, rule: str, theirs: str) -> None:
    recorded = json.loads((reference / "parity/protocol/mdlt_selection.json").read_text())
    rows_of: dict[int, list[dict[str, Any]]] = {}
    for row in recorded["records"]:
        rows_of.setdefault(row["args"]["hparams_seed"], []).append(row)
    ranked = rank(RULES[rule], [boda_run(rows) for rows in rows_of.values()])
    for ours, expected in zip(ranked, recorded["selection"][theirs]["ranking"], strict=True):
        assert ours.run.draw == expected["hparams_seed"]
        assert ours.score == pytest.approx(expected["val_acc"], abs=1e-12)
        assert list(ours.accuracy.values()) == expected["test_acc_env"]
        assert min(ours.accuracy.values()) == expected["test_acc_worst"]
        assert list(ours.shots.values()) == expected["test_acc_shot"]


@pytest.mark.parametrize("rule", EXPECTED)
def test_ties_between_draws_end_as_in_domainbed(reference: Path, rule: str) -> None:
    """The recorded sweep with every accuracy rounded to tenths, so that draws tie: DomainBed groups records by draw in
    ascending order, sorts them by score and reverses the list."""
    runs = [
        replace(
            run,
            records=tuple(
                replace(
                    row,
                    validation=round(row.validation, 1),
                    metrics={
                        "accuracy": {
                            name: {part: round(value, 1) if part == "val" else value for part, value in parts.items()}
                            for name, parts in row.accuracy.items()
                        }
                    },
                )
                for row in run.records
            ),
        )
        for run in read_runs(reference / "domainbed-sweep").runs
    ]
    ties = 0
    for domain, trial in itertools.product("CLSV", (0, 1)):
        ranked = rank(RULES[rule], [run for run in runs if run.trial == trial], [domain])
        by_draw = sorted(ranked, key=lambda choice: choice.run.draw)
        theirs = sorted(by_draw, key=lambda choice: choice.score)[::-1]
        assert [choice.run.draw for choice in ranked] == [choice.run.draw for choice in theirs]
        best = [choice.run.draw for choice in by_draw if choice.score == ranked[0].score]
        assert ranked[0].run.draw == max(best)
        ties += len(best) > 1
    assert ties or rule == "leave-one-domain-out"  # whose scores are means of test accuracies, which are not rounded


def test_ties_between_draws_in_a_search() -> None:
    runs = [run(f"d{draw}", record(10, 0, 0.1 * draw, seen=0.9), draw=draw) for draw in range(4)]
    # the second rule is ours: what sweeps repeated is the first of equals
    for way, winner in ((choose_per_trial, "d3"), (tune_then_repeat, "d0")):
        for order in itertools.permutations(runs):
            choice = way(RULES["training-domain"], order, ["c"])[0]
            assert isinstance(choice, ChosenRun) and choice.run.name == winner


def test_of_equal_checkpoints_the_first_and_of_equal_draws_the_last() -> None:
    first = run(
        "first", record(10, 0, 0.1, seen=0.8), record(20, 0, 0.2, seen=0.9), record(30, 0, 0.3, seen=0.9), draw=1
    )
    second = run("second", record(10, 0, 0.4, seen=0.9), draw=0)
    ranked = rank(RULES["training-domain"], [first, second], ["c"])
    assert [(choice.run.name, choice.record.step) for choice in ranked] == [("first", 20), ("second", 10)]


def test_oracle_takes_the_last_checkpoint_even_when_an_earlier_one_is_better() -> None:
    only = run("only", record(10, 0.9, 0.9), record(20, 0.4, 0.3))
    assert rank(RULES["oracle"], [only], ["c"])[0].accuracy == {"c": 0.3}


def test_oracle_without_a_validation_part_says_so() -> None:
    row = Record(step=1, loss=0, metrics={"accuracy": {"a": {"val": 1}, "c": {"test": 1}}}, validation=1)
    with pytest.raises(InputError, match="reads the val part of the tested domains"):
        rank(RULES["oracle"], [run("x", row)], ["c"])


def test_averaged_weights_are_the_only_checkpoint_of_a_run_that_averages() -> None:
    averaged = run("swad", record(10, 0.9, 0.9, seen=0.9), record(20, 0.1, 0.2, seen=0.1, averaged=True))
    for rule in ("training-domain", "oracle"):
        assert rank(RULES[rule], [averaged], ["c"])[0].accuracy == {"c": 0.2}


def companion(v: str, values: dict[int, float], **changes: Any) -> Run:
    rows = [Record(step=s, loss=0, metrics={"accuracy": {v: {"test": x}}}, validation=0) for s, x in values.items()]
    return run(f"c+{v}", *rows, test_domains=(v, "c"), **changes)


def test_leave_one_domain_out_reads_companions_at_the_same_step() -> None:
    main = run("main", record(10, 0, 0.1), record(20, 0, 0.2), record(30, 0, 0.3))
    # step 30 is best but one companion did not evaluate it; of the other two, 20 has the larger mean
    runs = [main, companion("a", {10: 0.6, 20: 0.5, 30: 1.0}), companion("b", {10: 0.5, 20: 0.7})]
    choice = choose(RULES["leave-one-domain-out"], runs, ["c"])
    assert isinstance(choice, ChosenRun)
    assert (choice.record.step, choice.score) == (20, pytest.approx(0.6))


def test_leave_one_domain_out_names_the_companion_nobody_ran() -> None:
    outcome = choose(RULES["leave-one-domain-out"], [run("main", record(10, 0, 0.1)), companion("a", {10: 1})], ["c"])
    assert isinstance(outcome, Missing)
    assert [missing.test_domains for missing in outcome.runs] == [("c", "b")]


def test_an_unfinished_draw_leaves_no_choice() -> None:
    runs = [run("good", record(10, 0, 0.5)), run("bad", record(10, 0, 0.9), draw=1, problem="stopped")]
    outcome = choose(RULES["training-domain"], runs, ["c"])
    assert isinstance(outcome, Missing) and [missing.name for missing in outcome.runs] == ["bad"]


def test_the_best_draw_is_chosen_within_each_trial() -> None:
    runs = [
        run("t0d0", record(10, 0, 0.1, seen=0.8)),
        run("t0d1", record(10, 0, 0.2, seen=0.9), draw=1),
        run("t1d0", record(10, 0, 0.3, seen=0.9), trial=1),
        run("t1d1", record(10, 0, 0.4, seen=0.8), trial=1, draw=1),
    ]
    choices = choose_per_trial(RULES["training-domain"], runs, ["c"])
    assert {trial: choice.run.name for trial, choice in choices.items() if isinstance(choice, ChosenRun)} == {
        0: "t0d1",
        1: "t1d0",
    }


def search_and_repeats() -> list[Run]:
    return [
        run("s0", record(10, 0.9, 0.1, seen=0.8)),
        run("s1", record(10, 0.1, 0.2, seen=0.9), draw=1),
        run("s0again", record(10, 0.9, 0.1, seen=0.7), trial=5),
        run("s1again", record(10, 0.1, 0.3, seen=0.65), draw=1, trial=5),
        run("r1", record(10, 0, 0.3, seen=0.1), record(20, 0, 0.4, seen=0.2), draw=1, trial=1, phase="repeat"),
        run("r2", draw=1, trial=2, phase="repeat", problem="not started"),
    ]


def test_one_winner_for_all_trials_is_the_best_on_average_over_the_search() -> None:
    # draw 0 wins trial 5, draw 1 the mean; its repetitions are trials of their own
    choices = tune_then_repeat(RULES["training-domain"], search_and_repeats(), ["c"])
    names = {trial: choice.run.name for trial, choice in choices.items() if isinstance(choice, ChosenRun)}
    assert names == {0: "s1", 5: "s1again", 1: "r1"}
    assert isinstance(choices[1], ChosenRun) and choices[1].accuracy == {"c": 0.4}
    assert isinstance(choices[2], Missing) and choices[2].runs[0].name == "r2"


def test_repetitions_of_another_rules_winner_do_not_count() -> None:
    choices = tune_then_repeat(RULES["oracle"], search_and_repeats(), ["c"])
    assert isinstance(choices[0], ChosenRun) and choices[0].run.name == "s0"
    assert isinstance(choices[1], Missing) and "repeated draw 1" in str(choices[1].runs[0].problem)


def test_nothing_is_repeated_while_the_search_runs() -> None:
    runs = [*search_and_repeats(), run("s2", draw=2, problem="not started")]
    choices = tune_then_repeat(RULES["training-domain"], runs, ["c"])
    assert all(isinstance(choice, Missing) and choice.runs[0].name == "s2" for choice in choices.values())


def test_a_lost_draw_cannot_win_and_is_not_missed() -> None:
    lost = run("diverged", record(10, 0, 0.9, seen=0.9), lost="diverged: ...")
    good = run("good", record(10, 0, 0.5, seen=0.4), draw=1)
    for way in (choose_per_trial, tune_then_repeat):
        choice = way(RULES["training-domain"], [lost, good], ["c"])[0]
        assert isinstance(choice, ChosenRun) and choice.run.name == "good"
        nothing = way(RULES["training-domain"], [lost], ["c"])[0]
        assert isinstance(nothing, Missing) and nothing.runs == (lost,)


def test_an_unknown_rule_and_a_rule_of_the_other_protocol() -> None:
    with pytest.raises(InputError, match="did you mean 'oracle'"):
        get_rule("oracel", "lodo")
    with pytest.raises(InputError, match="'mdlt' is not for protocol lodo: use one of training-domain"):
        get_rule("mdlt", "lodo")
