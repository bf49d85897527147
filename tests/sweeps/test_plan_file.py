"""A wrong sweep file is refused with one sentence that names the place and the nearest right word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rcalign.errors import InputError
from rcalign.sweeps.plan import expand
from rcalign.sweeps.plan_file import find_plan, parse_plan, read_plan

GOOD: dict[str, Any] = {
    "data": "pacs",
    "algorithms": ["ERM", "MMD"],
    "preset": "domainbed",
    "domains": {"pacs": ["art", "cartoon", "photo"]},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algoritms": ["ERM"]}, "did you mean 'algorithms'"),
        ({"algorithms": ["EMR"]}, "did you mean 'ERM'"),
        ({"preset": "domainbad"}, "did you mean 'domainbed'"),
        ({"protocol": "lood"}, "did you mean 'lodo'"),
        ({"seed_rule": "domainbedd"}, "did you mean 'domainbed'"),
        ({"test_domains": ["cartoons"]}, "did you mean 'cartoon'"),
        ({"hparams": {"learning_rat": 1}}, "did you mean 'learning_rate'"),
        ({"search": {"dropuot": {"uniform": [0, 1]}}}, "did you mean 'dropout'"),
        ({"search": {"dropout": {"unifrom": [0, 1]}}}, "uniform"),
        ({"search": {"dropout": {"uniform": [1, 0]}}}, "the smaller first"),
        ({"search": {"dropout": {"log_uniform": [0, 1]}}}, "the smaller first"),
        ({"search": {"dropout": 3}}, "a table is expected"),
        ({"override": [{"data": "pasc", "steps": 1}]}, "did you mean 'pacs'"),
        ({"override": [{"algorithm": "MLDG", "steps": 1}]}, "unknown algorithm in an override 'MLDG'"),
        ({"override": [{"steps": 1}]}, "names neither data nor algorithm"),
        ({"override": {"steps": 1}}, r"write \[\[override\]\]"),
        ({"override": [{"algorithm": "ERM", "test_domains": ["art"]}]}, "by data set"),
        ({"override": [{"data": "pacs", "stepz": 1}]}, "did you mean 'steps'"),
        ({"variants": {"x": {"algorithm": "ERM"}}}, "'x' is not used"),
        ({"algorithms": ["x"], "variants": {"x": {"average": "ema"}}}, "names no algorithm"),
        ({"algorithms": ["e-r-m"], "variants": {"e-r-m": {"algorithm": "MMD"}}}, "has the name of an algorithm"),
        ({"algorithms": ["ERM", "x"], "variants": {"x": {"algorithm": "ERM"}}}, "describe the same runs"),
        ({"algorithms": ["ERM", "erm"]}, "listed twice"),
        ({"algorithms": []}, "algorithms is empty, so there is nothing to run"),
        ({"data": []}, "data is empty, so there is nothing to run"),
        ({"test_domains": []}, "test_domains is empty, so there is nothing to run"),
        ({"seeds": []}, "seeds is empty, so there is nothing to run"),
        ({"draws": 0}, "draws is 0, so there is nothing to run"),
        ({"seeds": 0}, "seeds is 0, so there is nothing to run"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": "many"}, "a whole number is expected"),
        ({"steps": True}, "a whole number is expected"),
        ({"freeze_backbone": 1}, "true or false is expected"),
        ({"data": 3}, "a list of texts is expected"),
        ({"seeds": [-1]}, "whole numbers from 0"),
        ({"search_seeds": [0]}, "tune-then-repeat"),
        ({"test_domains": "all"}, '"each" or a list'),
        ({"test_domains": [["art", "cartoon", "photo"]]}, "all 3 domains of 'pacs' are held out"),
        ({"protocol": "mdlt", "test_domains": ["art"]}, "leave test_domains"),
        ({"early_stopping": {"peers": 3}}, "after is missing"),
        ({"algorithms": ["MixStyle"], "freeze_backbone": True}, "works on images"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    assert len(expand(parse_plan(GOOD))) == 6
    with pytest.raises(InputError, match=said):
        expand(parse_plan({**GOOD, **change}))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match="algorithms is missing"):
        parse_plan({"data": "pacs"})


def test_a_file_that_is_not_toml_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('data = "x"\nalgorithms = [\n')
    with pytest.raises(InputError, match=r"not valid TOML .*line"):
        read_plan(file)


def test_a_recipe_or_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'domainbed'"):
        find_plan("domainbd")
    with pytest.raises(InputError, match=r"there is no sweep file 'plans/mine.toml'"):
        find_plan("plans/mine.toml")
    assert find_plan("emoji").name == "emoji.toml"


def test_a_file_goes_before_a_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("emoji").write_text('data = "x"\nalgorithms = "ERM"\n')
    assert read_plan("emoji").data == ("x",)


def test_a_variant_may_have_the_name_of_its_own_algorithm() -> None:
    """Then that algorithm has other settings in this sweep, and no further runs."""
    plain = expand(parse_plan({**GOOD, "algorithms": ["MMD"]}))
    changed = {"algorithms": ["MMD"], "variants": {"MMD": {"algorithm": "MMD", "hparams": {"penalty_weight": 0.25}}}}
    runs = expand(parse_plan({**GOOD, **changed}))
    assert [run.label for run in runs] == [run.label for run in plain] == ["MMD"] * len(plain)
    assert {run.hparams["penalty_weight"] for run in runs} == {0.25}
