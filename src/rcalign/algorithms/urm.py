"""URM (uniform risk minimisation): features that a discriminator cannot tell from uniform noise.

Features are bounded by an activation, z = a(f(x)), also before the head and in prediction. D is a multilayer perceptron
with one output, high for noise; u has the shape of z and is uniform on [-1, 1) (tanh) or [0, 1) (relu, sigmoid). A step
makes two updates, with the same features:

    f, head:  CE_all + adversary_weight * mean_i bce(D(z_i), 1)
    D:        mean_i bce(D(u_i), 1) + w * mean_i bce(D(z_i), 0),   z a constant

w = 1, so that D is at chance where features are uniform. With ``discriminator_smoothing`` s the targets of D are
uniform draws from [1 - s, 1] and [0, s].

Paper: Krishnamachari, Ng, Foo, Uniformly Distributed Feature Representations for Fair and Robust Learning (2024), read
in abstract; the formula is DomainBed's. Departures: DomainBed has w = adversary_weight, which at 0.1 lets D call
features noise ten times too easily: ``discriminator_weighting = published``, for its tables only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.functional.adversarial import taken_for_noise, told_from_noise
from rcalign.registry import register
from rcalign.spaces import At, Choice, Field, LogUniform, Uniform
from rcalign.types import Batch

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid}


@register(
    "URM",
    summary="features that a discriminator cannot tell from uniform noise",
    paper="Krishnamachari et al., Uniformly Distributed Feature Representations for Fair and Robust Learning (2024)",
    family="uniform features",
)
class URM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        adversary_weight: Annotated[
            float, Field("weight of being taken for noise, for the features", Uniform(0.0, 0.2), minimum=0)
        ] = 0.1
        activation: Annotated[
            str, Field("what bounds the features", Choice("tanh", "relu"), choices=("tanh", "relu", "sigmoid"))
        ] = "tanh"
        discriminator_layers: Annotated[
            int, Field("hidden layers of the discriminator after the first", Choice(1, 2, 3), minimum=0)
        ] = 1
        discriminator_width: Annotated[int, Field("hidden width of the discriminator", minimum=1)] = 100
        discriminator_rate: Annotated[
            float,
            Field(
                "the discriminator's learning rate",
                LogUniform(1e-6, 10**-4.5),
                minimum=0,
                presets={"arrays": At(1e-3, LogUniform(10**-5.5, 10**-3.5))},
            ),
        ] = 5e-5
        discriminator_optimizer: Annotated[
            str, Field("of the discriminator; sgd has momentum 0.9", choices=("adam", "sgd"))
        ] = "adam"
        discriminator_smoothing: Annotated[
            float, Field("width of the random targets of the discriminator", minimum=0, maximum=0.5)
        ] = 0.0
        discriminator_weighting: Annotated[
            str,
            Field(
                "weight of features in the discriminator's loss: as noise, or adversary_weight",
                choices=("equal", "published"),
                presets={"domainbed-2024": At("published")},
            ),
        ] = "equal"

    def build(self) -> None:
        width = self.hparams.discriminator_width
        widths = [self.features_dim, *[width] * (1 + self.hparams.discriminator_layers)]
        layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.LeakyReLU())]
        self.discriminator = nn.Sequential(*layers, nn.Linear(width, 1))

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        h, parameters = self.hparams, self.discriminator.parameters()
        optimizer: torch.optim.Optimizer
        if h.discriminator_optimizer == "sgd":
            optimizer = torch.optim.SGD(parameters, lr=h.discriminator_rate, weight_decay=h.weight_decay, momentum=0.9)
        else:
            optimizer = self.adam(parameters, lr=h.discriminator_rate)
        main = self.adam([*self.featurizer.parameters(), *self.head.parameters()])
        return {"main": main, "discriminator": optimizer}

    def features(self, x: Tensor) -> Tensor:
        """x (n, ...) -> bounded features (n, h)."""
        return ACTIVATIONS[self.hparams.activation](super().features(x))

    def draw_noise(self, features: Tensor) -> Tensor:
        """u, like the features (N, h)."""
        low = -1.0 if self.hparams.activation == "tanh" else 0.0
        return torch.from_numpy(self.rng.uniform(low, 1.0, tuple(features.shape))).to(features)

    def draw_targets(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """D's targets (N,) for noise and for features."""
        smoothing, rows = self.hparams.discriminator_smoothing, len(features)
        low = self.rng.uniform(0.0, smoothing, (2, rows)) if smoothing > 0 else np.zeros((2, rows))
        targets = torch.from_numpy(np.stack([1 - low[0], low[1]])).to(features)
        return targets[0], targets[1]

    def step(self, batch: Batch) -> Logs:
        h, batch = self.hparams, self.begin_step(batch)
        features, logits = self(batch.x)
        risk = self.cross_entropy(logits, batch.y)
        adversary = taken_for_noise(self.discriminator(features))
        loss = risk + h.adversary_weight * adversary
        self.descend(loss)
        discriminator_loss = self._train_discriminator(features.detach())
        return {
            "loss": loss.detach(),
            "risk": risk.detach(),
            "adversary": adversary.detach(),
            "discriminator": discriminator_loss,
        }

    def _train_discriminator(self, features: Tensor) -> Tensor:
        weight = 1.0 if self.hparams.discriminator_weighting == "equal" else self.hparams.adversary_weight
        noise = self.draw_noise(features)
        of_noise, of_features = self.discriminator(torch.cat([noise, features])).split(len(features))
        loss = told_from_noise(of_noise, of_features, *self.draw_targets(of_features), weight)
        optimizer = self.optimizers["discriminator"]
        optimizer.zero_grad(set_to_none=True)  # also what the features' own step left here
        loss.backward()
        optimizer.step()
        return loss.detach()
