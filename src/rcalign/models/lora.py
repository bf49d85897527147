"""LoRA: the pretrained network stays as it is, and each of its linear layers learns a change of low rank.

A linear layer with weight W (out, in) computes W x + (alpha / r) B A x, with A (r, in) random and B (out, r) zero at
first, so that training starts at the pretrained network. Trained are A and B, and what the algorithm puts on the
features; W, biases, norms and convolutions are not. Of torch's ``MultiheadAttention`` the projections of
queries, keys and values learn such a change. ``merged`` adds the changes to the
weights: the network is then an ordinary one again.

Paper: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.errors import InputError

DOWN, UP, SCALE = "lora_down", "lora_up", "lora_scale"


def add_lora(network: nn.Module, rank: int, alpha: float | None = None) -> int:
    """Gives the linear layers of a network a change of this rank to learn, in place; everything else is frozen.

    alpha: the change is multiplied by alpha / rank; None: twice the rank. Draws from torch's random stream. Returns
    how many layers have one.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> x = torch.ones(2, 4)
    >>> before = network(x)
    >>> add_lora(network, rank=2), torch.equal(network(x), before)
    (2, True)
    >>> sorted(name for name, value in network.named_parameters() if value.requires_grad)
    ['0.lora_down', '0.lora_up', '2.lora_down', '2.lora_up']
    """
    network.requires_grad_(False)
    scale = 2.0 if alpha is None else alpha / rank
    changed = 0
    for part in list(network.modules()):
        if isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            _extend(part, part.in_proj_weight, rank, scale)
            part.__class__ = _AttentionWithLora
            changed += 1
        elif type(part) is nn.Linear:  # not a subclass: those may use their weight in ways of their own
            _extend(part, part.weight, rank, scale)
            part.__class__ = _LinearWithLora
            changed += 1
    if not changed:
        raise InputError(
            "`lora` changes linear layers, but the backbone has none, only convolutions: choose a vision transformer "
            "such as vit_base_patch16_224, or leave `lora` out."
        )
    return changed


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights (a ``state_dict``) of a network with LoRA as those of the network without it.

    Weights without LoRA come back as they are.

    >>> network, plain = nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3))
    >>> _ = add_lora(network, rank=2)
    >>> _ = nn.init.ones_(network[0].lora_up)
    >>> plain.load_state_dict(merged(network.state_dict()))
    <All keys matched successfully>
    >>> x = torch.ones(2, 4)
    >>> torch.allclose(plain(x), network(x), atol=1e-6)
    True
    """
    found = {name: value for name, value in weights.items() if not name.endswith((DOWN, UP, SCALE))}
    for name, down in weights.items():
        if not name.endswith(DOWN):
            continue
        layer = name.removesuffix(DOWN)
        target = next(layer + own for own in ("weight", "in_proj_weight") if layer + own in found)
        change = weights[layer + SCALE].double() * weights[layer + UP].double() @ down.double()
        found[target] = (found[target].double() + change).to(found[target].dtype)
    return found


def _extend(layer: nn.Module, weight: Tensor, rank: int, scale: float) -> None:
    """The parameters of the change, beside those of the layer."""
    out, inputs = weight.shape
    down = torch.empty(rank, inputs, dtype=weight.dtype)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))  # as torch's own linear layers
    layer.register_parameter(DOWN, nn.Parameter(down.to(weight.device)))
    layer.register_parameter(UP, nn.Parameter(torch.zeros(out, rank).to(weight)))
    layer.register_buffer(SCALE, torch.tensor(scale).to(weight))


class _LinearWithLora(nn.Linear):
    lora_down: Tensor
    lora_up: Tensor
    lora_scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        change = F.linear(F.linear(x, self.lora_down), self.lora_up)
        return F.linear(x, self.weight, self.bias) + self.lora_scale * change


class _AttentionWithLora(nn.MultiheadAttention):
    lora_down: Tensor
    lora_up: Tensor
    lora_scale: Tensor

    @property
    def in_proj_weight(self) -> Tensor:  # type: ignore[override]  # what torch's forward reads
        weight = self._parameters["in_proj_weight"]
        assert weight is not None
        return weight + self.lora_scale * self.lora_up @ self.lora_down
