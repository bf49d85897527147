"""Featurizers by name: any timm image backbone, a multilayer perceptron for rows, a small 1-D CNN for series."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rcalign.errors import InputError, unknown
from rcalign.models.clip import TextTower, build_clip, is_clip
from rcalign.models.weights import load_pretrained

DEFAULT_IMAGE_BACKBONE = "tf_efficientnet_lite0"
ROWS, SERIES, NO_LAYERS = "mlp", "cnn1d", "none"


@dataclass(frozen=True)
class Backbone:
    """A featurizer with what its user must know.

    weights: fingerprint of the pretrained weights, or "none". text: makes a head of class names, where there is one.
    """

    featurizer: nn.Module
    features: int
    weights: str
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    text: TextTower | None = None


class ImageFeaturizer(nn.Module):
    """A headless timm network: (n, 3, s, s) -> (n, h). Frozen batch norm keeps its statistics; affine is trained.

    ``stages`` are the modules between which feature maps may be changed; empty for networks without such stages.
    """

    def __init__(self, network: nn.Module, freeze_batch_norm: bool = True) -> None:
        super().__init__()
        self.network = network
        self.freeze_batch_norm = freeze_batch_norm

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def train(self, mode: bool = True) -> ImageFeaturizer:
        super().train(mode)
        if self.freeze_batch_norm:
            for part in self.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        return self

    @property
    def stages(self) -> Sequence[nn.Module]:
        for names in (("layer1", "layer2", "layer3"), ("stages",), ("blocks",)):
            found = [getattr(self.network, name, None) for name in names]
            if all(isinstance(part, nn.Module) for part in found):
                if len(found) > 1:
                    return [part for part in found if part is not None]
                parts = list(found[0].children())  # type: ignore[union-attr]
                # transformer blocks carry tokens, not maps
                return [] if any("attn" in name for name, _ in found[0].named_modules()) else parts[:-1]  # type: ignore[union-attr]
        return []


class Standardised(nn.Module):
    """Inputs brought to mean zero and deviation one, by statistics (f,) that the training rows alone have set."""

    center: Tensor
    scale: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def standardise(self, center: Tensor, scale: Tensor) -> None:
        """Sets the statistics; a constant input stays as it is."""
        self.center.copy_(center)
        self.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))


class Rows(Standardised):
    """A multilayer perceptron: (n, f) -> (n, width).

    >>> Rows(5, width=8)(torch.zeros(2, 5)).shape
    torch.Size([2, 8])
    """

    def __init__(self, inputs: int, width: int = 256) -> None:
        super().__init__(inputs)
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x - self.center) / self.scale)


class Series(Standardised):
    """A small 1-D convolutional network: (n, channels, t) -> (n, width), statistics per channel.

    >>> Series(2, width=16)(torch.zeros(3, 2, 50)).shape
    torch.Size([3, 16])
    """

    def __init__(self, channels: int, width: int = 128) -> None:
        super().__init__(channels)
        widths = (channels, width // 4, width // 2, width)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 7, stride=2, padding=3), nn.GroupNorm(1, b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.center[:, None]) / self.scale[:, None]
        for stage in self.stages:
            x = stage(x)
        return x.mean(2)


def build_backbone(
    name: str | None,
    input_shape: tuple[int, ...],
    *,
    weights: str | Path | None = None,
    freeze_batch_norm: bool = True,
) -> Backbone:
    """The featurizer for samples of a shape: (f,) rows, (channels, t) series, (3, s, s) images.

    >>> build_backbone(None, (7,)).features
    256
    """
    if len(input_shape) == 3:
        return _image(name or DEFAULT_IMAGE_BACKBONE, input_shape, weights, freeze_batch_norm)
    if name == NO_LAYERS and len(input_shape) == 1:  # rows are features already: the head is all there is
        return Backbone(nn.Identity(), input_shape[0], "none")
    fitting = ROWS if len(input_shape) == 1 else SERIES
    if name not in (None, fitting):
        raise InputError(
            f"backbone '{name}' cannot read samples of shape {input_shape}: leave `backbone` out, or use '{fitting}'."
        )
    if len(input_shape) == 1:
        return Backbone(Rows(input_shape[0]), 256, "none")
    return Backbone(Series(input_shape[0]), 128, "none")


def _image(name: str, input_shape: tuple[int, ...], weights: str | Path | None, freeze_batch_norm: bool) -> Backbone:
    if name in (ROWS, SERIES):
        raise InputError(f"backbone '{name}' cannot read images: leave `backbone` out, or name a timm network.")
    if is_clip(name):
        featurizer, text, features, used, mean, std = build_clip(name, input_shape[-1], weights)
        return Backbone(featurizer, features, used, mean, std, text)
    import timm  # here, since it takes seconds that training on rows does not need

    if not timm.is_model(name):
        raise unknown("backbone", name, timm.list_models(), "Also clip:ViT-B-32 and others.")
    config = timm.get_pretrained_cfg(name)
    size = input_shape[-1]
    options: dict[str, Any] = {"img_size": size} if config is not None and config.fixed_input_size else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm speaks of layers that some of its networks rename
        network = timm.create_model(name, pretrained=False, num_classes=0, **options)
    used = load_pretrained(network, name, weights)
    with torch.no_grad():
        network.eval()
        features = network(torch.zeros(1, *input_shape)).shape[1]
    if config is None:
        return Backbone(ImageFeaturizer(network, freeze_batch_norm), features, used)
    return Backbone(ImageFeaturizer(network, freeze_batch_norm), features, used, tuple(config.mean), tuple(config.std))
