"""Augmentation against torchvision: each operation where it is deterministic, the distributions where it is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms import functional as reference
from torchvision.transforms.v2 import functional as reference_v2

from rcalign.data import augment
from rcalign.data.augment import Augmentation, Draws

PLAIN = {"flip": 0.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "greyscale": 0.0}


def images(n: int = 4, height: int = 24, width: int = 24, seed: int = 0) -> torch.Tensor:
    """uint8 (n, h, w, 3) with flat areas, greys and pure colours among noise."""
    x = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8))
    x[:, :3] = 255
    x[:, 3:5] = x[:, 3:5, :, :1]
    x[:, 5, :, 0], x[:, 5, :, 1:] = 255, 0
    x[:, 6, :, 2] = x[:, 6, :, 1]
    x[:, 7] = 0
    return x


def planes(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).contiguous().float() / 255


def work_for(x: torch.Tensor) -> torch.Tensor:
    """Working planes with the worst content they could have, for images (3, n, h, w)."""
    return torch.full((augment.WORK, *x.shape[1:]), torch.nan)


# --- single operations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("brightness", (0.0, 0.7, 1.0, 1.3)),
        ("contrast", (0.0, 0.7, 1.0, 1.3)),
        ("saturation", (0.0, 0.7, 1.0, 1.9)),
        ("hue", (-0.5, -0.17, 0.0, 0.31)),
    ],
)
def test_colours_agree_with_torchvision(name, factors):
    x = planes(images(len(factors)))
    ours = (x * 255).transpose(0, 1).contiguous()
    augment.OPERATIONS[name](ours, torch.tensor(factors), work_for(ours))
    ours /= 255
    for image, got, factor in zip(x, ours.unbind(1), factors, strict=True):
        for functional in (reference, reference_v2):
            want = getattr(functional, f"adjust_{name}")(image, factor)
            torch.testing.assert_close(got, want, atol=3e-6, rtol=0)


def test_grey_agrees_with_torchvision():
    x = planes(images())
    grey = augment.luma(x.transpose(0, 1), torch.full((len(x), *x.shape[2:]), torch.nan))
    torch.testing.assert_close(grey[:, None], reference.rgb_to_grayscale(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [12, 24, 37])
def test_crops_agree_with_torchvision(size):
    x = images(5, 24, 30)
    boxes = np.array([[0, 0, 24, 30], [2, 3, 20, 24], [5, 0, 12, 12], [23, 29, 1, 1], [1, 6, 22, 7]])
    flipped = np.array([False, True, False, True, True])
    ours = augment.crop_resize(x, boxes, flipped, out=torch.empty(3, 5, size, size)).transpose(0, 1)
    for got, image, box, flip in zip(ours, x, boxes.tolist(), flipped, strict=True):
        want = reference_v2.resized_crop(image.permute(2, 0, 1), *box, [size, size], antialias=True)
        want = reference_v2.horizontal_flip(want) if flip else want
        assert (got - want).abs().max() <= 1  # its kernel may round the other way
    by_matrices = augment._resize_by_matrices(x, boxes, size, flipped)
    assert (ours - by_matrices).abs().max() <= 1


def test_normalisation_and_evaluation():
    x = images(3)
    augmentation = Augmentation(size=24, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    want = reference.normalize(planes(x), augmentation.mean, augmentation.std)
    out = augmentation.evaluate(x)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)
    assert out.is_contiguous(memory_format=torch.channels_last) and out.dtype == torch.float32
    plain = Augmentation(size=24, scale=(1, 1), ratio=(1, 1), **PLAIN, mean=augmentation.mean, std=augmentation.std)
    torch.testing.assert_close(plain.train(x, np.random.default_rng(0)), want, atol=2e-6, rtol=0)
    small = Augmentation(size=10).evaluate(x)
    resized = reference_v2.resize(x.permute(0, 3, 1, 2), [10, 10], antialias=True).float() / 255
    resized = reference.normalize(resized, augment.IMAGENET_MEAN, augment.IMAGENET_STD)
    assert (small - resized).abs().max() < 1.01 / 255 / min(augment.IMAGENET_STD)


def test_the_whole_pipeline_is_its_operations_in_order():
    x = images(6, 20, 20)
    augmentation = Augmentation(size=16, greyscale=0.5)
    draws = augmentation.draw(6, 20, 20, np.random.default_rng(3))
    assert 0 < draws.grey.sum() < 6 and len(draws.order) == 4
    got = augmentation.train(x, np.random.default_rng(3))
    crops = augment.crop_resize(x, draws.boxes, draws.flipped, out=torch.empty(3, 6, 16, 16)) / 255
    for i, image in enumerate(crops.unbind(1)):
        for name in draws.order:
            image = getattr(reference, f"adjust_{name}")(image, float(draws.factors[name][i]))
        if draws.grey[i]:
            image = reference.rgb_to_grayscale(image, 3)
        want = reference.normalize(image, augment.IMAGENET_MEAN, augment.IMAGENET_STD)
        torch.testing.assert_close(got[i], want, atol=5e-5, rtol=0)


# --- distributions -----------------------------------------------------------------------------------------------

N = 20_000


@pytest.mark.parametrize(
    ("scale", "ratio", "shape"),
    [
        ((0.7, 1.0), (3 / 4, 4 / 3), (72, 72)),
        ((0.08, 1.0), (3 / 4, 4 / 3), (50, 80)),
        ((0.9, 1.0), (2.0, 3.0), (40, 40)),
    ],
)
def test_crops_are_distributed_as_torchvisions(scale, ratio, shape):
    ours = augment.random_boxes(N, *shape, scale, ratio, np.random.default_rng(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blank = torch.zeros(1, *shape)
        theirs = np.array([RandomResizedCrop.get_params(blank, list(scale), list(ratio)) for _ in range(N // 4)])
    top, left, height, width = ours.T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= shape[0]).all() and (left + width <= shape[1]).all()
    for i in range(4):  # top, left, height, width: means, spreads and quantiles
        a, b = ours[:, i].astype(float), theirs[:, i].astype(float)
        spread = max(b.std(), 0.2)
        assert abs(a.mean() - b.mean()) < 5 * spread / np.sqrt(N // 4)
        assert abs(a.std() - b.std()) < 0.08 * spread
        assert stats.ks_2samp(a, b).statistic < 1.95 * np.sqrt(1 / N + 4 / N)  # p > 0.001
    assert stats.ks_2samp(height * width, theirs[:, 2] * theirs[:, 3]).statistic < 1.95 * np.sqrt(5 / N)


def test_colours_are_distributed_as_torchvisions():
    draws = Augmentation(size=8).draw(N, 8, 8, np.random.default_rng(0))
    jitter = ColorJitter(0.3, 0.3, 0.3, 0.3)
    for name in ("brightness", "contrast", "saturation", "hue"):
        low, high = getattr(jitter, name)
        values = draws.factors[name]
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-4
        assert values.min() >= np.float32(low) and values.max() <= np.float32(high)
        assert values.min() < low + 0.002 and values.max() > high - 0.002
    assert abs(draws.flipped.mean() - 0.5) < 5 * 0.5 / np.sqrt(N)
    assert abs(draws.grey.mean() - 0.1) < 5 * 0.3 / np.sqrt(N)
    assert abs(np.corrcoef(np.stack([*draws.factors.values(), draws.flipped, draws.grey])) - np.eye(6)).max() < 0.04


def test_all_orders_of_the_colours_occur_equally_often():
    rng = np.random.default_rng(0)
    augmentation = Augmentation(size=4)
    orders = [augmentation.draw(1, 4, 4, rng).order for _ in range(4800)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-4


def test_strong_colours_never_go_below_zero():
    draws = Augmentation(size=4, brightness=1.7).draw(2000, 4, 4, np.random.default_rng(0))
    assert draws.factors["brightness"].min() >= 0 and draws.factors["brightness"].max() <= 2.7


def test_what_is_switched_off_moves_nothing_else():
    full, without = (Augmentation(size=8, hue=hue).draw(50, 9, 9, np.random.default_rng(1)) for hue in (0.3, 0.0))
    assert "hue" not in without.order and "hue" in full.order
    assert (full.boxes == without.boxes).all() and (full.factors["contrast"] == without.factors["contrast"]).all()
    assert [name for name in full.order if name != "hue"] == list(without.order)


# --- bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5])
def test_the_bits_do_not_depend_on_threads(n):
    x = images(n, 256, 256)
    augmentation = Augmentation(size=224)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(augmentation.train(x, np.random.default_rng(0)))
    finally:
        torch.set_num_threads(before)
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def test_the_input_and_the_global_stream_are_left_alone():
    x = images(4)
    before, state = x.clone(), torch.random.get_rng_state()
    Augmentation(size=24).train(x, np.random.default_rng(0))
    Augmentation(size=24).evaluate(x)
    assert (x == before).all() and (torch.random.get_rng_state() == state).all()


def test_results_are_their_own_unless_memory_is_given():
    x = images(8, 30, 30)
    augmentation = Augmentation(size=20)
    held = [augmentation.train(x, np.random.default_rng(seed)) for seed in range(8)]
    assert len({batch.data_ptr() for batch in held}) == 8
    memory = torch.empty(8, 20, 20, 3)
    again = augmentation.train(x, np.random.default_rng(0), out=memory)
    assert again.data_ptr() == memory.data_ptr() and (again == held[0]).all()
    assert again.is_contiguous(memory_format=torch.channels_last)


def test_values_stay_in_range():
    x = images(16, 30, 30, seed=2)
    augmentation = Augmentation(size=20, mean=(0, 0, 0), std=(1, 1, 1), brightness=0.9, saturation=2.0, hue=0.5)
    out = augmentation.train(x, np.random.default_rng(0))
    assert out.isfinite().all() and out.min() >= -1e-5 and out.max() <= 1 + 1e-5


# --- compiled colours --------------------------------------------------------------------------------------------

with_compiled_colours = pytest.mark.skipif(
    not augment._torch_rounds_as_kernels(),
    reason="torch uses neither AVX2 nor AVX512 on this processor, hence rounds differently, and colours are torch's.",
)
Case = tuple[Augmentation, torch.Tensor, Draws]


def assert_same_bits(case: Case) -> None:
    """The compiled operations write what torch's write, the sign of a zero included."""
    augmentation, x, draws = case
    by_torch, compiled = (torch.full((len(x), augmentation.size, augmentation.size, 3), torch.nan) for _ in range(2))
    augmentation._change(x, draws, by_torch)
    augmentation._change_compiled(x, draws, compiled)
    differing = (by_torch.view(torch.int32) != compiled.view(torch.int32)).nonzero()
    assert len(differing) == 0, f"{len(differing)} of {compiled.numel()} differ, first at {differing[0].tolist()}"


def some_images(n: int, height: int, width: int, rng: np.random.Generator) -> torch.Tensor:
    """uint8 (n, h, w, 3): noise, few levels with many equal channels, and greys, image by image."""
    x = rng.integers(0, 256, (n, height, width, 3), dtype=np.uint8)
    x[1::3] = x[1::3] // 128 * 255
    x[2::3] = x[2::3, ..., :1]
    return torch.from_numpy(x)


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
    """Augmentations with images and choices, also such as ``draw`` never makes."""
    size = draw(st.integers(1, 70))  # from 46 pixels on more than one chunk
    n, height, width = draw(st.integers(1, 6)), draw(st.integers(1, 80)), draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    boxes = np.empty((n, 4), np.int64)
    for box in boxes:
        h, w = rng.integers(1, [height, width], endpoint=True)
        if size <= min(height, width) and rng.random() < 0.3:
            h = w = size  # nothing to resize
        box[:] = rng.integers(0, height - h, endpoint=True), rng.integers(0, width - w, endpoint=True), h, w
    order = draw(st.permutations(list(augment.OPERATIONS)))[: draw(st.integers(0, 4))]
    factors = {}
    for name in augment.OPERATIONS:
        low = -4.0 if name == "hue" else 0.0
        special = st.sampled_from([0.0, 0.5, 1.0, *([-0.5, 1 / 6] if name == "hue" else [1e-30, 50.0, 1e20])])
        values = st.one_of(special, st.floats(low, 4.0, width=32))
        factors[name] = np.array(draw(st.lists(values, min_size=n, max_size=n)), np.float32)
    mean = draw(st.sampled_from([augment.IMAGENET_MEAN, (0.0, 0.0, 0.0)]))
    draws = Draws(boxes, rng.random(n) < 0.5, tuple(order), factors, rng.random(n) < 0.3)
    return Augmentation(size, mean=mean), some_images(n, height, width, rng), draws


@with_compiled_colours
@settings(deadline=None, max_examples=200)
@given(cases(), st.integers(1, 3))
def test_compiled_colours_have_the_bits_of_torchs(case, images_of_a_block):
    with mock.patch.object(augment, "BLOCK_PIXELS", images_of_a_block * case[0].size ** 2):
        assert_same_bits(case)


@with_compiled_colours
@pytest.mark.parametrize("order", list(itertools.permutations(augment.OPERATIONS)), ids=" ".join)
def test_compiled_colours_have_the_bits_of_torchs_in_every_order(order):
    rng = np.random.default_rng(0)
    augmentation = Augmentation(size=53, greyscale=0.4, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.5)
    drawn = augmentation.draw(7, 60, 57, rng)
    draws = Draws(drawn.boxes, drawn.flipped, order, drawn.factors, drawn.grey)
    assert_same_bits((augmentation, some_images(7, 60, 57, rng), draws))


@with_compiled_colours
@pytest.mark.parametrize("size", [224, 2051])
def test_compiled_colours_have_the_bits_of_torchs_in_large_images(size):
    """Also where a line is longer than a chunk."""
    rng = np.random.default_rng(size)
    augmentation, x = Augmentation(size), some_images(2 if size < 1000 else 1, 256, 240, rng)
    draws = augmentation.draw(len(x), 256, 240, rng)
    assert_same_bits((augmentation, x, draws))


@with_compiled_colours
def test_threads_that_augment_at_once_do_not_disturb_each_other():
    def batch(seed: int) -> tuple[Augmentation, torch.Tensor]:
        return Augmentation(size=40 + seed % 3), some_images(5 + seed % 4, 48, 48, np.random.default_rng(seed))

    def augmented(seed: int) -> torch.Tensor:
        augmentation, x = batch(seed)
        return augmentation.train(x, np.random.default_rng(seed))

    with mock.patch.object(augment, "_torch_rounds_as_kernels", return_value=False):
        want = [augmented(seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(augmented, range(40)))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(
    ("capability", "device", "method"),
    [
        ("AVX2", "cpu", "_change_compiled"),
        ("AVX512", "cpu", "_change_compiled"),
        ("DEFAULT", "cpu", "_change"),
        ("ZVECTOR", "cpu", "_change"),
        ("AVX512", "meta", "_change"),
    ],
)
def test_colours_are_compiled_only_where_torch_rounds_the_same(monkeypatch, capability, device, method):
    called = []
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for name in ("_change", "_change_compiled"):
        monkeypatch.setattr(Augmentation, name, lambda *given, name=name: called.append(name))
    x = torch.empty(2, 10, 10, 3, dtype=torch.uint8, device=device)
    assert Augmentation(size=8).train(x, np.random.default_rng(0)).shape == (2, 3, 8, 8)
    assert called == [method]


def test_no_images_are_no_images():
    rows = np.zeros(0, np.int64)
    x = images(0)
    assert Augmentation(size=8).train(x, np.random.default_rng(0), rows, of=4).shape == (0, 3, 8, 8)
