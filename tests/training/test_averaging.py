"""Weight averaging against hand-computed means, valleys and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rcalign import registry
from rcalign.checkpoints import load_state, save_state
from rcalign.errors import InputError
from rcalign.training.averaging import Averaging, SWADAveraging, make_averaging, recompute_batch_norm
from toy import batch, make, weights

KINDS: dict[str, dict[str, Any]] = {
    "ema": {"momentum": 0.9},
    "polynomial": {},
    "swa": {"start": 3},
    "swad": {},
}
each = pytest.mark.parametrize("kind", KINDS)


def theta(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((2,), float(value)), "seen": torch.tensor(int(value))}


def follow(average: Averaging, losses: list[float], steps_each: int = 1) -> list[float]:
    """Iterates 1, 2, 3, ... with an evaluation after every ``steps_each``; returns what was handed over."""
    given: list[float] = []
    for loss in losses:
        for _ in range(steps_each):
            given.append(len(given) + 1.0)
            average.update(theta(given[-1]))
        average.observe(loss)
        if average.finished:
            break
    return given


def value(average: Averaging) -> float:
    found = average.averaged()
    assert found is not None
    return found["w"][0].item()


@each
def test_constant_weights_stay_exactly_what_they_are(kind: str) -> None:
    average = make_averaging(kind, **KINDS[kind])
    assert average.averaged() is None
    constant = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for loss in (5.0, 4.0, 3.0, 3.1, 3.2, 3.0, 9.0, 9.0):
        average.update({"w": constant})
        average.update({"w": constant})
        average.observe(loss)
    assert torch.equal(average.averaged()["w"], constant)


def test_ema_without_memory_is_the_last_iterate_and_otherwise_the_recursion() -> None:
    last = make_averaging("ema", momentum=0.0)
    follow(last, [0.0] * 7)
    assert value(last) == 7.0
    average = make_averaging("ema", momentum=0.75)
    follow(average, [0.0] * 3)
    assert value(average) == pytest.approx(0.75 * (0.75 * 1 + 0.25 * 2) + 0.25 * 3)
    stuck = make_averaging("ema", momentum=1.0)
    follow(stuck, [0.0] * 3)
    assert value(stuck) == 1.0


@pytest.mark.parametrize("power", [0, 1, 3])
def test_polynomial_weighs_iterates_by_a_power_of_their_step(power: int) -> None:
    """Power 0 is the arithmetic mean; for a whole power p step t weighs t (t + 1) ... (t + p - 1)."""
    average = make_averaging("polynomial", power=power)
    follow(average, [0.0] * 40)
    weight = np.array([np.prod([t + k for k in range(power)]) for t in range(1, 41)], dtype=float)
    assert value(average) == pytest.approx((weight * np.arange(1, 41)).sum() / weight.sum(), rel=1e-6)


def test_an_algorithm_may_turn_its_own_averaging_on() -> None:
    traits = registry.get("RC-Align").traits
    assert traits.averaging({"weight_average": True}) == "swad"
    assert traits.averaging({"weight_average": False}) is None


def test_swa_is_the_arithmetic_mean_from_its_start() -> None:
    for start, expected in ((0, 3.5), (1, 3.5), (4, 5.0), (6, 6.0), (9, 6.0)):
        average = make_averaging("swa", start=start)
        follow(average, [0.0] * 6)
        assert value(average) == expected
        assert ("never started" in average.note) == (start == 9)


# losses, evaluations ts and te (counted from 1), ended, with Ns = 3, Ne = 2, r = 1.5 and one iterate per evaluation
VALLEYS = [
    # falls to 2 at k = 4, whose next two are not lower: ts = 4, limit = 1.5 * (2 + 2.5 + 3) / 3 = 3.75;
    # 4, 5 (k = 7, 8) lie above it: te = 8 - 2 = 6
    ([8, 6, 4, 2, 2.5, 3, 4, 5, 6, 7], 4, 6, True),
    # one loss above the limit between two below: the valley goes on through it
    ([8, 6, 4, 2, 2.5, 3, 4, 3, 5, 6, 7], 4, 8, True),
    # never ends: cut after the last loss within the limit
    ([8, 6, 4, 2, 2.5, 3, 3.5, 5], 4, 7, False),
    # starts at once
    ([1, 2, 3, 9, 9, 9], 1, 3, True),
    # equal losses are a minimum too
    ([4, 4, 4, 4], 1, 4, False),
]


@pytest.mark.parametrize(("losses", "begin", "end", "ended"), VALLEYS)
@pytest.mark.parametrize("steps_each", [1, 4])
def test_swad_finds_the_valley(losses: list[float], begin: int, end: int, ended: bool, steps_each: int) -> None:
    average = SWADAveraging(begin_patience=3, end_patience=2, tolerance=1.5)
    follow(average, losses, steps_each)
    assert (average.begin, average.end, average.finished) == (begin, end, ended)
    inside = list(range((begin - 1) * steps_each + 1, end * steps_each + 1))
    assert value(average) == pytest.approx(sum(inside) / len(inside), rel=1e-6)
    assert average.averaged()["seen"] == inside[-1]  # integers are copied, from the last iterate of the valley
    assert f"mean of {len(inside)} steps" in average.note
    assert ("never ended" in average.note) == (not ended)


def test_swad_weighs_iterates_not_segments() -> None:
    average = SWADAveraging(begin_patience=2, end_patience=1, tolerance=1.0)
    for t, loss in ((1, 1.0), (2, None), (3, None), (4, 1.0)):  # a segment of one iterate, then one of three
        average.update(theta(t))
        if loss is not None:
            average.observe(loss)
    assert value(average) == 2.5


def test_swad_that_never_starts_gives_the_last_segment_and_says_so() -> None:
    average = SWADAveraging()
    follow(average, [9, 8, 7, 6], steps_each=2)
    assert value(average) == 7.5
    assert average.note.startswith("never started: last segment")
    assert not average.finished
    average.observe(float("nan"))  # no step since the last evaluation: nothing to judge
    follow(average, [float("nan"), float("nan"), float("nan")])
    assert average.begin is None


def test_swad_keeps_few_models() -> None:
    average = SWADAveraging(begin_patience=3, end_patience=6)
    follow(average, [5, 4, 3, 2, 2.1, 2.2, *[9.0] * 5])
    held = [average._segment, average._valley, average._waiting, *[mean for _, mean in average._recent]]
    assert sum(mean.count > 0 for mean in held) <= 3


def test_only_parameters_are_averaged() -> None:
    average = make_averaging("swa", start=0)
    for t in (1.0, 3.0):
        average.update(
            {
                "half": torch.full((1,), t, dtype=torch.float16),
                "bn.running_mean": torch.full((1,), t),
                "bn.num_batches_tracked": torch.tensor(int(t)),
            }
        )
    found = average.averaged()
    assert found["half"].dtype == torch.float16 and found["half"].item() == 2.0
    assert found["bn.running_mean"].item() == 3.0 and found["bn.num_batches_tracked"].item() == 3
    named = make_averaging("swa", start=0, parameters=["a"])
    for t in (1.0, 3.0):
        named.update({"a": torch.tensor(t), "bank": torch.tensor(t)})
    assert (named.averaged()["a"].item(), named.averaged()["bank"].item()) == (2.0, 3.0)


@each
def test_the_result_is_a_copy(kind: str) -> None:
    average = make_averaging(kind, **KINDS[kind])
    live = theta(1)
    average.update(live)
    live["w"].fill_(100.0)
    average.averaged()["w"].fill_(-100.0)
    assert value(average) == 1.0


@each
@pytest.mark.parametrize("cut", range(1, 10))
def test_save_load_and_go_on_equals_never_stopped(kind: str, cut: int, tmp_path: Path) -> None:
    losses = [8, 6, 4, 2, float("nan"), 2.0, 2.5, 3, 9, 9, 9, 9, 9, 9]
    options = {**KINDS[kind], **({"end_patience": 4} if kind == "swad" else {})}
    generator = torch.Generator().manual_seed(1)
    iterates = [{"w": torch.randn(3, generator=generator)} for _ in range(3 * len(losses))]
    straight, resumed = make_averaging(kind, **options), make_averaging(kind, **options)
    for k, loss in enumerate(losses):
        if k == cut:
            save_state(tmp_path / "state", straight.state())
            resumed.load(load_state(tmp_path / "state"))
        for average in (straight, resumed) if k >= cut else (straight,):
            for t in range(3):
                average.update(iterates[3 * k + t])
            average.observe(loss)
    assert torch.equal(straight.averaged()["w"], resumed.averaged()["w"])
    assert (straight.note, straight.finished) == (resumed.note, resumed.finished)


@each
def test_training_is_bit_identical_with_and_without(kind: str) -> None:
    plain, watched = make("ERM", dropout=0.1), make("ERM", dropout=0.1)
    average = make_averaging(kind, **KINDS[kind])
    for t in range(12):
        plain.step(batch(t))
        watched.step(batch(t))
        average.update(watched.state_dict())
        if t % 2:
            average.observe(1.0 / (t + 1))
    ours, theirs = weights(watched), weights(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    watched.load_state_dict(average.averaged())  # and the average fits the model


def test_wrong_use_is_said() -> None:
    with pytest.raises(InputError, match="unknown weight averaging 'sawd': did you mean 'swa"):
        make_averaging("sawd")
    with pytest.raises(InputError, match=r"'tolerance' is 0\.5, but must be at least 1"):
        make_averaging("swad", tolerance=0.5)
    with pytest.raises(InputError, match="from 0 to 1"):
        make_averaging("ema", momentum=1.5)


class Frozen(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def test_batch_norm_is_recomputed_only_where_it_trains() -> None:
    trained, frozen = nn.BatchNorm1d(2), Frozen(2)
    net = nn.Sequential(frozen, nn.Dropout(0.5), trained)
    net.train()
    trained.running_mean.fill_(50.0)
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(8, 2, generator=generator) for _ in range(5)]
    before = torch.get_rng_state()
    with torch.no_grad():
        expected = torch.stack([frozen(x).mean(0) for x in data[:4]]).mean(0)
    assert recompute_batch_norm(net, data, limit=4) == 4
    torch.testing.assert_close(trained.running_mean, expected)
    assert torch.equal(frozen.running_mean, torch.zeros(2))
    assert trained.momentum == 0.1 and trained.training and not frozen.training and net.training
    assert torch.equal(before, torch.get_rng_state())
    assert recompute_batch_norm(nn.Sequential(Frozen(2)), data) == 0
