"""Batches: a pure function of (seed, step), the same for any number of workers."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from rcalign.data import Arrays, Augmentation, Batches, ImageStore, evaluation_batches
from rcalign.data.batches import AHEAD, KEPT
from rcalign.distributed import Workers
from rcalign.errors import InputError
from rcalign.types import Batch

ROWS = [np.arange(0, 30), np.arange(30, 40), np.arange(40, 41)]
Y = np.concatenate([np.zeros(25), np.ones(5), np.repeat([0, 1, 2], [7, 2, 1]), [1]]).astype(np.int64)


def store(n: int = 41, size: int = 12) -> ImageStore:
    return ImageStore([np.random.default_rng(0).integers(0, 256, (n, size, size, 3), dtype=np.uint8)], size)


def image_batches(**changes) -> Batches:
    options = {"batch_size": 6, "seed": 3, "augmentation": Augmentation(size=10), **changes}
    return Batches(store(), Y, ROWS, options.pop("batch_size"), options.pop("seed"), **options)


def same(a: Batch, b: Batch) -> bool:
    return all(bool((getattr(a, name) == getattr(b, name)).all()) for name in ("x", "y", "domain", "index"))


def test_shapes_and_meaning():
    batch = image_batches().at(0)
    assert batch.sizes == (6, 6, 6) and batch.x.shape == (18, 3, 10, 10)
    assert batch.domain.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    for part, rows in zip(batch.split(batch.index), ROWS, strict=True):
        assert np.isin(part.numpy(), rows).all()
    assert (batch.y.numpy() == Y[batch.index.numpy()]).all()
    assert batch.y.dtype == batch.domain.dtype == batch.index.dtype == torch.int64


def test_the_same_step_is_the_same_batch_whatever_came_before():
    first, second = image_batches(), image_batches()
    wanted = first.at(11)
    for step in range(4):
        second.at(step)
    np.random.seed(0)  # noqa: NPY002  (the global streams must not matter)
    torch.manual_seed(0)
    assert same(second.at(11), wanted)
    assert not same(first.at(12), wanted)
    assert not same(image_batches(seed=4).at(11), wanted)


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_any_number_of_workers_gives_the_same_bits(workers):
    """And the images of a batch, and of the one before, stay while threads write the next ones."""
    batches = image_batches()
    before = None
    steps = 0
    for step, batch in enumerate(batches.iterate(5, 17, workers=workers), 5):
        time.sleep(0.005)  # the threads are ahead as far as they may
        assert same(batch, batches.at(step))
        assert before is None or same(before, batches.at(step - 1))
        before = batch
        steps += 1
    assert steps == 12


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_memory_is_a_ring(workers):
    places = [batch.x.data_ptr() for batch in image_batches().iterate(0, 30, workers=workers)]
    assert len(set(places)) == AHEAD * workers + 1 + KEPT


def test_an_iterator_may_be_left_early():
    iterator = image_batches().iterate(0, 10_000_000, workers=2)
    next(iterator)
    iterator.close()


def test_an_error_in_a_worker_arrives():
    batches = Batches(Arrays(np.zeros((3, 2), np.float32)), Y, ROWS, 4, 0)  # rows beyond the content
    with pytest.raises(IndexError):
        list(batches.iterate(0, 3, workers=1))


def test_rows_are_drawn_evenly_and_with_replacement():
    batches = Batches(Arrays(np.zeros((41, 1), np.float32)), Y, ROWS, 40, 0)
    drawn = np.concatenate([batches.indices(step)[0] for step in range(300)])
    counts = np.bincount(drawn, minlength=30)
    assert abs(counts / 400 - 1).max() < 0.25
    assert len(np.unique(batches.indices(0)[2])) == 1


def test_balanced_batches_draw_the_classes_of_a_domain_evenly():
    batches = Batches(Arrays(np.zeros((41, 1), np.float32)), Y, ROWS, 60, 0, balanced=True)
    for k, classes in enumerate((2, 3, 1)):
        drawn = np.concatenate([batches.indices(step)[k] for step in range(100)])
        shares = np.bincount(Y[drawn], minlength=3) / len(drawn)
        present = shares[shares > 0]
        assert len(present) == classes and abs(present - 1 / classes).max() < 0.03
    rows, counts = np.unique(drawn, return_counts=True)
    assert rows.tolist() == [40] and counts.tolist() == [6000]


def test_another_domain_more_moves_no_rows():
    rows = Batches(Arrays(np.zeros((41, 1), np.float32)), Y, ROWS, 5, 0).indices(3)
    fewer = Batches(Arrays(np.zeros((41, 1), np.float32)), Y, ROWS[:2], 5, 0).indices(3)
    assert all((a == b).all() for a, b in zip(fewer, rows, strict=False))


def test_numbers_arrive_as_they_are():
    x = np.random.default_rng(0).standard_normal((41, 2, 5)).astype(np.float32)
    for content in (Arrays(x), x):
        batch = Batches(content, Y, dict(zip("abc", ROWS, strict=True)), 4, 0).at(2)
        assert (batch.x.numpy() == x[batch.index.numpy()]).all()


def test_evaluation_is_in_order_and_touches_no_stream():
    images = store()
    augmentation = Augmentation(size=10)
    order = np.array([40, 3, 3, 17, 0])
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    parts = list(evaluation_batches(images, order, 2, augmentation))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert (torch.cat(parts) == augmentation.evaluate(images.take(order))).all()
    assert (torch.random.get_rng_state() == torch_state).all()
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_errors():
    with pytest.raises(InputError, match="augmentation"):
        Batches(store(), Y, ROWS, 4, 0)
    with pytest.raises(InputError, match="augmentation"):
        list(evaluation_batches(store(), [0], 1))
    with pytest.raises(InputError, match="source domain 1"):
        Batches(Arrays(np.zeros((3, 1), np.float32)), Y, [np.arange(2), np.arange(0)], 4, 0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("images", [True, False])
def test_workers_hold_parts_of_one_batch_and_cannot_use_the_rest(size: int, images: bool) -> None:
    def batches(**changes: Workers) -> Batches:
        if images:
            return image_batches(**changes)
        return Batches(Arrays(np.arange(82, dtype=np.float32).reshape(41, 2)), Y, ROWS, 6, 3, **changes)

    whole = batches().at(7)
    seen = np.zeros(len(whole), dtype=int)
    for rank in range(size):
        part = batches(workers=Workers(rank, size)).at(7)
        assert torch.equal(part.y, whole.y) and torch.equal(part.index, whole.index) and part.sizes == whole.sizes
        own = Workers(rank, size).positions(3, 6)
        assert torch.equal(part.x[own], whole.x[own])
        seen[own] += 1
        assert np.isnan(np.delete(part.x.numpy(), own, axis=0)).all()
    assert (seen == 1).all()
