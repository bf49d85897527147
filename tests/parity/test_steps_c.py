"""The long-tailed methods against recorded steps and losses of the public code for several domains, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay import Arrays, load, tensor
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network
from rcalign.functional.boda_loss import boda_loss, euclidean_distances
from rcalign.functional.classification import domain_cross_entropy
from rcalign.functional.imbalance import (
    effective_number_weights,
    focal_loss,
    inverse_weights,
    log_prior,
    margin_logits,
    margins,
    weighted_cross_entropy,
)
from rcalign.functional.moments import moment_gap
from rcalign.types import Batch, DataSpec

OURS = {"f0": "featurizer.0", "f2": "featurizer.2", "head": "head"}
RENAMED = {"lr": "learning_rate", "max_m": "max_margin", "boda_start_step": "start_step"}
RENAMED["feat_update_freq"] = "refresh_every"
CLOSE = {"atol": 1e-6, "rtol": 0.0}
COUNT_LOSSES = ["focal", "cbloss", "cbloss_beta09", "reweight", "sqrt_reweight", "bsoftmax", "ldam", "crt"]


def ours(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{OURS[layer]}.{kind}"


def build(recorded: Arrays, meta: dict[str, Any], **changes: Any) -> Algorithm:
    """The algorithm on the recorded network; a second stage starts from the recorded features."""
    counts = tuple(tuple(int(n) for n in row) for row in recorded["counts"])
    spec = DataSpec(tuple("abc"), tuple(f"domain{k}" for k in range(len(counts))), counts, (6,))
    network = Network(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), 4, 3).double()
    start = {ours(name): tensor(recorded[name]) for name in recorded if name.split(".")[0] in OURS}
    network.load_state_dict(start)
    cls = registry.get(meta["algorithm"]).algorithm
    hparams = {RENAMED.get(name, name): value for name, value in meta["hparams"].items()}
    model = cls(spec, network, spaces.build_hparams(cls.Hparams, {**hparams, **changes}))
    if model.traits.stage_one is not None:
        model.start_from(start)
    return model


def step(model: Algorithm, recorded: Arrays, t: int) -> dict[str, Any]:
    """Update number t, with a refresh before it where one is due."""
    domains = range(model.spec.num_domains)
    if model.refresh_due():
        x = torch.cat([tensor(recorded[f"train_x_{d}"]) for d in domains])
        y = torch.cat([tensor(recorded[f"train_y_{d}"]) for d in domains])
        domain = torch.cat([torch.full((len(recorded[f"train_y_{d}"]),), d) for d in domains])
        model.refresh(model.embed(x), y, domain)
    return model.step(
        Batch.from_domains([(tensor(recorded[f"x_{t}_{d}"]), tensor(recorded[f"y_{t}_{d}"])) for d in domains])
    )


def compare(model: Algorithm, recorded: Arrays, t: int) -> float:
    """The largest difference of a parameter after update t."""
    state = model.state_dict()
    names = [name for name in recorded if name.startswith("after.") and name.split(".")[1] in OURS]
    assert len(names) == 6
    gaps = [(state[ours(name.removeprefix("after."))] - tensor(recorded[name][t])).abs().max() for name in names]
    return float(torch.stack(gaps).max())


def check_gradients(model: Algorithm, recorded: Arrays, t: int) -> None:
    """What the optimizer received: Adam hides the scale of an objective, gradients do not."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    expected = {ours(name.removeprefix("grad0.")): recorded[name][t] for name in recorded if name.startswith("grad0.")}
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(gradients[name], tensor(value), **CLOSE)


@pytest.mark.parametrize("case", COUNT_LOSSES)
def test_every_step_of_the_count_based_methods(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = build(recorded, meta)
    for t in range(len(recorded["log.loss"])):
        logs = step(model, recorded, t)
        assert float(logs["loss"]) == pytest.approx(recorded["log.loss"][t], abs=1e-6)
        check_gradients(model, recorded, t)
        assert compare(model, recorded, t) < 1e-6
    for ours_name, theirs in (("class_weights", "class_weights"), ("class_margins", "margins")):
        if theirs in recorded:
            torch.testing.assert_close(getattr(model, ours_name), tensor(recorded[theirs]), **CLOSE)


@pytest.mark.parametrize("name", ["BoDA_r", "BoDA"])
@pytest.mark.parametrize("case", ["boda", "boda_stale", "boda_no_macro"])
def test_every_step_of_boda(reference: Path, case: str, name: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = build(recorded, {**meta, "algorithm": name})
    where = tensor(recorded["centroid_domain"]), tensor(recorded["centroid_class"])
    for t in range(len(recorded["log.loss"])):
        logs = step(model, recorded, t)
        assert float(logs["cross_entropy"]) == pytest.approx(recorded["log.loss"][t], abs=1e-6)
        if meta["hparams"]["macro_weight"] > 0:
            assert float(logs["macro"]) == pytest.approx(recorded["log.penalty"][t], abs=1e-6)
        assert float(logs["alignment"]) == pytest.approx(np.nan_to_num(recorded["log.boda_loss"][t]), abs=1e-6)
        check_gradients(model, recorded, t)
        assert compare(model, recorded, t) < 1e-6
        torch.testing.assert_close(model.centroids[where], tensor(recorded["after.centroids"][t]), **CLOSE)


def test_boda_waits_for_its_first_centroids(reference: Path) -> None:
    # the peer's start step 0 precedes its first centroids at step 2: until then it aligns with zeros
    recorded, meta = load(reference, "steps/boda_early_start_defect")
    assert meta["hparams"]["boda_start_step"] < meta["hparams"]["feat_update_freq"] == 2
    model, peer_like = build(recorded, meta), build(recorded, meta)
    theirs = recorded["log.boda_loss"]
    logs = step(model, recorded, 0)
    assert float(logs["alignment"]) == 0 and theirs[0] > 0
    with pytest.raises(AssertionError):  # Adam's first step hides it from the parameters
        check_gradients(model, recorded, 0)
    assert float(step(model, recorded, 1)["alignment"]) == 0
    assert float(step(model, recorded, 2)["alignment"]) > 0  # the first refresh
    step(model, recorded, 3)
    assert compare(model, recorded, 3) > 1e-5
    # the whole of the difference is the zero centroids: given them, the peer's numbers come out
    peer_like.present.fill_(True)
    peer_like.refreshed_at.fill_(0)
    peer_like.aligning = lambda: True
    for t in range(len(theirs)):
        if t == 2:
            peer_like.present.fill_(False)  # its first refresh copies
        assert float(step(peer_like, recorded, t)["alignment"]) == pytest.approx(theirs[t], abs=1e-6)
        assert compare(peer_like, recorded, t) < 1e-6


# --- single losses ---------------------------------------------------------------------------------------------------


def inputs(recorded: Arrays) -> tuple[list[Tensor], Tensor, Tensor, tuple[int, ...]]:
    """Features of each domain (leaves), labels, domains, sizes."""
    parts = [tensor(recorded[f"features_{d}"]).requires_grad_() for d in range(3)]
    sizes = tuple(len(part) for part in parts)
    y = torch.cat([tensor(recorded[f"y_{d}"]) for d in range(3)])
    return parts, y, torch.repeat_interleave(torch.arange(3), torch.tensor(sizes)), sizes


def check(recorded: Arrays, loss: Tensor, parts: list[Tensor], **others: Tensor) -> None:
    assert loss.item() == pytest.approx(float(recorded["loss"]), abs=1e-9)
    loss.backward()
    for d, part in enumerate(parts):
        torch.testing.assert_close(part.grad, tensor(recorded[f"grad_features_{d}"]), atol=1e-9, rtol=0)
    for name, leaf in others.items():
        torch.testing.assert_close(leaf.grad, tensor(recorded[f"grad_head.{name}"]), atol=1e-9, rtol=0)


LOSSES = {
    "focal": lambda z, y, domain, sizes, counts, h: focal_loss(z, y, h["gamma"]).mean(),
    "ldam": lambda z, y, domain, sizes, counts, h: domain_cross_entropy(
        margin_logits(z, y, margins(counts, h["max_m"])[domain, y], h["scale"]), y, sizes
    ).mean(),
    "cbloss": lambda z, y, domain, sizes, counts, h: weighted_cross_entropy(
        z, y, effective_number_weights(counts, h["beta"])[domain, y], sizes
    ).mean(),
    "reweight": lambda z, y, domain, sizes, counts, h: weighted_cross_entropy(
        z, y, inverse_weights(counts)[domain, y], sizes
    ).mean(),
    "sqrt_reweight": lambda z, y, domain, sizes, counts, h: weighted_cross_entropy(
        z, y, inverse_weights(counts, 0.5)[domain, y], sizes
    ).mean(),
    "bsoftmax": lambda z, y, domain, sizes, counts, h: domain_cross_entropy(
        z + log_prior(counts)[domain], y, sizes
    ).mean(),
}


@pytest.mark.parametrize(
    "case", ["focal", "focal_gamma0.5", "focal_gamma5.0", "ldam", "cbloss", "reweight", "sqrt_reweight", "bsoftmax"]
)
def test_losses_of_logits(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"losses/{case}")
    parts, y, domain, sizes = inputs(recorded)
    weight, bias = (tensor(recorded[f"head.{kind}"]).requires_grad_() for kind in ("weight", "bias"))
    logits = F.linear(torch.cat(parts), weight, bias)
    counts = tensor(recorded["counts"])
    loss = LOSSES[case.partition("_gamma")[0]](logits, y, domain, sizes, counts, meta["hparams"])
    check(recorded, loss, parts, weight=weight, bias=bias)


@pytest.mark.parametrize("case", ["boda", "boda_nu0", "boda_nu1"])
def test_loss_of_boda(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"losses/{case}")
    parts, y, domain, _ = inputs(recorded)
    counts = tensor(recorded["counts"])
    centroids = torch.zeros(*counts.shape, 4, dtype=torch.float64)
    where = tensor(recorded["centroid_domain"]), tensor(recorded["centroid_class"])
    centroids[where] = tensor(recorded["centroids"])
    present = torch.zeros(counts.shape, dtype=torch.bool)
    present[where] = True
    distances = euclidean_distances(torch.cat(parts), centroids)
    check(recorded, boda_loss(distances, y, domain, counts, present, **meta["hparams"]), parts)


def test_macro_alignment(reference: Path) -> None:
    recorded, _ = load(reference, "losses/macro_alignment")
    parts, *_ = inputs(recorded)
    check(recorded, moment_gap(parts), parts)


def test_class_weights_table(reference: Path) -> None:
    recorded, _ = load(reference, "losses/class_weights_table")
    counts = tensor(recorded["counts"])
    for beta, weights in zip(recorded["beta"], recorded["cb_weights"], strict=True):
        torch.testing.assert_close(effective_number_weights(counts, float(beta)), tensor(weights), **CLOSE)
    torch.testing.assert_close(inverse_weights(counts), tensor(recorded["inverse_weights"]), **CLOSE)
    torch.testing.assert_close(inverse_weights(counts, 0.5), tensor(recorded["sqrt_weights"]), **CLOSE)
    torch.testing.assert_close(margins(counts, 0.5), tensor(recorded["ldam_margins"]), **CLOSE)
    torch.testing.assert_close(log_prior(counts).exp(), tensor(recorded["bsoftmax_counts"]), **CLOSE)
