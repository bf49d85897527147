"""Array jobs: tasks that really run divide the runs among themselves; nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import driving
import pytest
import torch
from driving import log
from typer.testing import CliRunner

from rcalign import api, cli
from rcalign.errors import InputError
from rcalign.store.sweep_folder import SweepFolder, read_status

PLAN = """
data = "rows.npz"
algorithms = "ERM"
test_domains = ["0", "1"]
draws = 2
steps = {steps}
evaluate_every = {every}
imports = ["driving"]
{more}
"""
LONG = {"steps": 600, "every": 20}
SHORT = {"steps": 20, "every": 10}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with data, whose PATH has an ``sbatch``; what was started is ended afterwards."""
    driving.make_rows(tmp_path / "rows.npz")
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "sbatch"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("sbatch.py")} "$@"\n')
    script.chmod(0o755)
    here = os.pathsep.join([str(Path(driving.__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", here)
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for pid in [pid for job in jobs(tmp_path) for pid in job["pids"]]:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def plan(folder: Path, size: dict[str, int], more: str = "") -> Path:
    file = folder / "plan.toml"
    file.write_text(PLAN.format(**size, more=more))
    return file


def jobs(folder: Path) -> list[dict[str, Any]]:
    file = folder / "sbatch.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def wait_for_tasks(folder: Path) -> None:
    until(lambda: not any(is_alive(pid) for job in jobs(folder) for pid in job["pids"]))


def figures(folder: Path) -> dict[str, Any]:
    """Run -> its result without times and places, and its weights."""
    found = {}
    for run in SweepFolder(folder).finished():
        path = folder / "runs" / run
        result = json.loads((path / "result.json").read_text())
        for name in ("seconds", "folder", "started", "host"):
            result.pop(name, None)
        found[run] = (result, (path / "best.safetensors").read_bytes())
    return found


def under_way(folder: Path) -> dict[str, Any] | None:
    """The process of a run that has a checkpoint and most of its evaluations before it."""
    sweep = SweepFolder(folder)
    for run, process in sweep.running().items():
        if sweep.run(run).state_file.exists() and len(sweep.run(run).records()) < 15:
            return {**process, "run": run}
    return None


@pytest.mark.slow
def test_tasks_divide_the_runs_and_the_next_job_takes_up_what_a_killed_task_left(cluster: Path) -> None:
    file = plan(cluster, LONG)
    out = cluster / "out"
    done = api.sweep(file, out=out, slurm="--partition gpu --time 8:00:00", slurm_tasks=2)
    assert done["slurm"]["tasks"] == 2 and done["planned"] == 4
    (job,) = jobs(cluster)
    assert job["options"]["cpus-per-task"] == "1" and job["options"]["signal"].startswith("B:TERM@")
    victim = until(lambda: under_way(out))
    assert victim["pid"] in job["pids"]  # exec: the process that Slurm signals is the one that trains
    with pytest.raises(InputError, match="at work"):
        api.sweep(file, out=out, workers=1)  # no driver beside them
    os.kill(victim["pid"], signal.SIGKILL)
    wait_for_tasks(cluster)
    starts = Counter(line["id"] for line in log(out))
    assert all(count == 1 for run, count in starts.items() if run != victim["run"])
    status = read_status(out)
    assert not status.driven and status.failed == 0

    if status.finished < 4:  # else the other task was quick enough to take it up itself
        again = api.sweep(file, out=out, slurm="", slurm_tasks=3)
        assert again["slurm"]["tasks"] == 4 - status.finished
        wait_for_tasks(cluster)
    assert read_status(out).finished == 4
    assert [line["step"] > 0 for line in log(out) if line["id"] == victim["run"]] == [False, True]
    assert not SweepFolder(out).processes() and not list((out / "attempts").iterdir())
    assert (
        "Nothing is left" in CliRunner().invoke(cli.app, ["sweep", str(file), "--out", str(out), "--slurm", ""]).output
    )

    before = torch.get_num_threads()
    api.sweep(file, out=cluster / "local", workers=1)
    torch.set_num_threads(before)
    assert figures(out) == figures(cluster / "local")
    assert "ERM" in api.report(out)


@pytest.mark.slow
def test_a_process_told_to_stop_saves_its_state_and_the_next_goes_on(cluster: Path) -> None:
    file = plan(cluster, LONG, 'seed_rule = "tune-then-repeat"\nseeds = 2')
    out = cluster / "out"

    def tell() -> None:
        until(lambda: under_way(out))
        os.kill(os.getpid(), signal.SIGTERM)  # what comes before the time limit

    telling = threading.Thread(target=tell)
    telling.start()
    done = api.sweep(file, out=out, join=True)
    telling.join()
    assert done["stopped"] == "stopped" and done["finished"] == 0
    assert not list((out / "attempts").iterdir())  # it did not die
    (stopped,) = [run for run in SweepFolder(out).started() if SweepFolder(out).run(run).state_file.exists()]
    kept = SweepFolder(out).run(stopped).records()

    done = api.sweep(file, out=out, join=True)
    assert done["finished"] == 6 and done["planned"] == 6  # two winners with the second seed
    assert SweepFolder(out).run(stopped).records()[: len(kept)] == kept


def test_a_run_whose_processes_die_is_not_tried_for_ever(cluster: Path) -> None:
    """A real death is in the test above; here three were counted."""
    file, out = plan(cluster, SHORT), cluster / "out"
    folder = SweepFolder(out)
    with pytest.raises(InputError, match="invalid partition"):
        api.sweep(file, out=out, slurm="--partition closed")  # which has written the plan
    first, second, *_ = [entry["id"] for entry in folder.plan()["runs"]]
    for _ in range(3):
        folder.count_attempt(first, 0)
        folder.count_attempt(second, 0)
    folder.count_attempt(second, 10)  # it got further: its deaths count anew
    done = api.sweep(file, out=out, join=True)
    assert done["finished"] == 3
    assert [(one["id"], one["kind"]) for one in done["failures"]] == [(first, "died")]
    with pytest.raises(InputError, match="invalid partition"):
        api.sweep(file, out=out, slurm="--partition closed", retry_failed=True)
    assert api.sweep(file, out=out, join=True)["finished"] == 4


def test_this_process_can_join_by_itself(cluster: Path) -> None:
    """No cluster needed: ``--join`` is what tasks do."""
    file = plan(cluster, SHORT)
    done = api.sweep(file, out=cluster / "out", join=True)
    assert done["finished"] == 4 and done["stopped"] is None and not jobs(cluster)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slurm", "--partition closed"], "invalid partition"),
        (["--slurm", "--array=0-9"], "--array, which is decided here"),
        (["--slurm", "gpu"], "options of sbatch are expected"),
        (["--slurm", "'unclosed"], "cannot be read as options"),
        (["--slurm", "", "--gpus-per-run", "0.5"], "whole number"),
        (["--slurm", "", "--slurm-tasks", "0"], "at least 1"),
        (["--slurm", "", "--workers", "2"], "--slurm-tasks"),
        (["--slurm-tasks", "2"], "without --slurm"),
        (["--slurm", "", "--join"], "two ways"),
    ],
)
def test_wrong_options_are_one_sentence(
    cluster: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(cluster, SHORT)
    monkeypatch.setattr(sys, "argv", ["rcalign", "sweep", str(file), "--out", str(cluster / "out"), *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err.strip()
    assert end.value.code == 2 and words in said and "\n" not in said


def test_early_stopping_and_a_missing_sbatch_are_said(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = plan(cluster, SHORT, "[early_stopping]\nafter = 10")
    with pytest.raises(InputError, match="early_stopping"):
        api.sweep(file, out=cluster / "out", slurm="")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="login node"):
        api.sweep(file, out=cluster / "out", slurm="")
