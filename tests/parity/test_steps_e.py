"""SelfReg, CAD, CondCAD, Transfer, TRM, URM and ADRMX against recorded steps of the public code, in float64.

Recorded draws enter where an algorithm draws: each such place is one small method, replaced by a subclass here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay import NETWORK, Arrays, batch, built, difference, gradient_difference, load, recorded_steps, tensor
from torch import Tensor

from rcalign import spaces
from rcalign.algorithms.adrmx import ADRMX
from rcalign.algorithms.base import Algorithm
from rcalign.algorithms.cad import CAD
from rcalign.algorithms.condcad import CondCAD
from rcalign.algorithms.selfreg import SelfReg
from rcalign.algorithms.transfer import Transfer
from rcalign.algorithms.trm import TRM
from rcalign.algorithms.urm import URM

PEER = "domainbed-2024"
CLOSE = 1e-10
BEFORE_NORM = ("project.0.bias", "project.3.bias", "project.6.bias")  # gradient zero: what moves them is rounding


class RecordedSelfReg(SelfReg):
    recorded: Arrays

    def draw_share(self) -> float:
        return float(self.recorded[f"draw_{self.steps_done}.lam"].item())

    def draw_partners(self, y: Tensor) -> tuple[Tensor, Tensor]:
        t = self.steps_done
        order = tensor(self.recorded[f"draw_{t}.order"]).long()  # the peer sorts the batch by label first
        found = []
        for name in ("shuffle", "shuffle2"):
            partners = torch.empty_like(order)
            partners[order] = order[tensor(self.recorded[f"draw_{t}.{name}"]).long()]
            found.append(partners)
        return found[0], found[1]


class RecordedURM(URM):
    recorded: Arrays

    def draw_noise(self, features: Tensor) -> Tensor:
        return tensor(self.recorded[f"draw_{self.steps_done - 1}.noise"])

    def draw_targets(self, features: Tensor) -> tuple[Tensor, Tensor]:
        t = self.steps_done - 1
        if f"draw_{t}.true_y" not in self.recorded:
            return super().draw_targets(features)
        return tensor(self.recorded[f"draw_{t}.true_y"]), tensor(self.recorded[f"draw_{t}.fake_y"])


class RecordedADRMX(ADRMX):
    recorded: Arrays

    def draw_order(self, label: int, members: int) -> list[int]:
        order = self.recorded[f"draw_{self.steps_done}.perm{label}"].tolist()
        assert sorted(order) == list(range(members))
        return order


RENAMED: dict[type[Algorithm], dict[str, str | None]] = {
    RecordedSelfReg: {},
    CAD: {
        "lmbda": "penalty_weight",
        "is_normalized": "normalized",
        "is_project": "projected",
        "is_flipped": "flipped",
    },
    Transfer: {
        "t_lambda": "gap_weight",
        "delta": "radius",
        "d_steps_per_g": "adversary_steps",
        "lr_d": "adversary_rate",
        "gda": None,
        "beta1": None,
        "weight_decay_d": None,
    },
    TRM: {
        "cos_lambda": "influence_weight",
        "iters": "start_step",
        "groupdro_eta": "weight_rate",
        "class_balanced": "start_from_head",
    },
    RecordedURM: {
        "urm": None,
        "urm_adv_lambda": "adversary_weight",
        "urm_discriminator_label_smoothing": "discriminator_smoothing",
        "urm_discriminator_optimizer": "discriminator_optimizer",
        "urm_discriminator_hidden_layers": "discriminator_layers",
        "urm_generator_output": "activation",
        "urm_discriminator_lr": "discriminator_rate",
    },
    RecordedADRMX: {
        "cnt_lambda": "contrast_weight",
        "dclf_lambda": "domain_weight",
        "disc_lambda": "adversary_weight",
        "rmxd_lambda": "remix_weight",
        "d_steps_per_g_step": "discriminator_steps",
        "mlp_width": "discriminator_width",
        "mlp_depth": "discriminator_depth",
        "mlp_dropout": "discriminator_dropout",
    },
}
RENAMED[CondCAD] = RENAMED[CAD]
HEADS = {"head1": "head", "head2": "difference_head", "dhead": "domain_head"}
LAYERS: dict[type[Algorithm], dict[str, str]] = {
    RecordedSelfReg: {**NETWORK, **{f"cdpl.{k}": f"project.{k}" for k in (0, 1, 3, 4, 6, 7)}},
    CAD: NETWORK,
    CondCAD: NETWORK,
    Transfer: {**NETWORK, "adv_head": "adversary"},
    TRM: {**NETWORK, **{f"clist.{k}": f"domain_heads.{k}" for k in range(3)}},  # the fourth is never used
    RecordedURM: {
        **NETWORK,
        **{f"disc.dense{k}": f"discriminator.{2 * (k - 1)}" for k in (1, 2, 3)},
    },
    RecordedADRMX: {
        "f0": "featurizer.0",
        "f2": "featurizer.2",
        "fd0": "domain_featurizer.0",
        "fd2": "domain_featurizer.2",
        "disc.input": "discriminator.0",
        "disc.hiddens.0": "discriminator.1",
        "disc.output": "discriminator.2",
        **{f"{theirs}.{k}": f"{ours}.{k}" for theirs, ours in HEADS.items() for k in (0, 2, 4)},
    },
}
ALGORITHMS = {
    "SelfReg": RecordedSelfReg,
    "CAD": CAD,
    "CondCAD": CondCAD,
    "Transfer": Transfer,
    "TRM": TRM,
    "URM": RecordedURM,
    "ADRMX": RecordedADRMX,
}
# case -> (preset, changes): what the peer does stands under its preset, what it should do under the default
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "selfreg_defect": (PEER, {}),
    "selfreg": ("default", {}),
    "cad": (PEER, {}),
    "cad_normalized": (PEER, {}),
    "cad_not_flipped_defect": (PEER, {}),
    "condcad": (PEER, {}),
    "condcad_normalized": (PEER, {}),
    "condcad_not_flipped": (PEER, {}),
    "transfer": (PEER, {}),
    "transfer_projected": (PEER, {}),
    "transfer_gda_defect": (PEER, {"optimizer": "published_gda"}),
    "trm_defect": (PEER, {}),
    "trm": ("default", {}),
    "trm_class_balanced_defect": (PEER, {}),
    "urm": (PEER, {"discriminator_width": 6}),
    "urm_relu_smooth": (PEER, {"discriminator_width": 6}),
    "adrmx_defect": (PEER, {}),
    "adrmx": (PEER, {"remix": "same_class"}),
}
# recorded optimizer call -> the parameters (by their first name) that it steps, where one update makes several
CALLS = {"URM": {0: ("featurizer", "head"), 1: ("discriminator",)}, "TRM": {0: ("featurizer",), 1: ("head",)}}


def made(recorded: Arrays, meta: dict[str, Any], preset: str, **changes: Any) -> tuple[Algorithm, dict[str, str]]:
    """The model and the layers that it shares with the recording."""
    cls = ALGORITHMS[meta["algorithm"].split(" ")[0]]
    layers = dict(LAYERS[cls])
    if cls is RecordedURM:
        layers["disc.output"] = f"discriminator.{2 * (1 + meta['hparams']['urm_discriminator_hidden_layers'])}"
    model = built(cls, recorded, meta, preset, layers=layers, renamed=RENAMED[cls], **changes)
    return model, layers


@pytest.mark.parametrize("case", CASES)
def test_agrees_after_every_step(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    preset, changes = CASES[case]
    model, layers = made(recorded, meta, preset, **changes)
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        if case == "selfreg":
            for name in BEFORE_NORM:
                key = name.replace("project", "after.cdpl")
                assert (model.state_dict()[name] - tensor(recorded[key][t])).abs().max() < 1e-8
                model.state_dict()[name].copy_(tensor(recorded[key][t]))
        assert difference(model, recorded, t, layers) < CLOSE, f"update {t}"


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("transfer")])
def test_gradients_agree_at_every_step(reference: Path, case: str) -> None:
    """Adam hides the scale of an objective; the gradients that it received do not."""
    recorded, meta = load(reference, f"steps/{case}")
    preset, changes = CASES[case]
    model, layers = made(recorded, meta, preset, **changes)
    calls = CALLS.get(meta["algorithm"].split(" ")[0], {0: None})
    for t in range(recorded_steps(recorded)):
        turn = next(iter(model.optimizers.values()))
        if isinstance(model, ADRMX):
            own = (t + 1) % 3 < 2  # two discriminator turns, then one of the others
            turn = model.optimizers["discriminator" if own else "main"]
        model.step(batch(recorded, t))
        for call, parts in calls.items():
            if parts is None:
                stepped = {id(p) for group in turn.param_groups for p in group["params"]}
                gradients = {name: p.grad for name, p in model.named_parameters() if id(p) in stepped}
            else:
                gradients = {name: p.grad for name, p in model.named_parameters() if name.split(".")[0] in parts}
            gradients = {name: value for name, value in gradients.items() if value is not None}
            assert gradient_difference(gradients, model, recorded, t, call, layers) < CLOSE, f"update {t}"


@pytest.mark.parametrize("case", ["transfer", "transfer_projected"])
def test_transfer_gradients_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model, layers = made(recorded, meta, PEER)
    seen: list[dict[str, Tensor]] = []

    def keep(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    model.optimizer.register_step_pre_hook(keep)
    for t in range(recorded_steps(recorded)):
        seen.clear()
        model.step(batch(recorded, t))
        assert len(seen) == 2
        seen = [{k: v for k, v in found.items() if not k.startswith("adversary")} for found in seen]
        for call, found in enumerate(seen):
            assert not (call == 1 and any(name.startswith("head") for name in found))
            assert gradient_difference(found, model, recorded, t, call, layers) < CLOSE


LOGS = {  # our key -> the peer's
    "CAD": {"loss": "total_loss", "risk": "clf_loss", "penalty": "bn_loss"},
    "CondCAD": {"loss": "total_loss", "risk": "clf_loss", "penalty": "bn_loss"},
    "SelfReg": {"loss": "loss"},
    "Transfer": {"loss": "loss", "gap": "gap"},
    "TRM": {"risk": "nll", "transfer": "trm_loss"},
    "URM": {"loss": "loss"},
    "ADRMX": {"loss": "loss_clf_int", "discriminator": "loss_disc"},
}


@pytest.mark.parametrize("case", CASES)
def test_logged_losses_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    preset, changes = CASES[case]
    model, _ = made(recorded, meta, preset, **changes)
    for t in range(recorded_steps(recorded)):
        logs = model.step(batch(recorded, t))
        for ours, theirs in LOGS[meta["algorithm"].split(" ")[0]].items():
            expected = recorded[f"log.{theirs}"][t]
            if not np.isnan(expected):  # logged in some updates only
                assert float(logs[ours]) == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("case", ["trm", "trm_defect", "trm_class_balanced_defect"])
def test_trm_domain_weights_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model, _ = made(recorded, meta, CASES[case][0])
    assert torch.equal(model.domain_weights, tensor(recorded["alpha"]))
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        torch.testing.assert_close(model.domain_weights, tensor(recorded["after.alpha"][t]), atol=CLOSE, rtol=0)


# --- where the peer has a defect: we differ by default, and why ---------------------------------------------------


def test_selfreg_trains_its_projection_where_the_peer_does_not(reference: Path) -> None:
    recorded, meta = load(reference, "steps/selfreg_defect")
    assert np.array_equal(recorded["after.cdpl.3.weight"][-1], recorded["cdpl.3.weight"])
    model, layers = made(recorded, meta, "default")
    for t in range(4):
        model.step(batch(recorded, t))
    assert (model.project[3].weight - tensor(recorded["cdpl.3.weight"])).abs().max() > 1e-3
    assert difference(model, recorded, 3, layers) > 1e-3


def test_transfer_moves_its_network_where_the_peers_draws_do_not(reference: Path) -> None:
    recorded, meta = load(reference, "steps/transfer_gda_defect")
    assert np.array_equal(recorded["after.f0.weight"][-1], recorded["f0.weight"])
    assert np.array_equal(recorded["after.head.weight"][-1], recorded["head.weight"])
    assert spaces.defaults(Transfer.Hparams, PEER).optimizer == "adam"
    assert all(spaces.draw(Transfer.Hparams, PEER, seed).optimizer == "published_gda" for seed in (1, 2, 3))
    assert spaces.draw(Transfer.Hparams, "default", 1).optimizer == "adam"
    for optimizer in ("adam", "sgd"):
        model, _ = made(recorded, meta, "default", optimizer=optimizer)
        for t in range(4):
            model.step(batch(recorded, t))
        assert difference(model, recorded, 3, NETWORK) > 1e-3


@pytest.mark.parametrize("case", ["trm_defect", "trm_class_balanced_defect"])
def test_trm_differs_from_the_peer_by_default(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model, layers = made(recorded, meta, "default")
    for t in range(4):
        model.step(batch(recorded, t))
    assert difference(model, recorded, 3, layers) > 1e-6


def test_cad_leaves_the_sample_itself_out_where_the_peer_does_not(reference: Path) -> None:
    recorded, meta = load(reference, "steps/cad_not_flipped_defect")
    model, _ = made(recorded, meta, "default")
    data = batch(recorded, 0)
    logs = model.step(data)
    assert abs(float(logs["penalty"]) - recorded["log.bn_loss"][0]) > 1e-3
    again, _ = made(recorded, meta, "default")
    with torch.no_grad():
        s = again.featurizer(data.x) @ again.featurizer(data.x).T / again.hparams.temperature
    others = ~torch.eye(len(data), dtype=torch.bool)
    near = others & (data.domain[:, None] == data.domain)
    shares = [torch.logsumexp(s[i][near[i]], 0) - torch.logsumexp(s[i][others[i]], 0) for i in range(len(data))]
    expected = again.hparams.temperature / 0.07 * torch.stack(shares).mean()
    assert float(logs["penalty"]) == pytest.approx(float(expected), abs=1e-10)


@pytest.mark.parametrize("case", ["cad", "cad_normalized"])
def test_cad_as_the_paper_has_it_needs_no_labels(reference: Path, case: str) -> None:
    """Where every class occurs twice in a batch, both forms agree; else only the peer's leaves samples out."""
    recorded, meta = load(reference, f"steps/{case}")
    for t in range(recorded_steps(recorded)):
        data = batch(recorded, t)
        (ours, _), (theirs, _) = (made(recorded, meta, preset) for preset in ("default", PEER))
        same = bool((torch.bincount(data.y)[data.y] > 1).all())
        gap = abs(float(ours.step(data)["penalty"]) - float(theirs.step(data)["penalty"]))
        assert gap < 1e-12 if same else gap > 1e-6
    alone = batch(recorded, 0)
    alone.y.copy_(torch.arange(len(alone)) % 3)
    alone.y[0] = 0
    alone.y[alone.y == 1] = 2
    alone.y[4] = 1  # the only one of its class
    (ours, _), (theirs, _) = (made(recorded, meta, preset) for preset in ("default", PEER))
    assert abs(float(ours.step(alone)["penalty"]) - float(theirs.step(alone)["penalty"])) > 1e-6


def test_urm_weighs_noise_and_features_alike_by_default(reference: Path) -> None:
    recorded, meta = load(reference, "steps/urm")
    ours, _ = made(recorded, meta, "default", discriminator_width=6)
    theirs, _ = made(recorded, meta, PEER, discriminator_width=6)
    for model in (ours, theirs):
        model.step(batch(recorded, 0))
    assert difference(ours, recorded, 0, NETWORK) < CLOSE  # the features' own step is the same
    assert (ours.discriminator[0].weight.grad - theirs.discriminator[0].weight.grad).abs().max() > 1e-4


def test_adrmx_remixes_two_domains_of_a_class(reference: Path) -> None:
    recorded, meta = load(reference, "steps/adrmx")
    for remix in ("other_domain", "same_class"):
        model, _ = made(recorded, meta, "default", remix=remix, least_head_width=1)
        model.steps_done = 1  # the first step with recorded permutations
        data = batch(recorded, 1)
        first, second = model._remix_pairs(data)
        assert len(first) > 0 and torch.equal(data.y[first], data.y[second])
        assert not torch.equal(first, second)
        if remix == "other_domain":
            assert (data.domain[first] != data.domain[second]).all()
    model, _ = made(recorded, meta, PEER)
    model.steps_done = 1
    first, second = model._remix_pairs(data)
    assert not torch.equal(data.y[first], data.y[second])  # the peer's slip
