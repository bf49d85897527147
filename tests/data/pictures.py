"""Pictures made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (16, 16)) -> Path:
    """A smooth random picture, so that JPEG and resizing keep it recognisable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)
    return path
