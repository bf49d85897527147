"""N workers give what one gives: every algorithm, in float64, with real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from dividing import ROWS, STEPS, assert_close, cases, train
from processes import printed, start

import toy
from rcalign.checkpoints import load_weights
from rcalign.distributed import GradientSums, Workers, bytes_per_step

HERE = Path(__file__).resolve().parent


def divide(size: int, out: Path, names: list[str]) -> None:
    """Trains these cases on so many workers, the results below a folder."""
    printed(start(size, HERE / "dividing.py", out, *names))


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    return {}


@pytest.fixture(scope="module", params=[2, 3], ids=["two workers", "three workers"])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of all cases on so many workers."""
    out = tmp_path_factory.mktemp(f"workers-{request.param}")
    divide(request.param, out, cases())
    return out


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_workers_give_what_one_gives(case: str, together: Path, alone: dict[str, dict[str, torch.Tensor]]) -> None:
    failures = json.loads((together / "failures.json").read_text())
    assert case not in failures, failures[case]
    if case not in alone:
        alone[case] = train(case)
    assert_close(load_weights(together / f"{case}.safetensors"), alone[case])


def test_shares_cover_every_row_once() -> None:
    for size in (1, 2, 3, 5):
        parts = [range(*Workers(rank, size).share(ROWS)) for rank in range(size)]
        assert [row for part in parts for row in part] == list(range(ROWS))
        assert [len(part) for part in parts] == Workers(0, size).shares(ROWS)


# one of two workers: how many bytes are on their way when the gradient comes to the first of three layers
OVERLAP = """
import torch
from torch import nn
from rcalign import distributed
from rcalign.distributed import TRAFFIC, DividedRows
with distributed.process_group():
    distributed.BUCKET_BYTES = 1
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    with DividedRows(network, batch_size=4):
        seen = []
        def note(gradient):
            seen.append(TRAFFIC.sent.get("summed", 0))
        network[0].register_forward_hook(lambda layer, x, out: out.register_hook(note) and None)
        network(torch.ones(4, 2)).sum().backward()
    print(*seen, TRAFFIC.sent["summed"])
"""


@pytest.mark.slow
def test_sums_begin_before_the_backward_pass_ends() -> None:
    later, first = 4 * (3 * 4 + 4 + 4 * 5 + 5), 4 * (2 * 3 + 3)
    for text in printed(start(2, "-c", OVERLAP)):
        assert [int(word) for word in text.split()] == [later, later + first]


# which threads a worker still has after it
THREADS = """
import os
import torch
from rcalign import distributed
def threads():
    return sorted(open(f"/proc/self/task/{number}/comm").read() for number in os.listdir("/proc/self/task"))
before = threads()
with distributed.process_group():
    parameter = torch.nn.Parameter(torch.ones(3))
    distributed.any_worker(True)
    parameter.grad = torch.ones(3)
    torch.optim.Adam([parameter]).step()
    assert threads() != before
print(threads() == before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of a process's threads")
def test_no_thread_of_the_process_group_outlives_it() -> None:
    assert [text.strip() for text in printed(start(2, "-c", THREADS))] == ["True", "True"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is none here")
def test_a_compiled_network_is_divided_too(tmp_path: Path) -> None:
    case = "RC-Align compiled"
    divide(2, tmp_path, [case])
    assert json.loads((tmp_path / "failures.json").read_text()) == {}
    assert_close(load_weights(tmp_path / f"{case}.safetensors"), train("RC-Align"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_formula_of_traffic_predicts_the_count(size: int, tmp_path: Path) -> None:
    # backward passes, domains passed through
    passes = {"ERM": (1, 3), "RC-Align": (2, 3), "Fish": (3, 3), "CORAL": (1, 3), "MMD": (1, 3)}
    divide(size, tmp_path, list(passes))
    parameters = sum(p.numel() for p in toy.vector_network().featurizer.parameters())
    for name, (backward, domains) in passes.items():
        found = load_weights(tmp_path / f"{name}.safetensors")
        expected = bytes_per_step(
            size,
            parameters=parameters,
            domains=3,
            batch_size=ROWS,
            features=8,
            backward_passes=backward,
            rows_passed=domains * ROWS,
            width=8,
        )
        for kind, number in expected.items():
            assert int(found[f"sent.{kind}"]) == STEPS * number, (name, kind)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_sums_come_back_as_the_parameters_lie_in_memory(layout: torch.memory_format) -> None:
    """Whatever the layout of a gradient: workers must agree on the order of the numbers that they send."""
    parameters = {
        "conv": torch.randn(4, 3, 5, 2).to(memory_format=layout),
        "turned": torch.randn(6, 4).T,
        "number": torch.randn(()),
    }
    gradients = {name: torch.randn(value.shape) for name, value in parameters.items()}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        sums = GradientSums(parameters)
        sums.add("conv", gradients["conv"])
        found = sums.finish(gradients)
    finally:
        torch.distributed.destroy_process_group()
    for name, value in parameters.items():
        assert torch.equal(found[name], gradients[name])
        assert found[name].stride() == value.stride()
