"""SSP-pretext: the first stage of SSP, which learns features by telling how far an image has been turned.

All N images of a batch, whatever their domain, are each turned by r * 90 degrees; every r of 0, 1, 2, 3 is given to N/4
images (to within one) in random order. With a new 4-way linear head q on the features:

    L = (1/N) sum_i CE(q(f(turned x_i)), r_i)

Labels are not looked at. The class head is not trained, q is dropped afterwards.

Paper: Yang and Xu, Rethinking the Value of Labels for Improving Class-Imbalanced Learning (2020), its rotation variant
(after Gidaris et al., 2018). Departures: Adam at the run's rate from the run's backbone, where the paper trains from
scratch with SGD for 200 epochs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm
from rcalign.errors import InputError
from rcalign.functional.rotation import turned
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


def require_square_images(model: Algorithm) -> None:
    """Both stages ask, so that the second one fails before the first one has run."""
    shape = model.spec.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise InputError(
            f"{model.name} turns images by 90 degrees, but one input has shape {shape}: give square images (channels, "
            "size, size), or choose another algorithm."
        )


@register(
    "SSP-pretext",
    summary="predict an image's rotation, without labels",
    paper="Yang and Xu, Rethinking the Value of Labels for Improving Class-Imbalanced Learning (2020)",
    family="long-tailed, self-supervised",
    traits=Traits(images_only=True, recipe_part=True, cross_entropy=False),
)
class SSPPretext(Algorithm):
    def build(self) -> None:
        require_square_images(self)
        self.rotation_head = nn.Linear(self.features_dim, 4)

    def loss(self, batch: Batch) -> StepOutput:
        # the start is random too: with N not divisible by four no turn is favoured
        balanced = (np.arange(len(batch)) + self.rng.integers(4)) % 4
        turns = torch.from_numpy(self.rng.permutation(balanced)).to(batch.y)
        guesses = self.rotation_head(self.features(turned(batch.x, turns)))
        right = (guesses.detach().argmax(1) == turns).float().mean()
        return StepOutput(F.cross_entropy(guesses, turns), {"rotation_accuracy": right})
