"""Steps that read the gradient a little uphill of the weights: what sharpness-aware methods share."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from rcalign.algorithms.base import Algorithm, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.sharpness import global_norm
from rcalign.types import Batch


class SharpnessAware(Algorithm):
    """Two passes over a batch: g = grad CE_all at theta, then the gradient at theta + ``shift(||g||)`` g.

    The optimizer receives the second gradient or, with ``keeps_first``, the mean of both. ||g|| is over all trained
    parameters; batch-norm statistics move in the first pass only.
    """

    keeps_first: ClassVar[bool]

    def build(self) -> None:
        self._look_ahead = LookAhead(self)

    @abstractmethod
    def shift(self, norm: float) -> float:
        """The factor of the gradient in the way to the second point, for a gradient of this norm."""

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.cross_entropy(self(batch.x)[1], batch.y)
        loss.backward()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self._look_ahead.move(-self.shift(global_norm(gradients).item()), accumulate=self.keeps_first)
        perturbed = self.cross_entropy(self._look_ahead(batch.x)[1], batch.y)
        perturbed.backward()  # with ``keeps_first`` it adds to the gradients of the first pass
        if self.keeps_first:
            torch._foreach_mul_(gradients, 0.5)
        else:
            self._look_ahead.take_gradients()
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": loss.detach(), "perturbed": perturbed.detach()}
