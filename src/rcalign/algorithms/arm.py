"""ARM (contextual, ARM-CML): learn to use the unlabelled batch that a sample comes with.

A context network q maps an input (c, ...) to one channel of the same size. With c_G the mean of q over the samples of a
group G, the network reads [x, c_G], one channel more than before, and descends the cross-entropy over all N samples:

    loss = (1/N) sum_i CE(g(f([x_i, c_G(i)])), y_i)

Groups: in training the domains; in prediction consecutive chunks of ``batch_size`` rows where they come out even, else
all rows together, so a prediction depends on its batch. The first layer of f is linear in its input, so the new channel
has a layer of its own, computed once for each group and added to f's; it starts from f's weights for channel 0.
q: convolution 5 to 64 channels, batch norm, ReLU, the same again, convolution 5 to one channel; for rows of numbers
linear layers of 64 with batch norm, and an output as long as the row. It sees inputs averaged down by
``context_stride``, and its result is enlarged again.

Paper: Zhang et al., Adaptive Risk Minimization: Learning to Adapt to Domain Shift (2021). Departures: DomainBed never
hands q to the optimizer (``train_context = false``, for its tables only) and has q work at full size (stride 1), which
costs more than a ResNet-18. DomainBed mixes domains when batches are unequal; here groups are always domains.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.distributed import own_rows
from rcalign.errors import InputError
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch, StepOutput

WIDTH = 64  # of the context network's hidden layers


@register(
    "ARM",
    summary="adapts to the unlabelled batch a sample comes with, by a context channel",
    paper="Zhang et al., Adaptive Risk Minimization: Learning to Adapt to Domain Shift (2021)",
    family="test-batch adaptation",
    traits=Traits(batch_dependent=True),
)
class ARM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        batch_size: Annotated[
            int,
            Field(
                "samples per domain and step, and rows that share a context in prediction",
                Choice(8),
                minimum=2,
                presets={
                    "arrays": At(64, LogUniform(8, 2**9, integer=True)),
                    "mdlt": At(24, Choice(24)),
                    "rc-align": At(24, Choice(24)),
                },
            ),
        ] = 8
        context_stride: Annotated[
            int,
            Field(
                "the context network sees inputs reduced by this factor",
                minimum=1,
                presets={"domainbed": At(1), "domainbed-2024": At(1)},
            ),
        ] = 4
        train_context: Annotated[
            bool,
            Field(
                "train the context network (published code: not)",
                presets={"domainbed": At(False), "domainbed-2024": At(False)},
            ),
        ] = True

    def build(self) -> None:
        self.context = self.make_context()
        first = self._first_layer()
        self.context_input = self._input_layer(first)
        self._groups: tuple[Tensor, Sequence[int]] | None = None  # contexts (G, ...) and rows of each, during a pass
        first.register_forward_hook(self._add_context)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        trained = self.hparams.train_context
        named = self.named_parameters()
        return {"main": self.adam(p for name, p in named if trained or not name.startswith("context."))}

    @property
    def row_networks(self) -> list[nn.Module]:
        return [self.featurizer, self.context]

    def make_context(self) -> nn.Module:
        """q: (n, c, ...) -> (n, 1, ...), or rows (n, c) -> (n, c)."""
        channels, *space = self.spec.input_shape
        if not space:
            layers: list[nn.Module] = [nn.Linear(channels, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, channels)]
            norm: type[nn.Module] = nn.BatchNorm1d
        else:
            convolution: Any = nn.Conv1d if len(space) == 1 else nn.Conv2d
            norm = nn.BatchNorm1d if len(space) == 1 else nn.BatchNorm2d
            widths = (channels, WIDTH, WIDTH, 1)
            layers = [convolution(a, b, 5, padding=2) for a, b in itertools.pairwise(widths)]
        return nn.Sequential(layers[0], norm(WIDTH), nn.ReLU(), layers[1], norm(WIDTH), nn.ReLU(), layers[2])

    def loss(self, batch: Batch) -> StepOutput:
        for name, size in zip(self.spec.domains, batch.sizes, strict=True):
            if size < 2:
                raise InputError(
                    f"ARM learns from the other samples of a batch, but the batch has {size} of domain '{name}': use a "
                    "batch_size of at least 2."
                )
        _, logits = self(batch.x, batch.sizes)
        return StepOutput(self.cross_entropy(logits, batch.y))

    def forward(self, x: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits; ``sizes``: consecutive rows that share a context (None: prediction's groups)."""
        if sizes is None:
            support = self.hparams.batch_size
            sizes = [support] * (len(x) // support) if len(x) % support == 0 else [len(x)]
        self._groups = (self.contexts(x, sizes), sizes)
        try:
            return super().forward(x)
        finally:
            self._groups = None

    def contexts(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """c_G of each group: (n, c, ...) -> (G, 1, ...), or rows (n, c) -> (G, c)."""
        stride, space = self.hparams.context_stride, tuple(x.shape[2:])
        if stride > 1 and space:
            pool: Any = F.adaptive_avg_pool1d if len(space) == 1 else F.adaptive_avg_pool2d
            x = pool(x, [math.ceil(side / stride) for side in space])
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.hparams.train_context):
            values = torch.stack([part.mean(0) for part in torch.split(self.context(x), list(sizes))])
        return F.interpolate(values, space) if stride > 1 and space else values

    def _add_context(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Hook of f's first layer: adds what the context channel contributes to each row."""
        assert self._groups is not None, "the featurizer of ARM runs inside forward only"
        contexts, sizes = self._groups
        if isinstance(layer, nn.Linear):
            contexts = contexts.flatten(1)
        rows = self.context_input(contexts).repeat_interleave(torch.tensor(sizes, device=output.device), dim=0)
        return output + own_rows(rows)

    def _first_layer(self) -> nn.Module:
        """The layer of the featurizer that reads the input."""
        shape = self.spec.input_shape
        for layer in self.featurizer.modules():
            if isinstance(layer, nn.Linear) and layer.in_features == math.prod(shape):
                return layer
            if isinstance(layer, (nn.Conv1d, nn.Conv2d)) and layer.in_channels == shape[0] and layer.groups == 1:
                return layer
            if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
                break
        raise InputError(
            "ARM adds a channel to the input, but the backbone's first layer is no convolution or linear layer that "
            f"reads samples of shape {shape}: choose another backbone, such as a ResNet."
        )

    def _input_layer(self, first: Any) -> nn.Module:
        """A layer like the first one for the context alone: its weights for channel 0, and no bias."""
        layer = copy.deepcopy(first)
        layer.bias = None
        if isinstance(first, nn.Linear):
            layer.in_features = math.prod(self.spec.input_shape[1:]) if self.spec.input_shape[1:] else first.in_features
            layer.weight = nn.Parameter(first.weight.detach()[:, : layer.in_features].clone())
        else:
            layer.in_channels = 1
            layer.weight = nn.Parameter(first.weight.detach()[:, :1].clone())
        return layer
