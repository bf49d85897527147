"""Runs on several workers, in real processes: killed, resumed on another number of them, wrongly used."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import printed, start

from rcalign import api, distributed
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError
from rcalign.store.locks import acquire
from rcalign.store.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"algorithm": "RC-Align", "test_domains": ["3"], "steps": 400, "evaluate_every": 10}
FLAGS = ["--algorithm", "RC-Align", "--test-domain", "3", "--steps", "400", "--evaluate-every", "10"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = rng.choice(3, size=600, p=[0.6, 0.3, 0.1])
    domain = np.arange(600) % 4
    x = rng.normal(size=(600, 8)) + 1.5 * np.eye(8)[y] + 0.7 * np.eye(8)[3 + domain]
    file = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(file, x=x, y=y, domain=domain)
    return file


@pytest.fixture(scope="module")
def straight(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one worker that never stopped."""
    out = tmp_path_factory.mktemp("straight") / "run"
    api.train(str(rows), out=out, **OPTIONS)  # type: ignore[arg-type]
    return out


def torchrun(size: int, *arguments: str) -> subprocess.Popen[str]:
    """A new process group, so that all of its workers can be killed at once."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return subprocess.Popen(
        [*command, "-m", "rcalign", "train", *arguments],
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_it_has(rows: int, folder: Path, process: subprocess.Popen[str]) -> None:
    """Waits for evaluations of a run; it ends when the run does, not by a clock."""
    while len(RunFolder(folder).records()) < rows:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)


def assert_same_run(found: Path, expected: Path) -> None:
    ours, theirs = RunFolder(found).records(), RunFolder(expected).records()
    assert [row.step for row in ours] == [row.step for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        if a.step <= 120:  # in single precision the order of sums is felt in the end
            np.testing.assert_allclose(a.loss, b.loss, rtol=1e-3)
        np.testing.assert_allclose(a.validation, b.validation, atol=0.03)
    assert abs(RunFolder(found).result().average - RunFolder(expected).result().average) < 0.03  # type: ignore[union-attr]


@pytest.mark.slow
def test_killed_on_three_workers_a_run_goes_on_with_one_or_two(rows: Path, straight: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = torchrun(3, str(rows), *FLAGS, "--out", str(killed))
    until_it_has(3, killed, process)
    kill_all(process, killed, workers=3)
    shutil.copytree(killed, tmp_path / "two")
    api.train(str(rows), out=killed, resume=True, **OPTIONS)  # type: ignore[arg-type]
    assert_same_run(killed, straight)
    process = torchrun(2, str(rows), *FLAGS, "--out", str(tmp_path / "two"), "--resume")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.count("Run folder:") == 1, "only the first worker speaks"
    assert_same_run(tmp_path / "two", straight)


@pytest.mark.slow
def test_killed_and_resumed_on_two_workers_a_run_has_the_same_bits(rows: Path, tmp_path: Path) -> None:
    flags = ["--algorithm", "RC-Align", "--test-domain", "3", "--steps", "150", "--evaluate-every", "10"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    output, _ = (process := torchrun(2, str(rows), *flags, "--out", str(straight))).communicate()
    assert process.returncode == 0, output
    process = torchrun(2, str(rows), *flags, "--out", str(killed))
    until_it_has(3, killed, process)
    kill_all(process, killed, workers=2)
    output, _ = (process := torchrun(2, str(rows), *flags, "--out", str(killed), "--resume")).communicate()
    assert process.returncode == 0, output
    assert (killed / "records.jsonl").read_bytes() == (straight / "records.jsonl").read_bytes()
    for name in ("best.safetensors", "last.safetensors"):
        found, expected = load_weights(killed / name), load_weights(straight / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[key]) for key, value in found.items()), name


def kill_all(process: subprocess.Popen[str], run: Path, workers: int) -> None:
    """Kills torchrun and its workers in the middle of a run, and waits until the system has ended them."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _descends(int(folder.name), process.pid)]
    assert len(pids) > workers, "torchrun and its workers, which have process groups of their own"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    while (lock := acquire(run / ".lock")) is None:  # until the system has ended all their threads
        time.sleep(0.05)
    lock.release()
    assert RunFolder(run).result() is None, "the run was faster than the kill"


@pytest.mark.slow
def test_a_worker_of_ray_that_dies_is_started_again(rows: Path, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "rcalign", "train", str(rows), *FLAGS, "--out", str(out), "--workers", "2"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until_it_has(2, out, process)
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::") and b"RayTrainWorker" in title and _descends(int(folder.name), process.pid):
            os.kill(int(folder.name), signal.SIGKILL)
            killed += 1
            break
    output, _ = process.communicate()
    assert killed == 1 and process.returncode == 0, output
    assert_same_run(out, straight)
    assert not list(tmp_path.glob(".*")), "nothing of Ray's is left beside the run"


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a living process is another, or was started by it or by what it started."""
    while pid > 1:
        try:
            state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        if state == "Z":
            return False
        if pid == ancestor:
            return True
        pid = int(parent)
    return False


def test_one_worker_in_pieces_gives_the_same_run(rows: Path, straight: Path, tmp_path: Path) -> None:
    api.train(str(rows), out=tmp_path / "run", accumulate=4, **OPTIONS)  # type: ignore[arg-type]
    assert_same_run(tmp_path / "run", straight)


def test_more_pieces_than_rows_are_refused_before_a_folder_is_made(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch_size is 4 rows of each domain, fewer than 1 x 8 pieces"):
        api.train(str(rows), out=tmp_path / "run", accumulate=8, hparams={"batch_size": 4}, **OPTIONS)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def environment(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", **values}.items():
        monkeypatch.setenv(name, str(value))


def test_a_worker_that_never_arrives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(distributed, "ARRIVAL_SECONDS", 1)
    environment(monkeypatch, MASTER_PORT=port)
    with pytest.raises(InputError, match="worker 0 of 2 waited 1 s for worker 1"), distributed.process_group():
        pass


def test_a_port_in_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(distributed, "ARRIVAL_SECONDS", 1)
        environment(monkeypatch, MASTER_PORT=other.getsockname()[1])
        with pytest.raises(InputError, match="in use"), distributed.process_group():
            pass


# one of two workers: its name stands in the path of its data, or of its run folder
REFUSED = """
import os, sys
from rcalign import api, distributed
from rcalign.errors import InputError
data, out = (text.replace("RANK", os.environ["RANK"]) for text in sys.argv[1:])
distributed.ARRIVAL_SECONDS = 1200  # imports may take long beside other work
try:
    with distributed.process_group():
        api.train(data, out=out, algorithm="ERM", test_domains=["3"], steps=1)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("rows-RANK.npz", "run", "the code, the data or an option of worker 1 differs from that of worker 0"),
        ("rows-0.npz", "run-RANK", "worker 1: the run folder '{}/run-1' is not there on this machine"),
    ],
    ids=["other data", "no shared folder"],
)
def test_a_run_refused_because_workers_differ_leaves_no_run_behind(
    data: str, out: str, message: str, rows: Path, tmp_path: Path
) -> None:
    values = dict(np.load(rows))
    np.savez(tmp_path / "rows-0.npz", **values)
    np.savez(tmp_path / "rows-1.npz", **{**values, "x": values["x"] + 1})
    for said in printed(start(2, "-c", REFUSED, tmp_path / data, tmp_path / out)):
        assert said.startswith(message.format(tmp_path))
    assert not list(tmp_path.rglob("config.json"))
    api.train(str(rows), out=tmp_path / out.replace("RANK", "0"), algorithm="ERM", test_domains=["3"], steps=1)
