"""Locks that vanish with their process, and a status that reads the folder only."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rcalign.errors import InputError
from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record, RunFolder
from rcalign.store.sweep_folder import SweepFolder, read_status

HOLD = """
import sys, time
from rcalign.store.results import RunResult
from rcalign.store.sweep_folder import SweepFolder
with SweepFolder(sys.argv[1]).training("a"):
    print("held", flush=True)
    time.sleep(60)
"""


def entry(run: str, label: str = "ERM", phase: str = "search") -> dict[str, object]:
    return {
        "id": run,
        "data": "/data/rows.npz",
        "label": label,
        "test_domains": ["0"],
        "draw": 0,
        "seed": 0,
        "phase": phase,
    }


def finish(folder: SweepFolder, run: str, validation: float) -> None:
    folder.run(run).path.mkdir(parents=True)
    folder.run(run).finish(result_with(validation))


def result_with(validation: float) -> RunResult:
    return RunResult(
        algorithm="ERM", seed=0, protocol="lodo", preset="arrays", data="rows.npz", test_domains=["0"],
        accuracy={"0": 0.5}, average=0.5, worst=0.5, balanced={"0": 0.5}, shots={}, ece=0.1, validation=validation,
        steps=10, seconds=10.0, best_step=10, weights="best validation accuracy",
    )  # fmt: skip


@pytest.mark.parametrize("inside", ["", "stage-1", "with-validation", "stage-1/stage-1"])
def test_every_training_of_a_run_counts_as_progress(tmp_path: Path, inside: str) -> None:
    folder = SweepFolder(tmp_path)
    run = folder.run("a")
    (run.path / inside).mkdir(parents=True)
    run.append(Record(step=10, loss=0.1, metrics={"accuracy": {}}, validation=0.5))
    before, steps = folder.last_heartbeat("a"), run.evaluated_steps()
    time.sleep(0.02)
    RunFolder(run.path / inside).append(Record(step=15, loss=0.1, metrics={"accuracy": {}}, validation=0.5))
    assert folder.last_heartbeat("a") > before
    assert run.evaluated_steps() > steps


def test_a_lock_is_seen_from_outside_and_goes_with_its_process(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert folder.running()["a"]["pid"] == holder.pid
    with (
        pytest.raises(InputError, match=f"still being trained by process {holder.pid}"),
        folder.training("a", wait=0.2),
    ):
        pass
    threading.Timer(0.5, holder.kill).start()
    begun = time.monotonic()
    with folder.training("a", wait=30):  # waits for the kill, then takes over
        assert time.monotonic() - begun > 0.2
    holder.wait()
    assert folder.running() == {}
    assert not (tmp_path / "running" / "a.json").exists()


def test_many_who_want_one_lock_get_it_one_after_another(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def want() -> None:
        for _ in range(20):
            with folder.training("a"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    wanting = [threading.Thread(target=want) for _ in range(4)]
    for thread in wanting:
        thread.start()
    for thread in wanting:
        thread.join()
    assert most == [1] * 80


def test_status_counts_every_run_once(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    names = ["done", "better", "failed", "mended", "given", "runs", "begun", "later"]
    folder.begin("mine", "domainbed", [entry(name, "MMD" if name == "better" else "ERM") for name in names])
    for run, validation in (("done", 0.5), ("better", 0.75), ("mended", 0.25), ("of another plan", 1.0)):
        finish(folder, run, validation)
    folder.fail("failed", "error", "it rained", ["wet"])
    folder.fail("mended", "error", "it rained", ["wet"])
    folder.give_up("given", 100, 0.1)
    folder.run("begun").path.mkdir()
    with folder.training("runs"):
        found = read_status(tmp_path)
    assert (found.planned, found.finished, found.running, found.failed, found.given_up, found.waiting) == (
        8,
        3,
        1,
        1,
        1,
        2,
    )
    assert [(part.label, part.finished, part.planned, part.best) for part in found.parts] == [
        ("ERM", 2, 7, 0.5),
        ("MMD", 1, 1, 0.75),
    ]
    assert found.failures == (
        {
            "run": "ERM on rows, 0 held out, draw 0, seed 0",
            "id": "failed",
            "kind": "error",
            "error": "it rained",
            "last_lines": ["wet"],
        },
    )
    assert found.seconds_left == pytest.approx(10 * (2 / 1 + 0.5))
    assert read_status(tmp_path).seconds_left is None  # nobody is at work


def test_a_note_cut_short_is_said_not_raised(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.begin("mine", "domainbed", [entry("a")])
    folder.fail("a", "error", "it rained", [])
    (tmp_path / "failures" / "a.json").write_text('{"id": "a", "er')
    assert read_status(tmp_path).failures[0]["error"] == "its note cannot be read"


def test_the_plan_file(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    folder.begin('a "name"', "tune-then-repeat", [entry("a"), entry("b", phase="repeat")])
    plan = json.loads(folder.plan_file.read_text())
    assert (plan["format"], plan["name"], plan["seed_rule"]) == (1, 'a "name"', "tune-then-repeat")
    assert plan["runs"] == [entry("a"), entry("b", phase="repeat")]
    folder.begin("another name", "tune-then-repeat", [entry("a"), entry("c")])  # repetitions may change, searches grow
    with pytest.raises(InputError, match="1 of its 2 runs are not in this plan"):
        folder.begin("mine", "tune-then-repeat", [entry("a")])
    folder.plan_file.write_text('{"format": 1, "ru')
    with pytest.raises(InputError, match="is damaged"):
        read_status(folder.path)
    folder.run("a").path.mkdir(parents=True)
    with pytest.raises(InputError, match="1 of its 1 runs"):
        folder.begin("mine", "domainbed", [entry("b")])
    folder.begin("mine", "domainbed", [entry("a")])  # restores it
    assert read_status(folder.path).planned == 1
    folder.plan_file.write_text('{"format": 2, "runs": []}')
    with pytest.raises(InputError, match="newer rcalign"):
        read_status(folder.path)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made a folder"), SweepFolder(tmp_path / "file").driving():
        pass
