"""Our algorithms through DomainBed's interface, used the way its train script uses one; the package is not needed."""

from __future__ import annotations

import io
import types

import numpy as np
import pytest
import torch
from torch import nn

from rcalign import registry
from rcalign.compat import domainbed
from rcalign.errors import InputError
from rcalign.types import Batch

# what DomainBed's registry gives to every algorithm
GENERIC = {
    "data_augmentation": True,
    "resnet18": False,
    "resnet_dropout": 0.1,
    "class_balanced": True,
    "nonlinear_classifier": False,
    "lr": 3e-3,
    "weight_decay": 1e-4,
    "batch_size": 8,
}


class MLP(nn.Module):
    """A featurizer as DomainBed has them: its width is ``n_outputs``."""

    def __init__(self, input_shape: tuple[int, ...], hparams: dict) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], 16), nn.ReLU())
        self.n_outputs = 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def minibatches(step: int, domains: int = 3, n: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng([step, domains])
    found = []
    for k in range(domains):
        y = np.arange(n) % 4  # every class, as class-balanced loaders give
        x = 0.3 * rng.standard_normal((n, 6)) + 2 * np.eye(6)[y] + 0.3 * k
        found.append((torch.from_numpy(x).float(), torch.from_numpy(y)))
    return found


def accuracy(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """As DomainBed's ``misc.accuracy`` does it."""
    network.eval()
    with torch.no_grad():
        right = (network.predict(x).argmax(1) == y).float().mean().item()
    network.train()
    return right


def train(algorithm_class: type, steps: int = 60, **hparams: object) -> nn.Module:
    """The part of DomainBed's train script that touches an algorithm."""
    torch.manual_seed(0)
    algorithm = algorithm_class((6,), 4, 3, {**GENERIC, **hparams})
    algorithm.to("cpu")
    for step in range(steps):
        values = algorithm.update(minibatches(step), None)
        assert all(isinstance(value, float) for value in values.values()) and np.isfinite(values["loss"])
    return algorithm


@pytest.mark.parametrize(
    "name", [name for name in domainbed.algorithm_names() if not registry.get(name).traits.images_only]
)
def test_every_algorithm_that_fits_learns_and_round_trips(name: str) -> None:
    algorithm_class = domainbed.algorithm(name, MLP)
    steps = 60 if name == "RC-Align" else 4
    algorithm = train(algorithm_class, steps)
    x, y = minibatches(1000, 1, 40)[0]
    buffer = io.BytesIO()
    torch.save({"model_dict": algorithm.state_dict()}, buffer)
    buffer.seek(0)
    other = algorithm_class((6,), 4, 3, GENERIC)
    other.load_state_dict(torch.load(buffer, weights_only=True)["model_dict"])
    assert torch.equal(algorithm.predict(x), other.predict(x))
    assert algorithm.predict(x).shape == (40, 4)
    if steps == 60:
        assert accuracy(algorithm, x, y) > 0.9


def test_two_lines_add_it_to_their_module() -> None:
    theirs = types.ModuleType("algorithms")
    exec(
        'from rcalign.compat import domainbed as rcalign\nRCAlign = rcalign.algorithm("rc-align")\n'
        "def get_algorithm_class(name):\n    return globals()[name]",
        theirs.__dict__,
    )
    found = theirs.get_algorithm_class("RCAlign")
    assert found.__name__ == "RCAlign" and issubclass(found, nn.Module)
    algorithm = found((6,), 4, 3, GENERIC)
    assert algorithm.hparams["lr"] == 3e-3 and algorithm.update(minibatches(0), unlabeled=None)["loss"] > 0


def test_hyperparameters_by_their_names_and_ours() -> None:
    algorithm = domainbed.algorithm("rc-align")((6,), 4, 3, {**GENERIC, "alignment_weight": 0.25})
    values = algorithm.algorithm.hparams
    assert (values.learning_rate, values.weight_decay, values.batch_size) == (3e-3, 1e-4, 8)
    assert values.alignment_weight == 0.25
    assert values.dropout == 0.1  # our network has none of its own
    assert domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC).algorithm.hparams.dropout == 0
    with pytest.raises(InputError, match="alignment_weight"):
        domainbed.algorithm("rc-align")((6,), 4, 3, {**GENERIC, "alignment_weight": "much"})


def test_a_step_is_the_step_of_our_own_training() -> None:
    torch.manual_seed(7)
    inside = domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC)
    torch.manual_seed(7)
    outside = domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC).algorithm
    for step in range(5):
        logs = inside.update(minibatches(step))
        ours = outside.step(Batch.from_domains(minibatches(step)))
        assert logs == {name: float(value) for name, value in ours.items()}
    assert all(torch.equal(a, b) for a, b in zip(inside.parameters(), outside.parameters(), strict=True))


def test_seeds_of_a_sweep_differ_and_repeat() -> None:
    def first_weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return next(domainbed.algorithm("erm", MLP)((6,), 4, 3, GENERIC).parameters()).detach()

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


def test_their_sweeps_draw_our_hyperparameters() -> None:
    draws = [domainbed.hparams("rc-align", seed) for seed in range(3)]
    assert "alignment_weight" in draws[0] and "learning_rate" not in draws[0]
    assert all(default == drawn for default, drawn in draws[0].values())  # seed 0 is the default there as here
    assert len({draw["alignment_weight"][1] for draw in draws}) == 3
    assert all(draw["alignment_weight"][0] == draws[0]["alignment_weight"][0] for draw in draws)


def test_what_needs_more_than_their_loop_says_so() -> None:
    said = {}
    for name in set(registry.names(parts=True)) - set(domainbed.algorithm_names()):
        with pytest.raises(
            InputError, match=r"cannot run inside DomainBed, because it .*: use 'rcalign train'\."
        ) as error:
            domainbed.algorithm(name)
        said[name] = str(error.value)
    assert "starts from a finished run of" in said["CRT"] and "averages weights" in said["SWAD"]
    balanced = [name for name in domainbed.algorithm_names() if registry.get(name).traits.balanced_sampling]
    for name in balanced:
        with pytest.raises(InputError, match="class_balanced"):
            domainbed.algorithm(name)((6,), 4, 3, {**GENERIC, "class_balanced": False})
