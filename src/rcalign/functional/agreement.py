"""How far the domains' gradients agree: masks on what they disagree about, penalties on their differences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 1e-10


def agreed(gradients: Tensor, threshold: float) -> Tensor:
    """The mean gradient where enough domains have the same sign, else 0: (K, ...) -> (...).

    Kept are the entries with |mean_d sign(g_d)| >= threshold. What is left is divided by the share of kept entries, so
    that a strict threshold does not mean small steps.

    >>> agreed(torch.tensor([[1.0, 1.0], [3.0, -1.0]]), 1.0)
    tensor([4., 0.])
    """
    kept = (gradients.sign().mean(0).abs() >= threshold).to(gradients.dtype)
    return gradients.mean(0) * kept / (SMALL + kept.mean())


def smoothly_agreed(gradients: Tensor, threshold: float, sharpness: float) -> Tensor:
    """The mean gradient times a mask between 0 and 1 that also asks for like sizes: (K, ...) -> (...).

    mask = max(0, tanh(sharpness / variance * (|mean_d sign(g_d)| - threshold))), the variance over domains with
    1/(K - 1); divided by the mask's mean. No variance (one domain) gives 1 above the threshold and 0 else.

    >>> smoothly_agreed(torch.tensor([[1.0, 1.0, 1.0], [1.0, 3.0, -1.0]]), 0.5, 1.0)
    tensor([2.4098, 1.1804, 0.0000])
    """
    mean = gradients.mean(0)
    # Tensor.var over the first dimension takes 25 times as long as this
    variance = (gradients - mean).square_().sum(0) / max(len(gradients) - 1, 1)
    agreement = gradients.sign().mean(0).abs() - threshold
    mask = torch.tanh(sharpness / variance * agreement).clamp(min=0).nan_to_num(nan=0.0)  # 0 * infinity: at the limit
    return mean * mask / (SMALL + mask.mean())


def gradient_spread(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """(1/K) sum_d || g_d - mean g ||^2 over all parameters: for each parameter its K gradients -> ().

    The mean enters as a constant, which changes no derivative.

    >>> gradient_spread([[torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])], [torch.tensor(5.0), torch.tensor(5.0)]])
    tensor(1.)
    """
    total = gradients[0][0].new_zeros(())
    for each in gradients:
        mean = torch.stack([gradient.detach() for gradient in each]).mean(0)
        total = total + torch.stack([(gradient - mean).square().sum() for gradient in each]).mean()
    return total


def head_gradient_variances(features: Tensor, logits: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
    """Variance over each domain's samples of the cross-entropy's gradient by a linear head: (K, C, h + 1).

    features (N, h), logits (N, C), y (N,); the last column is the bias. In closed form, without a pass per sample: the
    gradient of sample i is r_i (z_i, 1)^T with r_i = softmax(logits_i) - onehot(y_i), so that a variance is
    mean(r^2 z^2) - mean(r z)^2 (with 1/n), two matrix products.

    >>> z, y = torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0])
    >>> head_gradient_variances(z, torch.zeros(2, 2), y, (2,))
    tensor([[[0.2500, 0.0000],
             [0.2500, 0.0000]]])
    """
    with torch.autocast(features.device.type, enabled=False):  # a difference of like numbers: not in half precision
        kind = torch.promote_types(features.dtype, torch.float32)
        residuals = logits.to(kind).softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1]).to(kind)
        inputs = torch.cat([features.to(kind), features.new_ones(len(features), 1, dtype=kind)], 1)
        found = []
        for r, z in zip(torch.split(residuals, list(sizes)), torch.split(inputs, list(sizes)), strict=True):
            found.append(r.square().T @ z.square() / len(r) - (r.T @ z / len(r)).square())
        return torch.stack(found)


def variance_spread(variances: Tensor) -> Tensor:
    """(1/K) sum_d mean over entries of (v_d - mean v)^2: (K, ...) -> ().

    >>> variance_spread(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    tensor(0.5000)
    """
    return (variances - variances.mean(0)).square().mean()
