"""Workers of a test as processes of their own, found through the environment as torchrun's are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(size: int, *command: str | Path) -> list[subprocess.Popen[str]]:
    """So many workers, each running Python with these arguments."""
    path = os.pathsep.join([str(HERE.parent), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    common = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **common, **meeting, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def printed(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What each worker has printed, once all have ended well."""
    found = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found
