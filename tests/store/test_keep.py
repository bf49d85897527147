"""What a finished run leaves on the disk, and the forecast of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError
from rcalign.store.forecast import measured
from rcalign.store.json_files import read_object, write_json

OPTIONS: dict[str, Any] = {"steps": 20, "evaluate_every": 5, "hparams": {"batch_size": 8}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(file, x=rng.normal(size=(240, 6)), y=np.arange(240) % 3, domain=np.arange(240) // 3 % 4)
    return file


@pytest.fixture(scope="module")
def kept(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run for each choice."""
    root = tmp_path_factory.mktemp("runs")
    for keep in ("best", "last", "every", "none"):
        api.train(rows, "ERM", ["3"], out=root / keep, keep=keep, **OPTIONS)
    return {path.name: path for path in root.iterdir()}


def weights(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*.safetensors")}


def test_a_finished_run_keeps_the_weights_that_were_asked_for(kept: dict[str, Path]) -> None:
    assert weights(kept["none"]) == set()
    assert weights(kept["best"]) == {"best.safetensors"}
    assert weights(kept["last"]) == {"best.safetensors", "last.safetensors"}
    steps = {f"step-{step:06d}.safetensors" for step in (5, 10, 15, 20)}
    assert weights(kept["every"]) == {"best.safetensors", "last.safetensors", *steps}


def test_what_is_kept_changes_no_figure(kept: dict[str, Path]) -> None:
    results = [read_object(folder / "result.json") for folder in kept.values()]
    assert all(found["metrics"] == results[0]["metrics"] for found in results)  # type: ignore[index]


def test_a_run_without_weights_says_so(kept: dict[str, Path], rows: Path) -> None:
    with pytest.raises(InputError, match="kept no weights"):
        api.predict(kept["none"], [rows])
    with pytest.raises(InputError, match="kept no weights"):
        measured(kept["none"])


def test_a_finished_run_is_found_finished_whatever_it_kept(kept: dict[str, Path], rows: Path) -> None:
    again = api.train(rows, "ERM", ["3"], out=kept["none"], keep="none", resume=True, **OPTIONS)
    assert again["steps"] == 20 and weights(kept["none"]) == set()


def test_short_weights_take_half_and_predict_almost_the_same(rows: Path, kept: dict[str, Path], tmp_path: Path) -> None:
    options = {**OPTIONS, "keep": "best", "kept_precision": "bf16"}
    api.train(rows, "ERM", ["3"], out=tmp_path / "short", **options)
    short, full = (folder / "best.safetensors" for folder in (tmp_path / "short", kept["best"]))
    assert short.stat().st_size < 0.55 * full.stat().st_size
    assert {value.dtype for value in load_weights(short).values()} >= {torch.bfloat16}
    a, b = (api.evaluate(folder)["metrics"]["nll"]["3"] for folder in (tmp_path / "short", kept["best"]))
    assert abs(a["test"] - b["test"]) < 0.02


@pytest.mark.parametrize("keep", ["best", "last", "every", "none"])
def test_the_forecast_is_what_a_run_takes(kept: dict[str, Path], keep: str) -> None:
    taken = sum(file.stat().st_size for file in kept[keep].iterdir() if file.is_file() and file.name != ".lock")
    assert measured(kept["last"]).bytes(keep) == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("keep", ["best", "none"])
def test_the_forecast_counts_a_first_stage(rows: Path, tmp_path: Path, keep: str) -> None:
    for kept in ("last", keep):
        api.train(rows, "CRT", ["3"], out=tmp_path / kept, keep=kept, **OPTIONS)
    files = [file for file in (tmp_path / keep).rglob("*") if file.is_file() and file.name != ".lock"]
    assert any(file.parent.name == "stage-1" for file in files)
    measure = measured(tmp_path / "last")
    assert measure.bytes(keep) == pytest.approx(sum(file.stat().st_size for file in files), rel=0.02)
    stages = [read_object(tmp_path / "last" / part / "result.json")["seconds"] for part in (".", "stage-1")]
    assert measure.seconds_per_step == pytest.approx(sum(stages) / 20)  # type: ignore[arg-type]


def test_winners_are_counted_where_a_search_keeps_nothing(rows: Path, kept: dict[str, Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    text = (
        f'data = "{rows}"\nalgorithms = ["ERM", "CORAL"]\ntest_domains = "each"\ndraws = 3\nsteps = 20\npairs = true\n'
    )
    plan.write_text(text)
    nothing, best = (measured(kept["best"]).bytes(keep) for keep in ("none", "best"))
    found = api.sweep(plan, dry_run=True, keep="none", measured_by=[kept["best"]])["forecast"]["winners"]
    assert found == {"runs": 2 * 4, "bytes": 8 * best}  # pairs only serve to choose
    assert api.sweep(plan, dry_run=True, keep="best", measured_by=[kept["best"]])["forecast"]["winners"] is None
    plan.write_text(text + 'seed_rule = "tune-then-repeat"\nseeds = 3\n')
    planned = api.sweep(plan, dry_run=True, keep="none", measured_by=[kept["best"]])
    assert planned["repeats"] == 8 * 2 and planned["forecast"]["winners"] is None  # the plan itself keeps them
    assert planned["forecast"]["bytes"] == planned["planned"] * nothing + 16 * best


def test_a_search_keeps_the_weights_of_winners_only(rows: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'data = "{rows}"\nalgorithms = "ERM"\ntest_domains = ["3"]\ndraws = 3\nsteps = 20\n')
    found = api.sweep(plan, dry_run=True, keep="none", measured_by=[])
    assert {run["keep"] for run in found["runs"]} == {"none"} and "forecast" not in found


def test_lists_of_numbers_take_one_line(tmp_path: Path) -> None:
    value = {"confusion": [[1, 2], [3, -4.5e-3]], "names": ["a", "[ 1, 2 ]"], "empty": []}
    write_json(tmp_path / "a.json", value)
    assert read_object(tmp_path / "a.json") == value
    assert "[1, 2]" in (tmp_path / "a.json").read_text()
