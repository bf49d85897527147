"""SelfReg, CAD, CondCAD, Transfer, TRM, URM, ADRMX: what must hold beside the recorded numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rcalign import spaces
from rcalign.algorithms.base import Algorithm
from rcalign.algorithms.urm import ACTIVATIONS
from rcalign.checkpoints import load_state, save_state
from rcalign.errors import InputError
from rcalign.types import Batch
from toy import batch, make, weights

NAMES = ["SelfReg", "CAD", "CondCAD", "Transfer", "TRM", "URM", "ADRMX", "MIRO", "SAM"]


def moved(model: Algorithm, before: dict[str, torch.Tensor]) -> set[str]:
    """First names of the parameters and buffers that are no longer what they were."""
    return {name.split(".")[0] for name, value in weights(model).items() if not torch.equal(before[name], value)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(1,), (2,)])
def test_one_domain_with_one_or_two_samples_works_or_says_why_not(name: str, sizes: tuple[int, ...]) -> None:
    try:
        model = make(name, domains=1)
        for t in range(4):
            logs = model.step(batch(t, sizes, domains=1))
            assert all(np.isfinite(float(value)) for value in logs.values())
    except InputError as error:
        reason = "at least two samples" if name == "SelfReg" else "at least 2 source domains"
        assert reason in str(error)
        assert name in ("SelfReg", "TRM") and (name == "TRM" or sizes == (1,))
    else:
        assert all(torch.isfinite(value).all() for value in weights(model).values())


@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_one_class_and_none_of_another(name: str) -> None:
    model = make(name, **({"start_step": 0} if name == "TRM" else {}))
    for t in range(4):
        data = batch(t, (1, 4, 3))
        data.y.zero_()
        data.y[-1] = 2  # a class with one sample; class 1 is missing
        assert np.isfinite(float(model.step(data)["loss"]))
    assert all(torch.isfinite(value).all() for value in weights(model).values())


def test_selfreg_takes_partners_of_the_class_only() -> None:
    model, data = make("SelfReg"), batch(0, (5, 6, 7))
    for _ in range(20):
        for partners in model.draw_partners(data.y):
            assert torch.equal(data.y[partners], data.y)
            assert sorted(partners.tolist()) == list(range(18))


def test_selfreg_costs_nothing_where_a_class_agrees() -> None:
    """Equal logits within a class: the logit term is zero whoever the partners are."""
    model = make("SelfReg", feature_weight=0.0)
    data = batch(0)
    same = Batch(F.one_hot(data.y, 6).float(), data.y, data.domain, data.index, data.sizes)
    assert float(model.step(same)["penalty"]) == pytest.approx(0.0, abs=1e-10)
    assert float(model.step(data)["penalty"]) > 1e-5


@pytest.mark.parametrize("name", ["CAD", "CondCAD"])
def test_bottleneck_ignores_the_order_of_samples_and_the_names_of_domains(name: str) -> None:
    model, data = make(name), batch(0, (5, 6, 7))
    features = model.featurizer(data.x).detach()
    order = torch.randperm(18, generator=torch.Generator().manual_seed(0))
    shuffled = Batch(data.x[order], data.y[order], 2 - data.domain[order], data.index, data.sizes)
    ours, theirs = model.bottleneck(features, data), model.bottleneck(features[order], shuffled)
    torch.testing.assert_close(ours, theirs)


def test_cad_needs_no_labels_and_condcad_does() -> None:
    data = batch(0, (5, 6, 7))
    other = Batch(data.x, (data.y + torch.arange(18)) % 3, data.domain, data.index, data.sizes)
    for name, same in (("CAD", True), ("CondCAD", False)):
        model = make(name)
        features = model.featurizer(data.x).detach()
        assert torch.equal(model.bottleneck(features, data), model.bottleneck(features, other)) == same


@pytest.mark.parametrize("name", ["CAD", "CondCAD"])
@pytest.mark.parametrize("change", [{"projected": True}, {"normalized": True}, {"flipped": False}])
def test_bottleneck_options_train(name: str, change: dict[str, bool]) -> None:
    model = make(name, penalty_weight=1.0, **change)
    before = weights(model)
    for t in range(3):
        assert np.isfinite(float(model.step(batch(t))["loss"]))
    assert moved(model, before) >= {"featurizer", "head", *(["project"] if "projected" in change else [])}


def test_transfer_adversary_stays_in_its_ball_and_widens_the_gap() -> None:
    model = make("Transfer", radius=0.05, adversary_rate=1.0, adversary_steps=20, learning_rate=0.0)
    model.step(batch(0))
    apart = [a - b for a, b in zip(model.adversary.parameters(), model.head.parameters(), strict=True)]
    distance = torch.cat([part.detach().flatten() for part in apart]).norm()
    assert float(distance) == pytest.approx(0.05, rel=1e-4)
    data = batch(0)
    risks = [
        [F.cross_entropy(head(model.featurizer(part.x)), part.y).item() for part in data.per_domain()]
        for head in (model.head, model.adversary)
    ]
    assert max(risks[1]) - min(risks[1]) > max(risks[0]) - min(risks[0])


def test_transfer_gap_step_moves_features_only() -> None:
    model = make("Transfer", gap_weight=1.0)
    for t in range(3):
        model.step(batch(t))
    head_after_first: list[torch.Tensor] = []
    model.optimizer.register_step_post_hook(lambda *_: head_after_first.append(model.head.weight.detach().clone()))
    model.step(batch(3))
    assert torch.equal(*head_after_first)


def test_trm_waits_for_its_start_and_keeps_rows_of_weights() -> None:
    model, plain = make("TRM", start_step=3), make("ERM")
    before = weights(model)
    for t in range(3):
        logs = model.step(batch(t))
        plain.step(batch(t))
        assert float(logs["transfer"]) == 0
    assert moved(model, before) == {"featurizer", "head"}
    torch.testing.assert_close(model.head.weight, plain.head.weight)
    assert float(model.step(batch(3))["transfer"]) > 0
    assert {"domain_heads", "domain_weights"} <= moved(model, before)
    assert torch.equal(model.domain_weights.diagonal(), torch.zeros(3))
    assert (model.domain_weights.sum(1) > 1).all()  # grown from one


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_urm_bounds_its_features_also_in_prediction(activation: str) -> None:
    model = make("URM", activation=activation, dropout=0.0)
    for t in range(3):
        model.step(batch(t))
    data = batch(9)
    features = model.embed(data.x)
    noise = model.draw_noise(features)
    low = -1.0 if activation == "tanh" else 0.0
    assert features.min() >= low and noise.min() >= low and noise.max() < 1
    torch.testing.assert_close(model.predict(data.x), model.head(features))


def test_urm_smoothed_targets_and_the_other_optimizer() -> None:
    model = make("URM", discriminator_smoothing=0.2, discriminator_optimizer="sgd")
    before = weights(model)
    model.step(batch(0))
    assert moved(model, before) == {"featurizer", "head", "discriminator"}
    noise, features = model.draw_targets(torch.zeros(500, 1))
    assert noise.min() >= 0.8 and noise.max() <= 1 and noise.std() > 0.01
    assert features.min() >= 0 and features.max() <= 0.2 and features.std() > 0.01


def test_adrmx_turns() -> None:
    model = make("ADRMX", discriminator_steps=2)
    others = {"featurizer", "domain_featurizer", "head", "difference_head", "domain_head"}
    for t, expected in enumerate([{"discriminator"}, others, {"discriminator"}, {"discriminator"}, others]):
        before = weights(model)
        model.step(batch(t))
        assert moved(model, before) == expected


def test_adrmx_uses_weight_decay_where_the_peer_ignores_it() -> None:
    for preset, used in (("default", 0.01), ("domainbed-2024", 0.0)):
        hparams = spaces.defaults(type(make("ADRMX").hparams), preset, weight_decay=0.01)
        model = make("ADRMX", weight_decay=0.01, decay_weights=hparams.decay_weights)
        assert {group["weight_decay"] for o in model.optimizers.values() for group in o.param_groups} == {used}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("TRM", {"start_step": 1}),
        ("TRM", {"start_step": 5, "form": "published"}),
        ("URM", {"discriminator_smoothing": 0.2, "discriminator_optimizer": "sgd"}),
        ("Transfer", {"optimizer": "sgd"}),
        ("CAD", {"projected": True}),
        ("ADRMX", {"discriminator_dropout": 0.5}),
    ],
)
def test_what_defaults_leave_out_survives_saving(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    straight, resumed = (make(name, dropout=0.1, **changes) for _ in range(2))
    for t in range(4):
        straight.step(batch(t))
    save_state(tmp_path / "state", straight.training_state())
    resumed.step(batch(30))
    resumed.load_training_state(load_state(tmp_path / "state"))
    for t in range(4, 10):
        logs = [model.step(batch(t)) for model in (straight, resumed)]
        assert all(torch.equal(logs[0][key], logs[1][key]) for key in logs[0])
    assert all(torch.equal(value, weights(resumed)[key]) for key, value in weights(straight).items())
