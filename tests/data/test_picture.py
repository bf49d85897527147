"""A picture becomes the same network input by every way that leads there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rcalign.data.picture import decode, to_stored
from rcalign.data.picture_input import PictureToInput, to_input

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 80), st.integers(1, 80))
def test_the_exported_network_gives_the_same_bytes(height: int, width: int, stored: int, size: int) -> None:
    picture = pixels(height, width)
    kept = torch.from_numpy(to_stored(picture, stored))[None]
    expected = to_input(kept, size, (0.0,) * 3, (1 / 255,) * 3)
    found = PictureToInput(size, stored, (0.0,) * 3, (1 / 255,) * 3)(torch.from_numpy(picture)[None])
    # torch may keep one bit of its weights less on another processor: then a pixel in thousands is one level off
    levels = (found - expected).abs()
    assert levels.max() <= 1.001 and (levels > 0.001).float().mean() < 0.01


@pytest.mark.parametrize(("height", "width"), [(300, 200), (200, 300), (1200, 900), (72, 72)])
def test_large_pictures_too(height: int, width: int) -> None:
    picture = pixels(height, width)
    expected = to_input(torch.from_numpy(to_stored(picture, 256))[None], 224, MEAN, STD)
    found = PictureToInput(224, 256, MEAN, STD)(torch.from_numpy(picture)[None])
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize(("height", "width"), [(1500, 1300), (300, 200), (30, 40)])
def test_a_file_is_its_pixels(suffix: str, height: int, width: int, tmp_path: Path) -> None:
    """Also a large JPEG, which could be decoded faster at a lower resolution, with other pixels."""
    y, x = np.mgrid[:height, :width]
    picture = np.stack([(x * 3) % 256, (y * 5) % 256, (x + y) % 256], 2).astype(np.uint8)
    file = tmp_path / f"picture.{suffix}"
    Image.fromarray(picture).save(file)
    with Image.open(file) as opened:
        in_memory = np.asarray(opened.convert("RGB"))
    assert np.array_equal(decode(file, None), in_memory)
    assert np.array_equal(decode(file, 48), to_stored(in_memory, 48))


def test_the_order_of_sides_is_ours_not_the_versions() -> None:
    picture = pixels(300, 200)
    wide = Image.fromarray(picture).resize((64, 300), Image.Resampling.BILINEAR)
    assert np.array_equal(to_stored(picture, 64), np.asarray(wide.resize((64, 64), Image.Resampling.BILINEAR)))
