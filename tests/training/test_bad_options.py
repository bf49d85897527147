"""Options that cannot be meant are refused in one sentence, before anything is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.algorithms.boda_r import BoDAr
from rcalign.errors import InputError
from rcalign.store.locks import acquire
from rcalign.store.run_folder import read_config
from rcalign.training.job import located

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(90) % 3, np.arange(90) // 3 % 3
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(90, 4)) + y[:, None], y=y, domain=domain)
    return tmp_path / "rows.npz"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "batch_size=inf"], "'batch_size' is 'inf', but a value of type int is expected"),
        (["--set", "batch_size=1e400"], "'batch_size' is '1e400', but a value of type int"),
        (["--set", "batch_size=99999999999"], "the inputs of one step would take"),
        (["--seed", "-1"], "--seed is -1, but must be at least 0"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999, but must be at most 4294967295"),
        (["--steps", "0"], "--steps is 0, but must be at least 1"),
        (["--image-size", "0"], "--image-size is 0, but must be at least 1"),
        (["--image-size", "32"], "--image-size needs images, but the data are arrays"),
        (["--weights", "none"], "--weights needs images, but the data are arrays"),
        (["--freeze-backbone"], "--freeze-backbone needs images, but the data are arrays"),
        (["--evaluate-every", "0"], "--evaluate-every is 0, but must be at least 1"),
        (["--protocol", "mldt"], "did you mean 'mdlt'"),
        (["--average", "emma"], "did you mean 'ema'"),
        (["--protocol", "mdlt"], "leave --test-domain out"),
        (["--split", "domains"], "--split is 'domains', but workers always divide the rows of every domain"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_named_and_leaves_nothing(rcalign: Run, rows: Path, words: list[str], said: str) -> None:
    before = sorted(rows.parent.rglob("*"))
    code, _, err = rcalign("train", rows, "--algorithm", "ERM", "--test-domain", "2", "--out", "run", *words)
    assert code == 2 and said in err and "Traceback" not in err and "`" not in err, err
    assert sorted(rows.parent.rglob("*")) == before


def test_the_library_speaks_of_arguments(rows: Path) -> None:
    with pytest.raises(InputError, match="`test_domains` is missing"):
        api.train(rows, "ERM")
    with pytest.raises(InputError, match="unknown option 'step': did you mean 'steps'"):
        api.train(rows, "ERM", ["2"], step=3)


@pytest.mark.parametrize(
    ("y", "domain"), [([0] * 12, [0, 1, 2] * 4), ([0, 1, 1], [0, 0, 1])], ids=["one class", "three rows"]
)
def test_data_that_teach_nothing_are_refused(tmp_path: Path, y: list[int], domain: list[int]) -> None:
    np.savez(tmp_path / "few.npz", x=np.random.default_rng(0).normal(size=(len(y), 2)), y=y, domain=domain)
    with pytest.raises(InputError, match=r"one class only|no source domain has it"):
        api.train(tmp_path / "few.npz", "ERM", ["1"], steps=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_of_training_are_refused_where_a_run_is_evaluated(rcalign: Run, rows: Path) -> None:
    for words in (["--seeds", "3"], ["--steps", "4"], ["--set", "dropout=0.1"], ["--algorithm", "CORAL"]):
        code, _, err = rcalign("evaluate", "nothing", *words)
        assert code == 2 and f"{words[0]} is for training" in err


def test_a_run_is_evaluated_from_another_folder(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = api.train("rows.npz", "ERM", ["2"], steps=2, out="run")
    assert read_config("run").data == str(rows)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert api.evaluate("../run")["accuracy"] == trained["accuracy"]
    # a run that an older version kept with the path as it was typed can be resumed by any path to the same data
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    for name in ("imports", "skip_bad", "workers", "ray", "accumulate", "table"):
        config.pop(name, None)
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "data": "rows.npz"}))
    assert api.train("../rows.npz", "ERM", ["2"], steps=2, out="../run", resume=True)["accuracy"] == trained["accuracy"]


def test_where_data_are_is_kept_for_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("PACS:root=bench,rows=3") == f"PACS:root={tmp_path / 'bench'},rows=3"
    assert located(Path("emoji")) == str(tmp_path / "emoji")
    assert located("table.csv?label=a/b&domain=c") == f"{tmp_path / 'table.csv'}?label=a/b&domain=c"


def test_the_lock_of_a_first_stage_is_released_after_an_exception(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, batch: Any) -> Any:
        raise RuntimeError("the wheel came off")

    monkeypatch.setattr(BoDAr, "step", broken)
    with pytest.raises(RuntimeError, match="the wheel came off"):
        api.train(rows, "BoDA_r,c", protocol="mdlt", steps=2, out=tmp_path / "run")
    lock = acquire(tmp_path / "run" / "stage-1" / ".lock")
    assert lock is not None and os.path.exists(tmp_path / "run" / "stage-1" / "config.json")
    lock.release()
