"""What a model gives for samples without labels, which a diagnosis compares with its source domains."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from rcalign.data.cache import decode
from rcalign.data.source import Arrays, Content, ImageArray
from rcalign.errors import InputError
from rcalign.training.run_data import joined, outputs_of, untrained_features_of
from rcalign.training.trained import TrainedModel
from rcalign.training.unlabelled import UnlabelledSamples

THUMBNAIL = 96  # pixels


@dataclass(frozen=True, eq=False)
class TargetOutputs:
    """What a model gives for samples without labels: features (n, h), logits (n, C), and the name of each sample.

    untrained_features: (n, f), what the first trained layer reads, where that is a vector.
    skipped: (path, problem) of files that are no images.
    """

    features: np.ndarray
    logits: np.ndarray
    untrained_features: np.ndarray | None
    names: list[str]
    skipped: list[tuple[str, str]]
    content: Content | None

    def thumbnail(self, row: int) -> str | None:
        """A small copy of a sample as a data address, if it is a picture."""
        if isinstance(self.content, Arrays):
            return None
        pixels = self.content.x[row] if isinstance(self.content, ImageArray) else decode(Path(self.names[row]), None)
        image = Image.fromarray(pixels)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=80)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def target_outputs(model: TrainedModel, path: str | os.PathLike[str]) -> TargetOutputs:
    """Features and logits of a folder of images, a .csv list of them, an .npz with ``x``, or a table."""
    samples = UnlabelledSamples(model, [path])
    names: list[str] = []
    pairs, untrained = [], []
    for some, x in samples:
        if x is not None:
            names += [name for name, problem in some if problem is None]
            pairs.append(outputs_of(model, x))
            untrained.append(untrained_features_of(model, x))
    if not names:
        reason = f" ('{samples.skipped[0][0]}': {samples.skipped[0][1]})" if samples.skipped else ""
        raise InputError(f"'{path}' holds no sample that can be read{reason}: give images, an .npz with x, or a table.")
    features, logits = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return TargetOutputs(features, logits, joined(untrained), names, samples.skipped, samples.content)
