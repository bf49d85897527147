"""A run killed at random instants goes on to the same bits as one that never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign.errors import InputError
from rcalign.store.run_folder import RunFolder

SCRIPT = Path(__file__).with_name("killing.py")
COMPARED = ("best.safetensors", "last.safetensors", "records.jsonl")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """600 rows of four domains, three classes, unequal class frequencies."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, size=600, p=[0.6, 0.3, 0.1])
    domain = np.arange(600) % 4
    x = rng.normal(size=(600, 8)) + 1.5 * np.eye(8)[y] + 0.7 * np.eye(8)[3 + domain]
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    return tmp_path / "rows.npz"


def train_in_children(out: Path, kills: int, longest: float, arguments: dict[str, Any]) -> dict[str, int]:
    command = [sys.executable, str(SCRIPT), str(out), str(kills), str(longest), json.dumps(arguments)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


CASES = [
    pytest.param("RC-Align", {"centroids": "ema", "dropout": 0.1}, None, 24, id="rc-align"),
    pytest.param("ERM", {}, "swad", 8, id="averaged"),
    pytest.param("CRT", {}, None, 8, id="two stages"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "hparams", "average", "kills"), CASES)
def test_killed_at_random_moments_ends_in_the_same_bits(
    rows: Path, tmp_path: Path, algorithm: str, hparams: dict[str, Any], average: str | None, kills: int
) -> None:
    arguments = {
        "data": str(rows),
        "algorithm": algorithm,
        "test_domains": ["3"],
        "steps": 36 * kills,
        "evaluate_every": 12,
        "hparams": hparams,
        "average": average,
    }
    train_in_children(tmp_path / "straight", 0, 0, arguments)
    report = train_in_children(tmp_path / "killed", kills, 0.2, arguments)
    assert report["kills"] == kills, "the run ended before it was killed often enough"
    for name in COMPARED:
        straight, killed = tmp_path / "straight" / name, tmp_path / "killed" / name
        assert straight.read_bytes() == killed.read_bytes(), name
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("straight", "killed")]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    assert not list((tmp_path / "killed").glob(".*.safetensors.*")), "temporary files are left"


def start(rows: Path, out: Path, steps: int = 100_000) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rcalign.cli", "train", str(rows), "--algorithm", "ERM", "--test-domain", "3"]
    options = ["--steps", str(steps), "--evaluate-every", "50", "--out", str(out)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


IDLE = 60.0  # seconds in which a process that is not stuck gets some processor time, however busy the machine is


def processor_time(process: subprocess.Popen[str]) -> int:
    """Ticks that a process has used; where the system does not tell, it always seems to have used more."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return time.monotonic_ns()
    return int(fields[11]) + int(fields[12])


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Waits as long as the process gets on, not for a time: beside other work, starting alone can take minutes."""
    used, at = processor_time(process), time.monotonic()
    while not path.exists():
        assert process.poll() is None, process.communicate()
        if time.monotonic() - at > IDLE:
            before, used, at = used, processor_time(process), time.monotonic()
            assert used > before, f"the process is stuck, and {path} did not appear"
        time.sleep(0.1)


def errors_at_end(process: subprocess.Popen[str]) -> str:
    """Waits for the end as ``wait_for`` does, and returns what went to standard error."""
    while True:
        before = processor_time(process)
        try:
            return process.communicate(timeout=IDLE)[1]
        except subprocess.TimeoutExpired:
            assert processor_time(process) > before, "the process is stuck"


def test_ctrl_c_saves_the_step_and_says_how_to_go_on(rows: Path, tmp_path: Path) -> None:
    process = start(rows, tmp_path / "run")
    wait_for(tmp_path / "run" / "state.safetensors", process)
    process.send_signal(signal.SIGINT)
    errors = errors_at_end(process)
    assert process.returncode == 130
    assert "--resume" in errors and "Traceback" not in errors
    assert not (tmp_path / "run" / "result.json").exists()
    assert RunFolder(tmp_path / "run").records()[-1].step % 50 == 0


def test_two_processes_in_one_folder_are_refused(rows: Path, tmp_path: Path) -> None:
    from rcalign import api

    process = start(rows, tmp_path / "run")
    try:
        wait_for(tmp_path / "run" / "state.safetensors", process)
        with pytest.raises(InputError, match="another process"):
            api.train(str(rows), "ERM", ["3"], steps=100_000, evaluate_every=50, out=tmp_path / "run", resume=True)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk to fill")
def test_a_full_disk_leaves_no_half_written_file(rows: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    process = start(rows, disk / "run", steps=200)
    try:
        errors = errors_at_end(process)
        assert process.returncode == 2
        assert "no room is left" in errors and "Traceback" not in errors
        assert not [item for item in (disk / "run").iterdir() if ".safetensors." in item.name]
    finally:
        process.kill()  # else the disk is busy
        process.communicate()
        subprocess.run(["umount", str(disk)], check=False)
