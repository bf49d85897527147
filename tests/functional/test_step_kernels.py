"""The look-ahead's loop rounds where torch's fused Adam does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.optim.adam import adam

from rcalign.compiled import compiled, fma
from rcalign.functional.step_kernels import adam_ahead, adam_constants


@compiled()
def _once(a: float, b: float, c: float) -> float:
    return fma(a, b, c)


def test_a_product_and_a_sum_are_rounded_once() -> None:
    one, tiny = np.float32(1), np.float32(2**-12)
    rest = -(one + 2 * tiny)
    assert (one + tiny) * (one + tiny) + rest == 0  # rounded twice
    assert _once(one + tiny, one + tiny, rest) == tiny * tiny


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="torch rounds otherwise on this processor"
)
@pytest.mark.parametrize("n", [1, 7, 16, 1003])  # whole vectors and what is left over
@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-12])
def test_the_bits_are_those_of_torchs_fused_step(n: int, decay: float, decoupled: bool, scale: float) -> None:
    made = torch.Generator().manual_seed(n)
    options = {"lr": 1e-3, "eps": 1e-8, "weight_decay": decay}
    for step in (1, 2, 50, 5000):
        p, gradient, first = torch.randn(3, n, generator=made) * torch.tensor([1.0, scale, scale])[:, None]
        second = torch.rand(n, generator=made) * scale**2
        expected, steps = p.clone(), torch.tensor(float(step - 1))
        adam(
            [expected],
            [gradient],
            [first.clone()],
            [second.clone()],
            [],
            [steps],
            fused=True,
            decoupled_weight_decay=decoupled,
            amsgrad=False,
            maximize=False,
            beta1=0.9,
            beta2=0.999,
            **options,
        )
        found = torch.empty(n)
        constants = adam_constants(step, betas=(0.9, 0.999), decoupled=decoupled, **options)
        adam_ahead(*(values.numpy() for values in (p, gradient, first, second)), constants, found.numpy())
        assert torch.equal(found, expected)
