"""A batch in pieces: the answer of the whole, the memory of one piece, and little that is computed twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dividing import TOLERANCE, assert_close, cases, in_double, train
from torch import nn
from torch.profiler import ProfilerActivity, profile

import toy
from rcalign import registry
from rcalign.algorithms.base import Algorithm, Network
from rcalign.distributed import DividedRows
from rcalign.errors import InputError
from rcalign.types import Batch, DataSpec

DOMAINS, ROWS = 3, 24
MIXES_ROWS = ["MixStyle", "GMDG images"]  # inside the network
TRAINS_BATCH_NORM = ["ARM", "ERM normed", "MTL normed", "RC-Align normed"]


@pytest.mark.parametrize("case", [case for case in cases() if case not in MIXES_ROWS + TRAINS_BATCH_NORM])
def test_pieces_one_after_the_other_give_the_whole(case: str) -> None:
    assert_close(train(case, accumulate=3), train(case))


@pytest.mark.parametrize("case", MIXES_ROWS + TRAINS_BATCH_NORM)
def test_what_needs_all_rows_inside_the_network_is_refused(case: str) -> None:
    with pytest.raises(InputError, match="batch norm that trains" if case in TRAINS_BATCH_NORM else "mixes rows"):
        train(case, accumulate=2)


def test_fewer_rows_than_pieces_is_said() -> None:
    with pytest.raises(InputError, match="batch_size is 2 rows of each domain, fewer than 1 x 3 pieces"):
        DividedRows(nn.Linear(2, 2), batch_size=2, accumulate=3)


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.get(name).traits.row_losses])
def test_pieces_of_a_mean_over_rows_add_up(name: str) -> None:
    whole, pieces = toy.make(name).double(), toy.make(name).double()
    for model in (whole, pieces):
        model.optimizers = model.make_optimizers()
    for step in range(5):
        data = in_double(toy.batch(step, (7, 7, 7)))
        a, b = whole.step(data), pieces.step_in_pieces(data, 3)
        assert a.keys() == b.keys() and abs(float(a["loss"]) - float(b["loss"])) < TOLERANCE
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(pieces.state_dict()[key], value, atol=TOLERANCE, rtol=TOLERANCE)


# --- memory and time -------------------------------------------------------------------------------------------------


def deep_network() -> nn.Sequential:
    """Layers whose outputs take far more memory than rows (64, 4), weights and features (64,)."""
    layers = [layer for width in (4, *[32] * 7) for layer in (nn.Linear(width, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 1), nn.Flatten())


def make(case: str, network: nn.Module) -> Algorithm:
    name, *changes = case.split()
    kind = registry.get(name).algorithm
    classes, domains = ("x", "y", "z"), ("a", "b", "c")
    spec = DataSpec(classes, domains, ((8,) * len(classes),) * len(domains), (64, 4))
    hparams = kind.Hparams(batch_size=ROWS, **dict(change.split("=") for change in changes))  # type: ignore[arg-type]
    return kind(spec, Network(network, 64, len(classes)), hparams)


def a_batch() -> Batch:
    return Batch.from_domains([(torch.randn(ROWS, 64, 4), torch.randint(3, (ROWS,))) for _ in range(DOMAINS)])


def most_bytes(act: Callable[[], object], file: Path) -> int:
    """The most memory that torch holds at a time while it acts, above what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        act()
    profiler.export_chrome_trace(str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most


@pytest.mark.parametrize("pieces", [2, 3, 4])
@pytest.mark.parametrize("case", ["RC-Align", "MLDG", "MLDG episodes=ring", "CORAL", "Fish", "SAGM"])
def test_pieces_take_the_memory_of_one(case: str, pieces: int, tmp_path: Path) -> None:
    """That of a loss which is a mean over rows, whose pieces know nothing of each other."""
    alone, model = make("ERM", deep_network()), make(case, deep_network())
    divided = DividedRows(model.featurizer, ROWS, pieces, domains=DOMAINS)
    data = a_batch()

    def step() -> None:
        with divided:
            model.step(data)

    alone.step_in_pieces(data, pieces)
    step()  # Adam's moments are there from the second step on
    one = most_bytes(lambda: alone.step_in_pieces(data, pieces), tmp_path / "one.json")
    assert most_bytes(step, tmp_path / "all.json") <= 1.1 * one


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("RC-Align", [2, 1]),
        ("MLDG", [2, 1]),
        ("MLDG episodes=ring", [1] * 6),
        ("Fish", [1] * 3),
        ("CORAL", [3]),
        ("SAGM", [3, 3]),
    ],
)
def test_only_rows_beyond_one_piece_are_computed_twice(case: str, calls: list[int], pieces: int) -> None:
    """calls: how many domains pass through the network at a time, each time with a backward pass."""
    network = deep_network()
    model = make(case, network)
    passed: list[int] = []
    network[0].register_forward_hook(lambda layer, inputs, output: passed.append(len(output)))
    with DividedRows(model.featurizer, ROWS, pieces, domains=DOMAINS):
        model.step(a_batch())
    one = DOMAINS * ROWS // pieces
    assert sum(passed) == sum(rows + max(0, rows - one) for rows in (ROWS * domains for domains in calls))
    assert max(passed) <= one


def test_graphs_that_wait_together_share_the_memory(tmp_path: Path) -> None:
    """One domain after the other, and then one backward pass through all: a third of the rows, however it is called."""
    network = deep_network()
    x = torch.randn(DOMAINS, ROWS, 64, 4)

    def step(separate: bool) -> None:
        with divided:
            parts = list(x) if separate else [x.flatten(0, 1)]
            torch.cat([network(part) for part in parts]).square().sum().backward()

    divided = DividedRows(network, ROWS, 3, domains=DOMAINS)
    step(True)
    together = most_bytes(lambda: step(False), tmp_path / "together.json")
    assert most_bytes(lambda: step(True), tmp_path / "separate.json") <= 1.4 * together
