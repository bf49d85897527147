"""One run on two workers against one, and a batch in two pieces against the whole: ResNet-50, 3 x 32 images of 96 px.

Each worker is a process with one thread. Settings take turns, and the ratios of turns are what is reported.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.timing import Row, row

ROUNDS, STEPS = 3, 4
BATCH = 32  # rows of each of three domains: the default
CHILD = """
import contextlib, os, sys, time
import torch
import rcalign.algorithms
from rcalign import registry
from rcalign.algorithms.base import Network
from rcalign.devices import keep_freed_memory
from rcalign.distributed import DividedRows, process_group, workers
from rcalign.models.backbones import build_backbone
from rcalign.training.task import placed
from rcalign.types import Batch, DataSpec

name, rows, accumulate, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
keep_freed_memory()  # as the training loop does
with process_group():
    torch.manual_seed(0)
    made = build_backbone("resnet50", (3, 96, 96), weights="none")
    spec = DataSpec(tuple("abcdefg"), ("a", "b", "c"), ((9,) * 7,) * 3, (3, 96, 96))
    network = placed(Network(made.featurizer, made.features, 7), torch.device("cpu"))
    model = registry.get(name).algorithm(spec, network, None)
    adds_up = accumulate > 1 and model.traits.row_losses  # as the training loop does it
    divided = DividedRows(model.featurizer, rows, 1 if adds_up else accumulate, domains=3)
    parts = [(torch.randn(rows, 3, 96, 96), torch.randint(7, (rows,))) for _ in range(3)]
    batch = Batch.from_domains(parts)
    seconds = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        with divided:
            model.step(batch) if not adds_up else model.step_in_pieces(batch, accumulate)
        seconds.append(time.perf_counter() - begun)
    if workers().is_first:
        print(min(seconds[1:]))
"""


def measure(rounds: int = ROUNDS) -> list[Row]:
    gains: dict[str, list[float]] = {"ERM": [], "RC-Align": []}
    pieces: dict[str, list[float]] = {"ERM": [], "RC-Align": []}
    for turn in range(rounds):
        for name in gains:
            settings = [(1, 1), (2, 1), (1, 2)]
            found = {setting: _seconds(name, *setting) for setting in (settings if turn % 2 else settings[::-1])}
            gains[name].append(found[1, 1] / found[2, 1])
            pieces[name].append(found[1, 2] / found[1, 1])
    return [
        *(
            row(f"{name}: images per second, two workers / one", statistics.median(v), ">= 1.7")
            for name, v in gains.items()
        ),
        *(
            row(f"{name}: time of a step, two pieces / whole", statistics.median(v), "<= 1.05")
            for name, v in pieces.items()
        ),
    ]


def _seconds(name: str, size: int, accumulate: int) -> float:
    """The fastest step of a setting, so that other work on the machine counts as little as may be."""
    command = [sys.executable, "-c", CHILD, name, str(BATCH), str(accumulate), str(STEPS)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            command,
            env={**common, "WORLD_SIZE": str(size), "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    printed: Sequence[str] = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "a worker failed"
    return float(printed[0])
