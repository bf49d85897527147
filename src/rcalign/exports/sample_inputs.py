"""Inputs that an exported model is run on, to compare it with the trained one."""

from __future__ import annotations

import numpy as np

from rcalign.data import loading
from rcalign.data.cache import decode
from rcalign.data.source import Arrays, ImageArray, Images
from rcalign.errors import InputError
from rcalign.training.trained import TrainedModel


def some_inputs(model: TrainedModel, rows: int = 8) -> list[np.ndarray]:
    """A few inputs of the run's own data as a caller would feed them; none if the data are not there any more."""
    try:
        dataset = loading.load(model.config.data, skip_bad=model.config.skip_bad)
    except InputError:
        return []
    content = dataset.content
    if isinstance(content, Arrays) != (model.augmentation is None):
        return []
    if model.encoding is not None:
        return []  # checked on rows that have gaps and unknown categories too
    chosen = np.linspace(0, len(dataset) - 1, min(rows, len(dataset))).astype(np.int64)
    if not isinstance(content, Images):
        same = isinstance(content, ImageArray) or content.x.shape[1:] == model.config.spec.input_shape
        return [content.x[chosen], content.x[chosen[:1]]] if same else []
    together = np.stack([decode(content.paths[row], model.stored_size) for row in chosen])
    return [together, *(decode(content.paths[row], None)[None] for row in chosen[:4])]
