"""Protocol presets: named sets of training choices, recorded in every run; the only place where protocols differ.

The hyperparameters' own per-preset defaults and ranges stand on their fields (see ``rcalign.spaces.At``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rcalign.errors import unknown

Protocol = Literal["lodo", "mdlt", "wilds", "adapt"]


@dataclass(frozen=True)
class Preset:
    """backbone: None = the default for the kind of data. image_size: None = the data's own, else 224.

    augmentation: changes to ``data.augment.Augmentation``.
    """

    name: str
    doc: str
    protocol: Protocol = "lodo"
    backbone: str | None = None
    freeze_batch_norm: bool = True
    image_size: int | None = None
    steps: int = 1000
    evaluate_every: int = 100
    augmentation: Mapping[str, Any] = field(default_factory=dict)


_JITTER: dict[str, float | tuple[float, float]] = {
    "brightness": 0.3,
    "contrast": 0.3,
    "saturation": 0.3,
    "hue": 0.3,
    "greyscale": 0.1,
    "scale": (0.7, 1.0),
}
_RESNET = "resnet50.tv_in1k"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("default", "EfficientNet-Lite0 fine-tuned, DomainBed's hyperparameters", augmentation=_JITTER),
        Preset("arrays", "rows, series or frozen features with a small network, DomainBed's ranges for small images"),
        Preset(
            "domainbed",
            "the published DomainBed tables (commit 7df6f06): ResNet-50, batch norm frozen",
            backbone=_RESNET,
            image_size=224,
            steps=5001,
            evaluate_every=300,
            augmentation=_JITTER,
        ),
        Preset(
            "domainbed-2024",
            "today's DomainBed (commit b93c22a): ResNet-50 AugMix, batch norm trained",
            backbone="resnet50.ram_in1k",
            freeze_batch_norm=False,
            image_size=224,
            steps=5001,
            evaluate_every=300,
            augmentation=_JITTER,
        ),
        Preset(
            "mdlt",
            "BoDA's multi-domain long-tailed protocol",
            protocol="mdlt",
            backbone=_RESNET,
            image_size=224,
            steps=5001,
            evaluate_every=100,
            augmentation=_JITTER,
        ),
        Preset(
            "rc-align",
            "the RC-Align paper: weight decay 5e-4, batch 24, colour jitter 0.4/0.4/0.4/0.1",
            backbone=_RESNET,
            image_size=224,
            steps=5000,
            evaluate_every=300,
            augmentation={
                "brightness": 0.4,
                "contrast": 0.4,
                "saturation": 0.4,
                "hue": 0.1,
                "greyscale": 0.0,
                "scale": (0.08, 1.0),
            },
        ),
    )
}


def get_preset(name: str) -> Preset:
    """The preset of a name; an ``InputError`` with the nearest name if there is none.

    >>> get_preset("mdlt").protocol
    'mdlt'
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def choose_preset(name: str | None, *, arrays: bool, freeze_backbone: bool) -> Preset:
    """The preset of a name; without one, that of the kind of data the network trains on.

    >>> [choose_preset(None, arrays=arrays, freeze_backbone=False).name for arrays in (False, True)]
    ['default', 'arrays']
    """
    if name is None:
        name = "arrays" if arrays or freeze_backbone else "default"
    return get_preset(name)
