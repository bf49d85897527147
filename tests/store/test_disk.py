"""Locks, results and names as they lie on disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pytest

from rcalign import api
from rcalign.errors import InputError
from rcalign.reports.report import make_report
from rcalign.store import locks, places
from rcalign.store.json_files import append_line, read_lines
from rcalign.store.read_runs import read_runs
from rcalign.store.run_folder import RunFolder

HOLD = """
import sys, time
from pathlib import Path
from rcalign.store.locks import acquire
held = acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(90, 3)), y=np.arange(90) % 2, domain=np.arange(90) % 3)
    return tmp_path / "rows.npz"


def test_a_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    assert locks.is_held(file) and locks.acquire(file) is None
    holder.kill()
    holder.wait()
    found = locks.acquire(file, wait=20)
    assert found is not None
    found.release()
    assert not locks.is_held(file)


@pytest.mark.filterwarnings("ignore:flock not supported")  # filelock's own, of the weaker lock it would fall back to
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system call itself is replaced: there is no such file system here to mount."""

    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(InputError) as error:
        locks.acquire(tmp_path / ".lock")
    expected = f"'{tmp_path}' is on a file system without file locks; put the run folder on a local disk."
    assert str(error.value) == expected


def test_two_trainings_do_not_share_a_folder(rows: Path, tmp_path: Path) -> None:
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run")
    lock = filelock.FileLock(tmp_path / "run" / ".lock")
    with lock, pytest.raises(InputError, match="another process is training"):
        api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run", resume=True)
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run", resume=True)


def test_a_result_of_an_earlier_version_is_read(rows: Path, tmp_path: Path) -> None:
    made = api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run")
    file = tmp_path / "run" / "result.json"
    values = json.loads(file.read_text())
    for name in ("metrics", "shot_limits", "calibration", "batch_dependent", "confusion", "classes"):
        del values[name]
    file.write_text(json.dumps({**values, "of an unknown version": 1}))
    result = RunFolder(tmp_path / "run").result()
    assert result is not None and result.accuracy == made["accuracy"] and result.temperature == 1.0
    del values["validation"]
    file.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"is damaged .*'validation'"):
        RunFolder(tmp_path / "run").result()


def test_a_result_is_the_same_after_writing_and_reading(rows: Path, tmp_path: Path) -> None:
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run")
    result = RunFolder(tmp_path / "run").result()
    assert result is not None
    assert result.to_json() == json.loads((tmp_path / "run" / "result.json").read_text())
    assert type(result).from_json(result.to_json()) == result


def test_lines_survive_a_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for k in range(3):
        append_line(file, {"step": k})
    whole = file.read_text()
    for cut in range(len(whole)):
        file.write_text(whole[:cut])
        rows, notes = read_lines(file)
        # a row is whole with its closing brace, with or without the end of its line
        assert [row["step"] for row in rows] == list(range(whole[:cut].count("}")))
        assert len(notes) == (0 if whole[:cut].endswith(("}", "\n")) or not cut else 1)


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"evaluate_every": 1}])
def test_runs_that_differ_in_one_setting_are_two_draws(options: dict[str, object], rows: Path, tmp_path: Path) -> None:
    """They were called "the same run twice", which ended the report."""
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "runs" / "a")
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "runs" / "b", **options)  # type: ignore[arg-type]
    assert [run.draw for run in read_runs(tmp_path / "runs").runs] == [0, 1]
    api.report(tmp_path / "runs")


def test_a_benchmark_is_called_by_its_name_wherever_it_lies(rows: Path, tmp_path: Path) -> None:
    """`PACS:root=/data/bench` was reported as "bench" and lost the published comparison."""
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "data": "PACS:root=/data/bench"}))
    assert [run.data for run in read_runs(tmp_path / "run").runs] == ["PACS"]
    (table, *_) = make_report(tmp_path / "run", compare="published").tables
    assert any(row[0].text.startswith("ERM, published") for row in table.rows)


def test_old_places_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RCALIGN_CACHE", raising=False)
    monkeypatch.delenv("RCALIGN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert places.default_cache_root() == tmp_path / "caches" / "rcalign"
    assert places.default_data_root() == tmp_path / "share" / "rcalign"
    for old in (".cache", ".local/share"):
        (tmp_path / old / "rcalign").mkdir(parents=True)
    assert places.default_cache_root() == tmp_path / ".cache" / "rcalign"
    assert places.default_data_root() == tmp_path / ".local" / "share" / "rcalign"
    (tmp_path / "share" / "rcalign").mkdir(parents=True)  # both: the platform's place
    assert places.default_data_root() == tmp_path / "share" / "rcalign"
    monkeypatch.setenv("RCALIGN_DATA", str(tmp_path / "given"))
    assert places.default_data_root() == tmp_path / "given"


def test_configurations_of_runs_are_frozen(rows: Path, tmp_path: Path) -> None:
    api.train(rows, "ERM", ["0"], steps=2, out=tmp_path / "run")
    (run,) = read_runs(tmp_path / "run").runs
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.result.validation = 1.0  # type: ignore[misc, union-attr]
