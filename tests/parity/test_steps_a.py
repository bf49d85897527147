"""The DomainBed methods against recorded steps and losses of the public code, in float64, after every step.

Recorded draws enter where an algorithm draws: each such place is one small method, replaced by a subclass here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay import Arrays, batch, load, recorded_steps, tensor
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.algorithms.arm import ARM
from rcalign.algorithms.base import Algorithm, Network
from rcalign.algorithms.dann import DANN
from rcalign.algorithms.mixup import Mixup
from rcalign.algorithms.mldg import MLDG
from rcalign.algorithms.mtl import MTL
from rcalign.algorithms.rsc import RSC
from rcalign.algorithms.sagnet import SagNet
from rcalign.functional.classification import domain_cross_entropy
from rcalign.functional.invariance import invariance_penalty, risk_variance
from rcalign.functional.mixing import cyclic_pairs
from rcalign.functional.moments import kernel_gap, moment_gap
from rcalign.types import Batch, DataSpec

CLOSE = {"atol": 1e-6, "rtol": 0.0}

# recorded layer -> ours; what one of the algorithms lacks (DANN has no class embedding) is not compared
LAYERS = {
    "head": "head",
    "style_head": "style_head",
    "class_emb": "class_embeddings",
    "disc.input": "discriminator.0",
    "disc.hiddens.0": "discriminator.1",
    "disc.hiddens.1": "discriminator.2",
    "ctx.0": "context.0",
    "ctx.1": "context.1",
    "ctx.3": "context.3",
}
RENAMED = {
    "lr": "learning_rate",
    "irm_lambda": "penalty_weight",
    "vrex_lambda": "penalty_weight",
    "irm_penalty_anneal_iters": "anneal_steps",
    "vrex_penalty_anneal_iters": "anneal_steps",
    "groupdro_eta": "weight_rate",
    "mldg_beta": "meta_weight",
    "n_meta_test": "meta_test_domains",
    "mmd_gamma": "penalty_weight",
    "mlp_width": "discriminator_width",
    "mlp_depth": "discriminator_depth",
    "mlp_dropout": "discriminator_dropout",
    "lr_g": "learning_rate",
    "lr_d": "discriminator_rate",
    "weight_decay_g": "weight_decay",
    "weight_decay_d": "discriminator_decay",
    "lambda": "adversary_weight",
    "d_steps_per_g_step": "discriminator_steps",
    "grad_penalty": "gradient_penalty",
    "mtl_ema": "batch_share",
    "sag_w_adv": "adversary_weight",
    "rsc_f_drop_factor": "feature_drop",
    "rsc_b_drop_factor": "sample_drop",
    "meta_lr": "meta_rate",
}
# case -> (preset, changes): BoDA's numbers stand under its preset, today's DomainBed's under "domainbed-2024"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        case: ("domainbed-2024", {})
        for case in (
            "erm",
            "erm_weight_decay",
            "irm",
            "irm_anneal0",
            "vrex",
            "groupdro",
            "groupdro_eta001",
            "mixup",
            "mldg_meta1",
            "mldg_meta2",
            "coral",
            "mmd",
            "dann",
            "dann_gp",
            "dann_d2_dropout",
            "cdann",
            "cdann_gp",
            "sagnet",
            "rsc",
            "fish",
        )
    },
    "mldg_ring": ("mdlt", {}),
    "dann_gp_boda_defect": ("mdlt", {}),
    "mtl_defect": ("domainbed-2024", {}),
    "mtl_no_noise": ("domainbed-2024", {"published_noise": False}),
    "arm_defect": ("domainbed-2024", {}),
    "arm": ("domainbed-2024", {"train_context": True}),
}


class RecordedMixup(Mixup):
    def draw_pairs(self) -> list[tuple[int, int, float]]:
        t = self.steps_done
        order, weights = self.recorded[f"draw_{t}.perm"].tolist(), self.recorded[f"draw_{t}.lam"].tolist()
        return [(i, j, lam) for (i, j), lam in zip(cyclic_pairs(order), weights, strict=True)]


class RecordedMLDG(MLDG):
    def draw_order(self) -> list[int]:
        return self.recorded[f"draw_{self.steps_done}.perm"].tolist()


class RecordedSagNet(SagNet):
    def draw_style(self, rows: int) -> tuple[Tensor, Tensor]:
        t, k = self.steps_done, self.calls[self.steps_done]
        self.calls[t] += 1
        weight, swap = self.recorded[f"draw_{t}.alpha{k}"], self.recorded[f"draw_{t}.swap{k}"]
        return tensor(weight).reshape(rows, 1), tensor(swap).long()


class RecordedMTL(MTL):
    def draw_noise(self, features: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.cat([tensor(self.recorded[f"draw_{self.steps_done}.noise{d}"]) for d in range(3)])


class RecordedDropout(DANN):
    def dropped(self, values: Tensor, probability: float) -> Tensor:
        t, k = self.steps_done, self.calls[self.steps_done]
        self.calls[t] += 1
        return values * tensor(self.recorded[f"draw_{t}.keepmask{k}"]) / (1 - probability)


class SmallContext(ARM):
    def make_context(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))


REPLAYED = {"Mixup": RecordedMixup, "MLDG": RecordedMLDG, "SagNet": RecordedSagNet, "MTL": RecordedMTL}


def network_of(recorded: Arrays) -> Network:
    inputs, images = recorded["f0.weight"].shape[1], recorded["x_0_0"].ndim == 4
    if images:  # the recorded layer reads the flattened image and then the context
        inputs //= 2
    net = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 4))
    return Network(nn.Sequential(nn.Flatten(), *net) if images else net, 4, 3).double()


def names(recorded: Arrays, model: Algorithm, prefix: str = "") -> dict[str, tuple[str, slice]]:
    """Recorded array -> (our tensor, the columns of it that the array holds)."""
    found = {}
    last = len(getattr(model, "discriminator", ())) - 1
    shift = int(isinstance(model.featurizer[0], nn.Flatten))
    ours = {
        **LAYERS,
        "disc.output": f"discriminator.{last}",
        "f0": f"featurizer.{shift}",
        "f2": f"featurizer.{shift + 2}",
    }
    for key in recorded:
        layer, _, kind = key.removeprefix(prefix).rpartition(".")
        if key.startswith(prefix) and layer in ours and f"{ours[layer]}.{kind}" in model.state_dict():
            found[key] = (f"{ours[layer]}.{kind}", slice(None))
            if layer == "f0" and kind == "weight" and shift:
                found[key] = (f"{ours[layer]}.{kind}", slice(0, 6))
                found[f"{key}#context"] = ("context_input.weight", slice(6, 12))
    return found


def build(recorded: Arrays, meta: dict[str, Any], preset: str, **changes: Any) -> Algorithm:
    """The algorithm on the recorded network, with the recorded hyperparameters and draws."""
    name = meta["algorithm"].split(" ")[0]
    entry = registry.get(name)
    cls = REPLAYED.get(name, entry.algorithm)
    if "draw_0.keepmask0" in recorded:
        cls = RecordedDropout
    if name == "ARM":
        cls = SmallContext
    values = {RENAMED.get(key, key): value for key, value in meta["hparams"].items()}
    domains = sum(key.startswith("x_0_") for key in recorded)
    spec = DataSpec(
        tuple("abc"), tuple(f"domain{k}" for k in range(domains)), ((9, 9, 9),) * domains, recorded["x_0_0"].shape[1:]
    )
    model = cls(spec, network_of(recorded), spaces.defaults(entry.algorithm.Hparams, preset, **{**values, **changes}))
    model.recorded, model.calls = recorded, Counter()
    state = model.state_dict()
    with torch.no_grad():
        for key, (own, columns) in names(recorded, model).items():
            value = tensor(recorded[key.removesuffix("#context")])
            state[own].copy_(value if columns == slice(None) else value[:, columns])
    return model


def differences(model: Algorithm, recorded: Arrays, steps: int) -> np.ndarray:
    """Largest difference of a parameter after each step."""
    found = []
    for t in range(steps):
        model.step(batch(recorded, t))
        state, largest = model.state_dict(), 0.0
        for key, (own, columns) in names(recorded, model, "after.").items():
            value = tensor(recorded[key.removesuffix("#context")][t])
            value = value if columns == slice(None) else value[:, columns]
            largest = max(largest, float((state[own] - value).abs().max()))
        found.append(largest)
    return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_agrees_after_every_step(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    preset, changes = CASES[case]
    model = build(recorded, meta, preset, **changes)
    compared = {key.removeprefix("after.") for key in names(recorded, model, "after.")}
    assert {"f0.weight", "f0.bias", "f2.weight", "f2.bias", "head.weight", "head.bias"} <= compared
    assert (differences(model, recorded, recorded_steps(recorded)) < 1e-6).all()


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("sagnet", "fish")])
def test_gradients_agree_at_every_step(reference: Path, case: str) -> None:
    """Adam hides the scale of an objective; the gradients that it received do not."""
    recorded, meta = load(reference, f"steps/{case}")
    preset, changes = CASES[case]
    model = build(recorded, meta, preset, **changes)
    compared = 0
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        parameters = dict(model.named_parameters())
        for key, (own, columns) in names(recorded, model, "grad0.").items():
            value = tensor(recorded[key.removesuffix("#context")][t])
            value = value if columns == slice(None) else value[:, columns]
            if own in parameters and not torch.isnan(value).any():  # NaN: not the turn of this optimizer
                torch.testing.assert_close(parameters[own].grad, value, **CLOSE)
                compared += 1
    assert compared >= 4


@pytest.mark.parametrize("case", ["irm", "vrex", "groupdro", "mldg_meta1", "mldg_ring", "coral", "mmd", "rsc", "mixup"])
def test_logged_losses_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = build(recorded, meta, CASES[case][0])
    for t in range(recorded_steps(recorded)):
        logs = model.step(batch(recorded, t))
        penalty = logs.get("penalty", torch.tensor(0.0))
        if case in ("coral", "mmd"):  # the peer logs the cross-entropy alone
            expected = recorded["log.loss"][t], recorded["log.penalty"][t]
            assert np.allclose((float(logs["loss"] - penalty), float(penalty)), expected, atol=1e-6)
        else:
            assert abs(float(logs["loss"]) - recorded["log.loss"][t]) < 1e-6
            if "log.penalty" in recorded:
                assert abs(float(penalty) - recorded["log.penalty"][t]) < 1e-6


@pytest.mark.parametrize("case", ["groupdro", "groupdro_eta001"])
def test_group_dro_domain_weights_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = build(recorded, meta, "domainbed-2024")
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        torch.testing.assert_close(model.log_weights.exp(), tensor(recorded["after.q"][t]), **CLOSE)


def test_group_dro_of_the_published_tables_has_a_third_of_the_gradient(reference: Path) -> None:
    recorded, meta = load(reference, "steps/groupdro")
    model = build(recorded, meta, "domainbed")
    model.step(batch(recorded, 0))
    torch.testing.assert_close(3 * model.head.weight.grad, tensor(recorded["grad0.head.weight"][0]), **CLOSE)


def test_sagnet_gradients_agree(reference: Path) -> None:
    """Of the four optimizer steps the last one's gradients remain: features by the adversary, head, style head."""
    recorded, meta = load(reference, "steps/sagnet")
    model = build(recorded, meta, "domainbed-2024")
    for t in range(4):
        logs = model.step(batch(recorded, t))
        torch.testing.assert_close(model.head.weight.grad, tensor(recorded["grad1.head.weight"][t]), **CLOSE)
        torch.testing.assert_close(model.featurizer[0].weight.grad, tensor(recorded["grad3.f0.weight"][t]), **CLOSE)
        assert abs(float(logs["loss"]) - recorded["log.loss_c"][t]) < 1e-6
        assert abs(float(logs["style"]) - recorded["log.loss_s"][t]) < 1e-6
        assert abs(float(logs["adversary"]) - recorded["log.loss_adv"][t]) < 1e-6


def test_fish_gradients_agree(reference: Path) -> None:
    recorded, meta = load(reference, "steps/fish")
    model = build(recorded, meta, "domainbed-2024")
    for t in range(4):
        model.step(batch(recorded, t))  # the last domain's gradient remains
        torch.testing.assert_close(model.head.weight.grad, tensor(recorded["grad2.inner.head.weight"][t]), **CLOSE)


def test_mldg_pairs_are_the_recorded_ones(reference: Path) -> None:
    for case in ("mldg_meta1", "mldg_meta2"):
        recorded, meta = load(reference, f"steps/{case}")
        pairs = build(recorded, meta, "domainbed-2024")._episodes()
        assert [(i, j) for (i,), (j,) in pairs] == [tuple(row) for row in recorded["draw_0.pairs"].tolist()]


def test_rsc_masks_are_the_recorded_ones(reference: Path) -> None:
    recorded, meta = load(reference, "steps/rsc")
    model = build(recorded, meta, "domainbed-2024")
    assert isinstance(model, RSC)
    for t in range(4):
        data = batch(recorded, t)
        kept = model.mask(model.featurizer(data.x).detach(), data.y)
        assert torch.equal(kept, tensor(recorded[f"mask_{t}"]).bool())
        model.step(data)


def test_mtl_embeddings_agree(reference: Path) -> None:
    recorded, meta = load(reference, "steps/mtl_no_noise")
    model = build(recorded, meta, "domainbed-2024", published_noise=False)
    for t in range(4):
        model.step(batch(recorded, t))
        torch.testing.assert_close(model.embeddings, tensor(recorded["after.embeddings"][t]), **CLOSE)


# --- where a peer has a defect: we differ by default, and why ---------------------------------------------------


def test_mldg_with_two_domains_trains_where_the_peer_stands_still(reference: Path) -> None:
    recorded, meta = load(reference, "steps/mldg_two_domains_defect")
    still = recorded["after.head.weight"]
    assert np.array_equal(still[-1], recorded["head.weight"]) and (recorded["log.loss"] == 0).all()
    with pytest.warns(UserWarning, match="meta_test_domains is 2, but there are 2 source domains: 1 is used"):
        model = build(recorded, meta, "domainbed-2024")
    assert (differences(model, recorded, 1) > 1e-3).all()
    (pair,) = model._episodes()
    assert sorted(pair[0] + pair[1]) == [0, 1]  # one domain to train on, one to test on


def test_mtl_shows_the_head_an_embedding_where_the_peer_shows_noise(reference: Path) -> None:
    recorded, meta = load(reference, "steps/mtl_defect")
    model = build(recorded, meta, "default")
    assert not model.hparams.published_noise
    assert (differences(model, recorded, 4) > 1e-3).all()
    x = batch(recorded, 0).x
    features, logits = model.eval()(x)
    shown = torch.cat([features, features.mean(0).expand_as(features)], 1)
    torch.testing.assert_close(logits, model.head(shown))


def test_mtl_starts_at_the_first_mean_where_the_peer_starts_at_zero(reference: Path) -> None:
    recorded, meta = load(reference, "steps/mtl_no_noise")
    model = build(recorded, meta, "default")
    data = batch(recorded, 0)
    means = torch.stack([part.mean(0) for part in data.split(model.featurizer(data.x))]).detach()
    model.step(data)
    torch.testing.assert_close(model.embeddings, means)
    torch.testing.assert_close(0.9 * means, tensor(recorded["after.embeddings"][0]))


def test_arm_trains_its_context_where_the_peer_does_not(reference: Path) -> None:
    recorded, meta = load(reference, "steps/arm_defect")
    assert np.array_equal(recorded["after.ctx.3.weight"][-1], recorded["ctx.3.weight"])
    model = build(recorded, meta, "default", context_stride=1)
    assert model.hparams.train_context
    before = model.context[3].weight.detach().clone()
    assert differences(model, recorded, 4)[-1] > 1e-3
    assert (model.context[3].weight - before).abs().max() > 1e-3


def test_dann_penalises_gradients_where_the_peer_penalises_a_constant(reference: Path) -> None:
    recorded, meta = load(reference, "steps/dann_gp_boda_defect")
    model = build(recorded, meta, "default")
    assert (differences(model, recorded, 4)[1:] > 1e-4).all()  # the first step of Adam hardly depends on the penalty
    without = build(recorded, meta, "default", gradient_penalty=0.0)  # equal batches: the peer's penalty is none
    assert (differences(without, recorded, 4) < 1e-6).all()


def test_cdann_class_weights_do_not_depend_on_how_classes_are_numbered(reference: Path) -> None:
    """Not active in the recorded batches, which all hold the largest label; made active by renumbering two classes."""
    recorded, meta = load(reference, "steps/cdann")
    data = batch(recorded, 0)
    model = build(recorded, meta, "default")
    low = Batch(data.x, (data.y == 2).long(), data.domain, data.index, data.sizes)  # classes 0 and 1
    high = Batch(data.x, 2 * (data.y == 2).long(), data.domain, data.index, data.sizes)  # the same as 0 and 2
    with torch.no_grad():
        model.class_embeddings.weight.zero_()
    features = model.featurizer(data.x).detach()
    ours = [model.discriminator_loss(features, part.y, part.domain).item() for part in (low, high)]
    published = build(recorded, meta, "domainbed")
    with torch.no_grad():
        published.class_embeddings.weight.zero_()
    theirs = [published.discriminator_loss(features, part.y, part.domain).item() for part in (low, high)]
    assert ours[0] == pytest.approx(ours[1]) and ours[0] == pytest.approx(theirs[0])
    assert theirs[1] == pytest.approx(theirs[0] * 2 / 3)


# --- losses alone ------------------------------------------------------------------------------------------------


def loss_case(reference: Path, name: str) -> tuple[Arrays, list[Tensor], Tensor, tuple[int, ...]]:
    recorded, _ = load(reference, f"losses/{name}")
    parts = [tensor(recorded[f"features_{d}"]).requires_grad_() for d in range(3)]
    y = torch.cat([tensor(recorded[f"y_{d}"]) for d in range(3)]) if "y_0" in recorded else torch.zeros(0)
    return recorded, parts, y, tuple(len(part) for part in parts)


def assert_loss(recorded: Arrays, parts: list[Tensor], loss: Tensor) -> None:
    loss.backward()
    assert abs(loss.item() - float(recorded["loss"])) < 1e-6
    for d, part in enumerate(parts):
        torch.testing.assert_close(part.grad, tensor(recorded[f"grad_features_{d}"]), **CLOSE)


@pytest.mark.parametrize("name", ["coral", "macro_alignment"])
def test_moment_gap_agrees(reference: Path, name: str) -> None:
    recorded, parts, _, _ = loss_case(reference, name)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(moment_gap([parts[i], parts[j]]).item() - recorded["pair_value"][i, j]) < 1e-6
    assert_loss(recorded, parts, moment_gap(parts))


def test_kernel_gap_agrees(reference: Path) -> None:
    recorded, parts, _, sizes = loss_case(reference, "mmd")
    for i, j in ((0, 1), (0, 2), (1, 2)):
        pair = kernel_gap(torch.cat([parts[i], parts[j]]), (sizes[i], sizes[j]))
        assert abs(pair.item() - recorded["pair_value"][i, j]) < 1e-6
    assert_loss(recorded, parts, kernel_gap(torch.cat(parts), sizes))


def test_invariance_penalty_agrees(reference: Path) -> None:
    recorded, parts, y, sizes = loss_case(reference, "irm_penalty")
    logits = F.linear(torch.cat(parts), tensor(recorded["head.weight"]), tensor(recorded["head.bias"]))
    penalties = invariance_penalty(logits, y, sizes)
    torch.testing.assert_close(penalties, tensor(recorded["penalty_per_domain"]), **CLOSE)
    assert_loss(recorded, parts, penalties.mean())


def test_risk_variance_agrees(reference: Path) -> None:
    recorded, parts, y, sizes = loss_case(reference, "vrex_penalty")
    logits = F.linear(torch.cat(parts), tensor(recorded["head.weight"]), tensor(recorded["head.bias"]))
    risks = domain_cross_entropy(logits, y, sizes)
    assert abs(risks.mean().item() - float(recorded["mean_loss"])) < 1e-6
    assert_loss(recorded, parts, risk_variance(risks))
