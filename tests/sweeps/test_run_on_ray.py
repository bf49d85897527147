"""Sweeps on a real Ray, with real kills: nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import driving
import pytest
import ray
import torch
from driving import drive, log
from typer.testing import CliRunner

from rcalign import api, cli
from rcalign.errors import InputError
from rcalign.store.run_folder import read_config
from rcalign.store.sweep_folder import SweepFolder
from rcalign.sweeps import address, run_on_ray

pytestmark = pytest.mark.slow
LONG = {"algorithms": "ERM", "steps": 1500, "evaluate_every": 75}  # some seconds: long enough to be met under way
LONGER = {**LONG, "steps": 4500, "evaluate_every": 225}  # than workers outlive their driver


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in the workers: figures are compared to the bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """One Ray for all tests of this file that need no Ray of their own; its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(driving.__file__).parent))  # workers find the module there
        context = ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level="error",
        )
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a sweep, not there yet; its data are."""
    driving.make_rows(tmp_path / "rows.npz")
    return tmp_path / "out"


def ids(folder: Path) -> list[str]:
    return [entry["id"] for entry in SweepFolder(folder).plan()["runs"]]


def results(folder: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """Run -> time of writing and content of its result."""
    found = {}
    for run in SweepFolder(folder).finished():
        file = folder / "runs" / run / "result.json"
        found[run] = (file.stat().st_mtime_ns, json.loads(file.read_text()))
    return found


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def under_way(folder: Path) -> dict[str, Any] | None:
    """The process of a run that has a checkpoint and most of its twenty evaluations before it."""
    for run, process in SweepFolder(folder).running().items():
        files = SweepFolder(folder).run(run)
        if files.state_file.exists() and len(files.records()) < 4:
            return {**process, "run": run}
    return None


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("seconds", "folder")}


def test_a_sweep_gives_what_train_gives_and_does_nothing_twice(cluster: str, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = "rows.npz"\nalgorithms = ["ERM", "CRT", "ERM + SWAD"]\ntest_domains = ["0", "2"]\ndraws = 2\n'
        "steps = 20\nevaluate_every = 10\n"
        '[variants."ERM + SWAD"]\nalgorithm = "ERM"\naverage = "swad"\n'
    )
    before = api.sweep(file, out=out)
    assert (before["planned"], before["finished"], before["failed"], before["stopped"]) == (12, 12, 0, None)
    assert [(part["label"], part["finished"]) for part in before["parts"]] == [
        ("ERM", 4),
        ("CRT", 4),
        ("ERM + SWAD", 4),
    ]
    plan = (out / "plan.json").read_bytes()
    found = results(out)
    after = api.sweep(file, out=out)
    assert after == before
    assert results(out) == found
    assert (out / "plan.json").read_bytes() == plan
    for entry in (json.loads(plan)["runs"][k] for k in (3, 7, 11)):  # one of each: plain, two stages, averaged
        alone = api.train(
            entry["data"],
            entry["algorithm"],
            entry["test_domains"],
            steps=20,
            evaluate_every=10,
            seed=entry["seed"],
            hparams=entry["hparams"],
            average=entry.get("average"),
            out=tmp_path / "alone" / entry["id"],
        )
        assert without_times(alone) == without_times(found[entry["id"]][1])


def test_a_sweep_of_adaptation_and_its_report(cluster: str, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = "rows.npz"\nprotocol = "adapt"\nalgorithms = ["DANN", "CDANN", "CORAL", "MMD", "RC-Align to target"]\n'
        'test_domains = ["2"]\nsteps = 6\nevaluate_every = 3\n'
        '[variants."RC-Align to target"]\nalgorithm = "RC-Align"\nhparams.target_alignment = 1\n'
    )
    done = api.sweep(file, out=out)
    assert (done["planned"], done["finished"], done["failed"]) == (5, 5, 0)
    tested = {run: result["confusion"]["2"] for run, (_, result) in results(out).items()}
    assert {sum(map(sum, table)) for table in tested.values()} == {48}  # half of the 96 rows that lodo would test
    assert all(read_config(out / "runs" / run).spec.targets == ("2",) for run in tested)
    table = api.report(out, format="csv")
    rows = [line for line in table.splitlines() if line.startswith("rows,adapt,")]
    assert {line.split(",")[3] for line in rows} == {"DANN", "CDANN", "CORAL", "MMD", "RC-Align to target"}, table


def test_one_run_that_raises_is_listed_and_retried_on_request_only(cluster: str, out: Path) -> None:
    plan = {"algorithms": ["ERM"], "draws": 4}
    bad = _planned(plan, out)[1]

    assert drive(plan, out, workers=2) is None
    found = results(out)
    assert len(found) == 4
    shutil.rmtree(out / "runs" / bad)
    _wrong(out, {bad: "raise"})
    assert drive(plan, out) is None
    status = api.sweep_status(out)
    (failure,) = status["failures"]
    assert (status["finished"], status["failed"], status["waiting"]) == (3, 1, 0)
    assert failure["id"] == bad
    assert failure["run"] == "ERM on rows, 0 held out, draw 1, seed 0"
    assert "the wheel came off" in failure["error"]
    assert "in the second bend" in failure["last_lines"][-1]
    trained = len(log(out))
    assert drive(plan, out) is None
    assert len(log(out)) == trained  # it waits for being asked
    _wrong(out, {})
    assert drive(plan, out, retry_failed=True) is None
    assert [line["id"] for line in log(out)[trained:]] == [bad]
    assert api.sweep_status(out)["failed"] == 0
    assert not (out / "failures" / f"{bad}.json").exists()
    again = results(out)
    assert without_times(again[bad][1]) == without_times(found[bad][1])
    assert {run: again[run] for run in again if run != bad} == {run: found[run] for run in found if run != bad}


def test_one_run_that_hangs_is_stopped_and_the_others_go_on(cluster: str, out: Path) -> None:
    plan = {"algorithms": ["ERM"], "draws": 4}
    hung = _planned(plan, out)[0]
    _wrong(out, {hung: "hang"})
    assert drive(plan, out, stalled_after=8) is None
    (failure,) = api.sweep_status(out)["failures"]
    assert (failure["id"], failure["kind"]) == (hung, "hung")
    assert len(results(out)) == 3
    (pid,) = [line["pid"] for line in log(out) if line["id"] == hung]
    until(lambda: not _alive(pid))


def test_a_worker_that_keeps_dying_fails_its_run_after_some_attempts(
    cluster: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_on_ray, "ATTEMPTS", 2)
    plan = {"algorithms": ["ERM"], "draws": 2}
    deadly = _planned(plan, out)[0]
    _wrong(out, {deadly: "die"})
    assert drive(plan, out, workers=1) is None
    (failure,) = api.sweep_status(out)["failures"]
    assert (failure["id"], failure["kind"]) == (deadly, "died")
    assert Counter(line["id"] for line in log(out))[deadly] == 2
    assert len(results(out)) == 1


def test_a_killed_worker_costs_nothing_but_the_steps_since_its_checkpoint(cluster: str, out: Path) -> None:
    killed: dict[str, Any] = {}

    def kill() -> None:
        killed.update(until(lambda: under_way(out)))
        os.kill(killed["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert drive({**LONG, "draws": 2}, out) is None
    killer.join()
    starts = [line["step"] for line in log(out) if line["id"] == killed["run"]]
    assert len(starts) == 2
    assert starts[0] == 0 < starts[1] < 1500
    assert starts[1] % 75 == 0
    assert len(log(out)) == 3  # the other run was not disturbed
    assert api.sweep_status(out)["finished"] == 2
    _same_as_undisturbed(out, killed["run"])


def test_a_killed_driver_is_started_again_and_a_second_one_is_refused(out: Path) -> None:
    plan = {**LONGER, "draws": 2}
    first = _start(plan, out, workers=1)
    done = until(lambda: results(out))
    midway = until(lambda: under_way(out))
    status = api.sweep_status(out)
    assert (status["driven"], status["running"], status["finished"]) == (True, 1, 1)
    with pytest.raises(InputError, match=f"another sweep is at work .* \\(process {first.pid} on"):
        drive(plan, out)
    first.kill()
    first.wait()
    assert not api.sweep_status(out)["driven"]
    second = _start(plan, out)  # at once: the worker of the first lives on for some seconds
    assert second.wait(timeout=240) == 0
    after = results(out)
    assert len(after) == 2
    assert {run: after[run] for run in done} == done
    assert Counter(line["id"] for line in log(out)) == {run: 2 if run == midway["run"] else 1 for run in after}
    starts = [line["step"] for line in log(out) if line["id"] == midway["run"]]
    assert starts[0] == 0 < starts[1]
    _same_as_undisturbed(out, midway["run"])


def test_ctrl_c_saves_what_runs_on_a_cluster_by_its_address(cluster: str, out: Path) -> None:
    plan = {**LONG, "draws": 2}
    driver = _start(plan, out, address=cluster)
    until(lambda: under_way(out))
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=60)
    assert said.strip() == "stopped"
    status = api.sweep_status(out)
    assert (status["failed"], status["running"], status["driven"]) == (0, 0, False)
    assert status["waiting"] >= 1
    saved = {run for run in ids(out) if (out / "runs" / run / "state.safetensors").exists()} - results(out).keys()
    assert saved
    assert drive(plan, out) is None
    starts = {line["id"]: line["step"] for line in log(out)}  # the last start of each
    assert all(starts[run] > 0 for run in saved)
    assert len(results(out)) == 2


def test_a_full_disk_stops_the_sweep_and_room_lets_it_go_on(cluster: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        driving.make_rows(disk / "rows.npz")
        plan = {"algorithms": ["ERM"], "draws": 12}
        said = drive(plan, disk / "out")
        assert said is not None
        assert "no room is left on the disk" in said
        before = results(disk / "out")
        status = api.sweep_status(disk / "out")
        assert (status["failed"], status["driven"]) == (0, False)
        assert len(before) < 12
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert drive(plan, disk / "out") is None
        after = results(disk / "out")
        assert len(after) == 12
        assert {run: after[run] for run in before} == before
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_winner_is_repeated_with_more_seeds(cluster: str, out: Path) -> None:
    search = {"learning_rate": {"choice": [1e-5, 3e-5]}}
    plan = {"algorithms": ["ERM"], "draws": 3, "seed_rule": "tune-then-repeat", "seeds": 3, "search": search}
    assert drive(plan, out) is None
    runs = SweepFolder(out).plan()["runs"]
    assert [(run["phase"], run["draw"], run["seed"]) for run in runs] == [
        *(("search", draw, 0) for draw in range(3)),
        ("repeat", 0, 1),  # the default learns, the others hardly
        ("repeat", 0, 2),
    ]
    found = results(out)
    assert found.keys() == {run["id"] for run in runs}
    assert {found[run["id"]][1]["seed"] for run in runs[3:]} == {1, 2}
    before = (out / "plan.json").read_bytes()
    assert drive(plan, out) is None
    assert (out / "plan.json").read_bytes() == before
    assert results(out) == found


def test_a_diverged_draw_is_listed_and_does_not_hold_up_the_repetitions(cluster: str, out: Path) -> None:
    search = {"learning_rate": {"choice": [1e30]}}
    plan = {"algorithms": ["ERM"], "draws": 2, "seed_rule": "tune-then-repeat", "seeds": 2, "search": search}
    assert drive(plan, out) is None
    status = api.sweep_status(out)
    assert (status["planned"], status["finished"], status["failed"]) == (3, 2, 1)
    assert status["failures"][0]["kind"] == "diverged"


def test_hopeless_draws_are_given_up_if_the_plan_says_so(
    cluster: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_on_ray, "CHECK_EVERY", 0.05)
    plan = {**LONG, "draws": 3, "search": {"learning_rate": {"choice": [1e-9]}}}
    assert drive({**plan, "early_stopping": {"after": 100, "peers": 1}}, out, workers=1) is None
    status = api.sweep_status(out)
    assert (status["finished"], status["failed"]) == (1, 0)
    assert status["given_up"] == 2
    trained = len(log(out))
    assert drive({**plan, "early_stopping": {"after": 100, "peers": 1}}, out, workers=1) is None
    assert len(log(out)) == trained
    assert drive(plan, out) is None  # without the rule they go on
    assert api.sweep_status(out)["finished"] == 3
    assert all(line["step"] > 0 for line in log(out)[trained:])


def test_a_process_is_used_again_loads_its_data_once_and_has_the_threads_of_a_run(cluster: str, out: Path) -> None:
    assert drive({"algorithms": ["ERM"], "draws": 6}, out, cpus_per_run=2) is None
    lines = log(out)
    assert len(lines) == 6
    assert len({line["pid"] for line in lines}) == 1  # there are two cores, and a run takes both
    assert len({line["data"] for line in lines}) == 1
    threads = {json.loads((out / "runs" / run / "config.json").read_text())["threads"] for run in ids(out)}
    assert threads == {2}


def test_a_half_written_run_folder_is_begun_again(cluster: str, out: Path) -> None:
    (run,) = _planned({"algorithms": ["ERM"]}, out)
    _wrong(out, {run: "raise"})
    drive({"algorithms": ["ERM"]}, out)
    _wrong(out, {})
    folder = out / "runs" / run
    folder.mkdir(parents=True)
    (folder / ".config.json.x1y2").write_text("{")  # a kill between the first byte and the rename
    assert drive({"algorithms": ["ERM"]}, out, retry_failed=True) is None
    assert results(out).keys() == {run}
    assert not list(folder.glob(".config*"))


# --- folders and addresses -------------------------------------------------------------------------------------------


def test_a_folder_holds_one_sweep_which_may_grow(cluster: str, out: Path) -> None:
    assert drive({"algorithms": ["ERM"]}, out) is None
    with pytest.raises(InputError, match=r"holds another sweep \(1 of its 1 runs are not in this plan\)"):
        drive({"algorithms": ["ERM"], "steps": 21}, out)
    before = results(out)
    assert drive({"algorithms": ["ERM", "MMD"], "draws": 2}, out) is None
    after = results(out)
    assert len(after) == 4
    assert {run: after[run] for run in before} == before
    with pytest.raises(InputError, match="holds other files"):
        drive({"algorithms": ["ERM"]}, out.parent)
    with pytest.raises(InputError, match="is not a sweep"):
        api.sweep_status(out.parent)


def test_the_command_line(cluster: str, out: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    file = tmp_path / "plan.toml"
    file.write_text('data = "rows.npz"\nalgorithms = ["ERM"]\nsteps = 10\ndraws = 2\n')
    planned = runner.invoke(cli.app, ["sweep", str(file), "--dry-run"])
    assert "plan: 6 runs" in planned.stdout
    assert not out.exists()
    done = runner.invoke(cli.app, ["sweep", str(file), "--out", str(out), "--workers", "2"])
    assert done.exit_code == 0, done.output
    assert "6 of 6 finished, 0 running, 0 failed, 0 waiting" in done.stdout
    status = runner.invoke(cli.app, ["sweep", "status", str(out), "--json"])
    assert json.loads(status.stdout)["finished"] == 6
    (out / "runs" / ids(out)[0] / "result.json").unlink()
    SweepFolder(out).fail(ids(out)[0], "error", "it rained", ["line 1", "it rained"])
    failed = runner.invoke(cli.app, ["sweep", str(file), "--out", str(out)])
    assert failed.exit_code == 1
    assert "failed: ERM on rows, 0 held out, draw 0, seed 0" in failed.stdout
    assert "--retry-failed" in failed.output
    for arguments, said in (
        (["sweep", "status"], "the folder is missing"),
        (["sweep", str(file), "elsewhere"], "one argument too many"),
        (["sweep", str(file), "--workers", "0"], "`workers` is 0"),
        (["sweep", str(file), "--cpus-per-run", "0"], "`cpus_per_run` is 0"),
    ):
        refused = runner.invoke(cli.app, arguments)
        assert isinstance(refused.exception, InputError)
        assert said in str(refused.exception)


def test_an_unknown_data_set_or_domain_is_said_before_anything_starts(out: Path, tmp_path: Path) -> None:
    for data, domain, said in (
        ("rowz", "0", "unknown data set 'rowz'"),
        ("rows.npz", "zero", "unknown domain of 'rows"),
    ):
        (tmp_path / "plan.toml").write_text(
            f'data = "{data}"\nalgorithms = "ERM"\npreset = "arrays"\ntest_domains = ["{domain}"]\n'
            f'[domains]\n"{data}" = ["0", "1", "zero"]\n'
        )
        with pytest.raises(InputError, match=said):
            api.sweep(tmp_path / "plan.toml", out=out)
        assert not out.exists()


def test_an_address_where_nobody_answers_is_said_within_twenty_seconds() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(InputError, match=f"nobody answers at the Ray address '127.0.0.1:{port}'"):
            address.check_address(f"127.0.0.1:{port}")
        assert time.monotonic() - begun < 10
        silent.listen()  # takes the connection and says nothing
        begun = time.monotonic()
        with pytest.raises(InputError, match="no Ray cluster answers"):
            address.check_address(f"127.0.0.1:{port}")
        assert time.monotonic() - begun < 20


def test_a_cluster_that_asks_for_a_token_says_so(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address.check_address(cluster)  # this process started it and has its token
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(address, "ANSWER_WITHIN", 6.0)
    with pytest.raises(InputError, match="asks for a token"):
        address.check_address(cluster)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _planned(values: dict[str, Any], out: Path) -> list[str]:
    return [run.id for run in driving.planned(values, out.parent)[1]]


def _wrong(out: Path, how: dict[str, str]) -> None:
    (out.parent / "wrong.json").write_text(json.dumps(how))


def _start(plan: dict[str, Any], out: Path, **resources: Any) -> subprocess.Popen[str]:
    command = [sys.executable, driving.__file__, json.dumps(plan), str(out), json.dumps(resources)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _same_as_undisturbed(out: Path, run: str) -> None:
    """The run's figures and records are those of a run that nobody touched."""
    entry = next(entry for entry in SweepFolder(out).plan()["runs"] if entry["id"] == run)
    alone = out.parent / "undisturbed" / run
    result = api.train(
        entry["data"],
        entry["algorithm"],
        entry["test_domains"],
        steps=entry["steps"],
        evaluate_every=entry["evaluate_every"],
        hparams=entry["hparams"],
        out=alone,
    )
    assert without_times(result) == without_times(results(out)[run][1])
    assert (alone / "records.jsonl").read_text() == (out / "runs" / run / "records.jsonl").read_text()
