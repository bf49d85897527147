"""Features of a frozen network are computed once, whoever asks, and survive whatever ends the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rcalign.models import features
from rcalign.models.features import computed_once, underway

ROWS = 20

# computes 20 rows in batches of 2, each of which takes a while, and prints a line for each batch
SLOW = """
import sys, time, numpy as np, torch
from rcalign.models import features
features.SYNC_EVERY = features.WAIT = 0.02
torch.manual_seed(0)
net = torch.nn.Linear(3, 2)
x = torch.randn(20, 3)
def inputs(rows):
    for start in range(0, len(rows), 2):
        time.sleep(0.1)
        print(rows[start], flush=True)
        yield x[rows[start : start + 2]]
found = features.computed_once(net, inputs, 20, key=["slow"])
print("sum", repr(float(found.sum())))
"""

# one of several workers, in batches of 4; prints the rows that it computed
WORKER = """
import sys, numpy as np, torch, torch.distributed as dist
from datetime import timedelta
from pathlib import Path
from rcalign.distributed import process_group, workers
from rcalign.models.features import computed_once
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
x = torch.randn(22, 6)
asked = []
def inputs(rows):
    for start in range(0, len(rows), 4):
        part = rows[start : start + 4]
        asked.extend(part.tolist())
        yield x[part]
with process_group():
    found = computed_once(net, inputs, 22, key=["divided"], batch_size=4)
    np.save(Path(sys.argv[1]) / f"found-{workers().rank}.npy", found)
    print(asked)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path))
    return tmp_path


class Given:
    """Inputs that count what was asked of them and may fail after some batches."""

    def __init__(self, x: Tensor, fails_after: int | None = None) -> None:
        self.x, self.fails_after = x, fails_after
        self.asked: list[int] = []

    def __call__(self, rows: np.ndarray) -> Iterator[Tensor]:
        for start in range(0, len(rows), 4):
            if self.fails_after is not None and len(self.asked) // 4 >= self.fails_after:
                raise KeyboardInterrupt
            part = rows[start : start + 4]
            self.asked += part.tolist()
            yield self.x[part]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("module", [nn.Linear(6, 5), nn.Unflatten(1, (2, 3)), nn.Flatten()])
def test_any_module_and_shape(module: nn.Module, dtype: str) -> None:
    x = torch.randn(ROWS, 6)
    with torch.no_grad():
        expected = module(x).numpy().astype(dtype)
    given = Given(x)
    for _ in range(2):
        found = computed_once(module, given, ROWS, key=["any"], dtype=dtype)
        assert found.dtype == dtype and np.allclose(found, expected, atol=1e-6)
    assert given.asked == list(range(ROWS))  # the second time nothing is asked


def test_dropout_is_off_and_no_gradient_is_kept() -> None:
    x = torch.ones(ROWS, 6)
    assert (computed_once(nn.Dropout(0.5).train(), Given(x), ROWS, key=["off"]) == 1).all()


def test_everything_that_matters_is_in_the_key() -> None:
    x = torch.randn(ROWS, 6)
    first, second = nn.Linear(6, 2), nn.Linear(6, 2)
    results = [
        computed_once(first, Given(x), ROWS, key=["a"]),
        computed_once(second, Given(x), ROWS, key=["a"]),
        computed_once(nn.Sequential(first, nn.ReLU()), Given(x), ROWS, key=["a"]),
        computed_once(nn.Sequential(first, nn.Tanh()), Given(x), ROWS, key=["a"]),  # the same weights, another network
        computed_once(first, Given(-x), ROWS, key=["b"]),
    ]
    assert all(not np.array_equal(a, b) for i, a in enumerate(results) for b in results[:i])


@pytest.mark.parametrize("batches", [0, 1, 3, 5])
def test_goes_on_where_it_was_interrupted_with_the_same_bits(batches: int, cache: Path) -> None:
    x = torch.randn(ROWS, 6)
    module = nn.Linear(6, 5)
    whole = np.array(computed_once(module, Given(x), ROWS, key=["undisturbed"]))
    broken = Given(x, fails_after=batches)
    if batches < 5:
        with pytest.raises(KeyboardInterrupt):
            computed_once(module, broken, ROWS, key=["broken"])
        assert [state.done for state in underway()] == ([4 * batches] if batches else [])
    else:
        computed_once(module, broken, ROWS, key=["broken"])
    again = Given(x)
    found = computed_once(module, again, ROWS, key=["broken"])
    assert np.array_equal(found, whole)
    assert broken.asked + again.asked == list(range(ROWS))
    assert underway() == [] and not list(cache.rglob("*.partial"))


@pytest.mark.parametrize("damage", ["text", "cut", "no state", "another size"])
def test_a_damaged_rest_is_not_used(damage: str, cache: Path) -> None:
    x = torch.randn(ROWS, 6)
    module = nn.Linear(6, 5)
    with pytest.raises(KeyboardInterrupt):
        computed_once(module, Given(x, fails_after=3), ROWS, key=["damaged"])
    partial = next(cache.rglob("*.partial"))
    state = partial.with_suffix(".json")
    if damage == "text":
        partial.write_text("not an array")
    elif damage == "cut":
        partial.write_bytes(partial.read_bytes()[:-7])
    elif damage == "no state":
        state.unlink()
    else:
        state.write_text(json.dumps({**json.loads(state.read_text()), "done": 19}))
    found = computed_once(module, Given(x), ROWS, key=["damaged"])
    with torch.no_grad():
        assert np.allclose(found, module(x), atol=1e-6)


def test_too_few_inputs_are_no_result() -> None:
    x = torch.randn(ROWS, 6)
    with pytest.raises(ValueError, match="20 were expected"):
        computed_once(nn.Linear(6, 5), lambda rows: iter([x[:3]]), ROWS, key=["few"])


def started(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "RCALIGN_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-c", SLOW], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_compute_it_once_and_a_signal_loses_nothing(cache: Path) -> None:
    first = started(cache)
    assert first.stdout is not None
    seen = [int(first.stdout.readline()) for _ in range(5)]  # so the fourth batch is written
    begun = time.monotonic()
    first.send_signal(signal.SIGTERM)
    first.wait(timeout=30)
    assert time.monotonic() - begun < 10  # at once, but for a busy machine
    rest = first.stdout.read().split()
    processes = [started(cache), started(cache)]
    answers = [process.communicate(timeout=300)[0].split("\n") for process in processes]
    assert seen == [0, 2, 4, 6, 8]
    last = ([*seen, *(int(line) for line in rest if line.isdecimal())])[-1]  # it may be ahead of what was read
    computed = [int(line) for lines in answers for line in lines if line.isdecimal()]
    assert sorted(computed) == list(range(computed[0], 20, 2)) and last - 2 <= computed[0] <= last + 2
    assert len({line for lines in answers for line in lines if line.startswith("sum")}) == 1


def test_progress_is_visible_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SYNC_EVERY", 0.0)
    seen: list[features.Underway] = []
    x = torch.randn(ROWS, 6)

    def watched(rows: np.ndarray) -> Iterator[Tensor]:
        for part in np.split(rows, 5):
            seen.extend(underway())
            yield x[part]

    computed_once(nn.Linear(6, 5), watched, ROWS, key=["seen"], what="the early stages")
    assert [(state.what, state.done, state.rows) for state in seen] == [
        ("the early stages", done, ROWS) for done in (4, 8, 12, 16)
    ]
    assert all(state.seconds_left is not None and state.seconds_left > 0 for state in seen)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["one cache", "a cache each"])
def test_workers_divide_the_batches_and_get_the_same_bits(shared: bool, tmp_path: Path) -> None:
    from socket import socket

    def run(size: int, place: Path) -> list[list[int]]:
        place.mkdir(exist_ok=True)
        with socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        own = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(place)],
                env={
                    **os.environ,
                    **own,
                    "RANK": str(rank),
                    "RCALIGN_CACHE": str(place / ("cache" if shared else f"cache-{rank}")),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        printed = [process.communicate()[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * size
        return [json.loads(text) for text in printed]

    alone, three = tmp_path / "alone", tmp_path / "three"
    run(1, alone)
    asked = run(3, three)
    whole = np.load(alone / "found-0.npy")
    for rank in range(3):
        assert (np.load(three / f"found-{rank}.npy") == whole).all()
    assert asked[0] == [*range(4), *range(12, 16)] and asked[1] == [*range(4, 8), *range(16, 20)]
    assert asked[2] == [*range(8, 12), *range(20, 22)]
    assert run(3, three) == [[], [], []], "what is in the cache is not computed again"
    if not shared:  # one machine has lost its cache: all help again
        for file in (three / "cache-1" / "features").glob("*"):
            file.unlink()
        assert run(3, three) == asked
