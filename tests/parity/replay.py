"""Recorded steps of the public code, and what replays them: shared by the parity tests.

A recorded file holds start weights, batches, draws, and the parameters and gradients of every update. ``layers`` names,
for each recorded layer, ours: ``{"head": "head", "disc.input": "discriminator.0"}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rcalign import spaces
from rcalign.algorithms.base import Algorithm, Network
from rcalign.types import Batch, DataSpec

Arrays = dict[str, np.ndarray]
NETWORK = {"f0": "featurizer.0", "f2": "featurizer.2", "head": "head"}


def load(reference: Path, name: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a recorded file, e.g. "steps/erm", and its description."""
    with np.load(reference / "parity" / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("meta")))


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array))


def domains_in(recorded: Arrays, t: int = 0) -> int:
    return sum(key.startswith(f"x_{t}_") for key in recorded)


def batch(recorded: Arrays, t: int) -> Batch:
    """The batch of update t."""
    domains = range(domains_in(recorded, t))
    return Batch.from_domains([(tensor(recorded[f"x_{t}_{d}"]), tensor(recorded[f"y_{t}_{d}"])) for d in domains])


def recorded_steps(recorded: Arrays) -> int:
    return len(recorded["after.f0.weight"])


def small_network(inputs: int = 6) -> Network:
    """The network of all recordings: Linear(input, 8), ReLU, Linear(8, 4), head Linear(4, 3), in float64."""
    return Network(nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 4)), 4, 3).double()


def built(
    cls: type[Algorithm],
    recorded: Arrays,
    meta: Mapping[str, Any],
    preset: str,
    *,
    layers: Mapping[str, str] = NETWORK,
    renamed: Mapping[str, str | None],
    **changes: Any,
) -> Algorithm:
    """The algorithm with the recorded start weights and hyperparameters; ``model.recorded`` are the arrays.

    renamed: recorded hyperparameter -> ours, None where we have none. Changes come last.
    """
    names = {"lr": "learning_rate", **renamed}
    values = {names.get(key, key): value for key, value in meta["hparams"].items()}
    values.pop(None, None)
    count = domains_in(recorded)
    spec = DataSpec(tuple("abc"), tuple(f"domain{k}" for k in range(count)), ((9, 9, 9),) * count, (6,))
    model = cls(spec, small_network(), spaces.defaults(cls.Hparams, preset, **{**values, **changes}))
    model.recorded = recorded
    state = model.state_dict()
    with torch.no_grad():
        for key, own in matched(recorded, model, layers).items():
            state[own].copy_(tensor(recorded[key]))
    return model


def matched(recorded: Iterable[str], model: Algorithm, layers: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Recorded array -> our tensor. Every recorded array of a layer in ``layers`` must have one."""
    found, ours = {}, model.state_dict()
    for key in recorded:
        layer, _, kind = key.removeprefix(prefix).rpartition(".")
        if key.startswith(prefix) and layer in layers:
            found[key] = f"{layers[layer]}.{kind}"
            assert found[key] in ours, f"{key} is recorded, but there is no {found[key]}"
    assert found, f"nothing that begins with '{prefix}' is recorded"
    return found


def difference(model: Algorithm, recorded: Arrays, t: int, layers: Mapping[str, str] = NETWORK) -> float:
    """The largest difference of a recorded parameter or buffer after update t."""
    state = model.state_dict()
    pairs = matched(recorded, model, layers, "after.").items()
    return max(float((state[own] - tensor(recorded[key][t])).abs().max()) for key, own in pairs)


def gradient_difference(
    gradients: Mapping[str, Tensor], model: Algorithm, recorded: Arrays, t: int, call: int, layers: Mapping[str, str]
) -> float:
    """The largest difference between our gradients, by parameter, and those of the given optimizer call of update t.

    NaN is recorded where that optimizer did not step; then nothing may be given.
    """
    largest = 0.0
    for key, own in matched(recorded, model, layers, f"grad{call}.").items():
        value = tensor(recorded[key][t])
        if torch.isnan(value).any():
            assert own not in gradients, own
        else:
            largest = max(largest, float((gradients[own] - value).abs().max()))
    return largest
