"""Further DomainBed methods against recorded steps of the public code, in float64, after every step: first half."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay import NETWORK, Arrays, batch, built, difference, gradient_difference, load, matched, recorded_steps, tensor
from torch.nn import functional as F

from rcalign import registry
from rcalign.algorithms.base import Algorithm
from rcalign.algorithms.causirl_coral import CausIRLCORAL
from rcalign.algorithms.causirl_mmd import CausIRLMMD
from rcalign.training.averaging import SWA

CLOSE = 1e-10
RENAMED: dict[str, str | None] = {
    "lr": "learning_rate",
    "sd_reg": "penalty_weight",
    "eqrm_quantile": "quantile",
    "eqrm_burnin_iters": "anneal_steps",
    "eqrm_lr": "annealed_rate",
    "rdm_lambda": "matching_weight",
    "rdm_penalty_anneal_iters": "anneal_steps",
    "rdm_lr": "annealed_rate",
    "tau": "threshold",
    "k": "sharpness",
    "penalty": "penalty_weight",
    "mmd_gamma": "penalty_weight",
    "lambda": "penalty_weight",
    "penalty_anneal_iters": "anneal_steps",
    "ema": "momentum",
    "linear_lr": "warm_up_rate",
    "linear_steps": "warm_up_steps",
    "lars": None,
    "freeze_bn": None,
}
BOTTLENECK = {
    "IB_ERM": {"ib_lambda": "penalty_weight", "ib_penalty_anneal_iters": "anneal_steps"},
    "IB_IRM": {
        "irm_lambda": "penalty_weight",
        "irm_penalty_anneal_iters": "anneal_steps",
        "ib_lambda": "bottleneck_weight",
        "ib_penalty_anneal_iters": "bottleneck_anneal_steps",
    },
}
CASES = [
    "sd",
    "eqrm",
    "eqrm_burnin0",
    "eqrm_fractional_burnin_defect",
    "rdm",
    "rdm_anneal0",
    "ib_erm",
    "ib_erm_anneal0",
    "ib_irm",
    "ib_irm_same_step",
    "andmask",
    "andmask_tau03",
    "sandmask",
    "sandmask_k10",
    "sandmask_tau1_defect",
    "iga",
    "iga_penalty1000",
    "fishr",
    "fishr_anneal0",
    "causirl_coral",
    "causirl_coral_small_split",
    "causirl_mmd",
]
# recorded log -> ours; the peer's "loss" is the whole objective in some methods and the risk in others
LOGGED = {
    "SD": {"loss": "risk", "penalty": "penalty"},
    "EQRM": {"loss": "loss"},
    "RDM": {
        "total_loss": "loss",
        "erm_loss": "risk",
        "matching_penalty": "matching",
        "variance_penalty": "variance",
    },
    "IB_ERM": {"loss": "loss", "IB_penalty": "penalty"},
    "IB_IRM": {"loss": "loss", "IRM_penalty": "penalty", "IB_penalty": "variance"},
    "ANDMask": {"loss": "loss"},
    "SANDMask": {"loss": "loss"},
    "IGA": {"loss": "risk", "penalty": "penalty"},
    "Fishr": {"loss": "loss", "nll": "risk", "penalty": "penalty"},
    "CausIRL_CORAL": {"penalty": "penalty"},
    "CausIRL_MMD": {"penalty": "penalty"},
    "ERMPlusPlus": {"loss": "loss"},
}


class RecordedCoral(CausIRLCORAL):
    def draw_cuts(self, sizes: Sequence[int]) -> list[int]:
        return self.recorded[f"draw_{self.steps_done}.slice"].tolist()


class RecordedMMD(CausIRLMMD):
    draw_cuts = RecordedCoral.draw_cuts


REPLAYED: dict[str, type[Algorithm]] = {"CausIRL_CORAL": RecordedCoral, "CausIRL_MMD": RecordedMMD}


def model_of(recorded: Arrays, meta: dict[str, Any], preset: str = "domainbed-2024", **changes: Any) -> Algorithm:
    name = meta["algorithm"].split(" ")[0]
    cls = REPLAYED.get(name, registry.get(name).algorithm)
    return built(cls, recorded, meta, preset, renamed={**RENAMED, **BOTTLENECK.get(name, {})}, **changes)


def gradients_of(model: Algorithm) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def differences(model: Algorithm, recorded: Arrays) -> np.ndarray:
    """Largest difference of a parameter after each step."""
    found = []
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        found.append(difference(model, recorded, t))
    return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_agrees_after_every_step(reference: Path, case: str) -> None:
    """Weights, the gradients that Adam received (it hides their scale), and what is logged."""
    recorded, meta = load(reference, f"steps/{case}")
    model = model_of(recorded, meta)
    assert len(matched(recorded, model, NETWORK, "after.")) == 6
    for t in range(recorded_steps(recorded)):
        logs = model.step(batch(recorded, t))
        largest = max(float(np.abs(recorded[key][t]).max()) for key in matched(recorded, model, NETWORK, "grad0."))
        gap = gradient_difference(gradients_of(model), model, recorded, t, 0, NETWORK)
        assert gap < CLOSE * max(largest, 1), (t, gap)
        assert difference(model, recorded, t) < CLOSE, t
        for theirs, ours in LOGGED[meta["algorithm"].split(" ")[0]].items():
            assert float(logs[ours]) == pytest.approx(recorded[f"log.{theirs}"][t], rel=CLOSE, abs=CLOSE), (t, ours)


@pytest.mark.parametrize("case", ["fishr", "fishr_anneal0"])
def test_fishr_averages_agree(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = model_of(recorded, meta)
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        weight, bias = (tensor(recorded[f"after.ema.head.{kind}"][t]).reshape(3, 3, -1) for kind in ("weight", "bias"))
        torch.testing.assert_close(model.variances, torch.cat([weight, bias], 2), atol=CLOSE, rtol=0)


# --- ERM++: training and averaging apart ------------------------------------------------------------------------


def averaged_difference(averaging: SWA, model: Algorithm, recorded: Arrays, t: int) -> float:
    averaged = averaging.averaged()
    names = {f"sma.{layer}": own for layer, own in NETWORK.items()}
    pairs = matched(recorded, model, names, "after.").items()
    assert len(pairs) == 6
    return max(float((averaged[own] - tensor(recorded[key][t])).abs().max()) for key, own in pairs)


@pytest.mark.parametrize(("case", "start"), [("ermplusplus", 4), ("ermplusplus_sma600", 600)])
def test_ermplusplus_and_its_average_agree_after_every_step(reference: Path, case: str, start: int) -> None:
    """The peer warms up for one step more than ``linear_steps``, and averages from one step before its start."""
    recorded, meta = load(reference, f"steps/{case}")
    assert (meta.get("settings") or {"sma_start_iter": 600})["sma_start_iter"] == start
    warm_up = meta["hparams"]["linear_steps"] + 1
    model = model_of(recorded, meta, warm_up_steps=warm_up, average_from=start - 1)
    averaging = SWA(**model.averaging_options())
    for t in range(recorded_steps(recorded)):
        logs = model.step(batch(recorded, t))
        averaging.update(model.state_dict())
        assert float(logs["loss"]) == pytest.approx(recorded["log.loss"][t], abs=CLOSE)
        assert difference(model, recorded, t) < CLOSE, t
        assert averaged_difference(averaging, model, recorded, t) < CLOSE, t


def test_ermplusplus_lowers_its_rate_as_recorded(reference: Path) -> None:
    """By the averaged network's validation loss, as the peer's rule has it, handed over after every step."""
    recorded, meta = load(reference, "steps/ermplusplus_schedule")
    model = model_of(recorded, meta, warm_up_steps=1, average_from=2, lower_rate=True)
    averaging = SWA(**model.averaging_options())
    for t in range(recorded_steps(recorded)):
        model.step(batch(recorded, t))
        averaging.update(model.state_dict())
        assert difference(model, recorded, t) < CLOSE, t
        averaged = copy.deepcopy(model)
        averaged.load_state_dict(averaging.averaged())
        losses = [
            F.cross_entropy(averaged.predict(tensor(recorded[f"val_x_{d}_{b}"])), tensor(recorded[f"val_y_{d}_{b}"]))
            for d in range(3)
            for b in range(2)
        ]
        model.observe(float(torch.stack(losses).mean()))
        assert model.optimizer.param_groups[0]["lr"] == pytest.approx(recorded["after.lr"][t], rel=1e-12), t
    unused = model_of(recorded, meta, warm_up_steps=1)  # the peer's training never calls its rule
    unused.step(batch(recorded, 0))
    for _ in range(5):
        unused.observe(1.0)
    assert unused.optimizer.param_groups[0]["lr"] == meta["hparams"]["lr"]


# --- where the peer departs from the paper: we differ by default, and why ----------------------------------------


@pytest.mark.parametrize("case", ["eqrm", "eqrm_burnin0"])
def test_eqrm_follows_the_gradient_of_the_quantile_where_the_peer_does_not(reference: Path, case: str) -> None:
    recorded, meta = load(reference, f"steps/{case}")
    model = model_of(recorded, meta, "default")
    assert model.hparams.gradient == "exact"
    found = differences(model, recorded)
    start = meta["hparams"]["eqrm_burnin_iters"]
    assert (found[:start] < CLOSE).all() and (found[start:] > 1e-6).all()
    first = model_of(recorded, meta, "default")
    for t in range(start):
        first.step(batch(recorded, t))
    logs = first.step(batch(recorded, start))  # from the same weights: the same loss, another gradient
    assert float(logs["loss"]) == pytest.approx(recorded["log.loss"][start], abs=1e-8)


def test_eqrm_starts_anew_at_the_next_step_where_the_peer_never_does(reference: Path) -> None:
    recorded, meta = load(reference, "steps/eqrm_fractional_burnin_defect")
    model = model_of(recorded, meta, "default", gradient="end_points")
    assert model.hparams.anneal_steps == 1.5 and model.hparams.fraction == "next_step"
    found = differences(model, recorded)
    assert (found[:2] < CLOSE).all() and (found[2:] > 1e-4).all()
    assert model.optimizer.param_groups[0]["lr"] == meta["hparams"]["eqrm_lr"]


def test_sandmask_learns_by_default_where_the_peer_stands_still(reference: Path) -> None:
    recorded, meta = load(reference, "steps/sandmask_tau1_defect")
    assert np.array_equal(recorded["after.head.weight"][-1], recorded["head.weight"])
    changed = {**meta, "hparams": {key: value for key, value in meta["hparams"].items() if key != "tau"}}
    assert model_of(recorded, changed).hparams.threshold == 1
    model = model_of(recorded, changed, "default")
    assert model.hparams.threshold == 0.5
    assert (differences(model, recorded) > 1e-3).all()


def test_iga_takes_the_mean_over_domains_where_the_peer_takes_the_sum(reference: Path) -> None:
    recorded, meta = load(reference, "steps/iga")
    weight = meta["hparams"]["penalty"]
    assert (differences(model_of(recorded, meta, "default"), recorded) > 1e-6).any()
    same = model_of(recorded, meta, "default", penalty_weight=3 * weight)  # three domains
    logs = same.step(batch(recorded, 0))
    assert float(logs["penalty"]) == pytest.approx(recorded["log.penalty"][0] / 3, rel=CLOSE)
    assert gradient_difference(gradients_of(same), same, recorded, 0, 0, NETWORK) < CLOSE


def test_causirl_mmd_leaves_samples_out_of_their_own_comparison_by_default(reference: Path) -> None:
    recorded, meta = load(reference, "steps/causirl_mmd")
    model = model_of(recorded, meta, "default")
    assert model.hparams.estimator == "unbiased"
    assert (differences(model, recorded)[1:] > 1e-4).all()


def test_ermplusplus_loss_is_the_mean_over_samples(reference: Path) -> None:
    recorded, meta = load(reference, "steps/ermplusplus_sma600")
    model, data = model_of(recorded, meta), batch(recorded, 0)
    with torch.no_grad():
        expected = F.cross_entropy(model(data.x)[1], data.y)
    assert float(model.step(data)["loss"]) == pytest.approx(expected.item())
