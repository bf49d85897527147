"""Reading and changing the feature maps between a featurizer's stages, for the time of one forward pass.

A featurizer that has such maps shows its stages as ``featurizer.stages``. Hooks are put on and taken off within a
``with``, so nothing stays behind on the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rcalign.distributed import all_rows


def stages_of(featurizer: nn.Module) -> list[nn.Module]:
    """The stages after which a feature map may be read or changed; none for networks that have no maps."""
    return list(getattr(featurizer, "stages", ()))


@contextmanager
def changed_maps(stages: Sequence[nn.Module], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, the output of each stage is replaced by ``change(output)``.

    >>> import torch
    >>> net = nn.Sequential(nn.Identity(), nn.Identity())
    >>> with changed_maps([net[0]], lambda a: a + 1):
    ...     print(net(torch.zeros(1)).item())
    1.0
    >>> net(torch.zeros(1)).item()
    0.0
    """

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return change(output)

    handles = [stage.register_forward_hook(hook) for stage in stages]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def read_maps(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """A list that, inside, collects the outputs of the modules for the whole batch, in the order in which they run."""
    found: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        found.append(all_rows(output))
        return output

    with changed_maps(modules, keep):
        yield found
