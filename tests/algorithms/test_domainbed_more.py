"""Properties of further DomainBed methods, beside the contract and the recorded steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rcalign
from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm, Network
from rcalign.checkpoints import load_state, save_state
from rcalign.errors import InputError
from rcalign.training.averaging import SWA
from toy import batch, make, spec, weights

# with these the penalty is at work from the first step on
AT_ONCE: dict[str, dict[str, Any]] = {
    "EQRM": {"anneal_steps": 0},
    "RDM": {"anneal_steps": 0},
    "IB_ERM": {"anneal_steps": 0},
    "IB_IRM": {"anneal_steps": 0, "bottleneck_anneal_steps": 0},
    "Fishr": {"anneal_steps": 0},
}


def gradients_left(model: Algorithm) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4, 9), (5,), (1,)])
def test_penalties_bear_odd_batches(name: str, sizes: tuple[int, ...]) -> None:
    model = make(name, domains=len(sizes), **AT_ONCE[name])
    for t in range(3):
        logs = model.step(batch(t, sizes, domains=len(sizes)))
        assert all(np.isfinite(float(value)) for value in logs.values())
    assert all(torch.isfinite(value).all() for value in weights(model).values())


@pytest.mark.parametrize("name", ["EQRM", "RDM"])
def test_a_new_rate_and_a_fresh_adam_survive_save_and_load(name: str, tmp_path: Path) -> None:
    straight = make(name, anneal_steps=3, annealed_rate=7e-4)
    for t in range(5):
        assert straight.optimizer.param_groups[0]["lr"] == (1e-3 if t < 4 else 7e-4)
        straight.step(batch(t))
    assert {int(values["step"]) for values in straight.optimizer.state.values()} == {2}
    save_state(tmp_path / "state", straight.training_state())
    resumed = make(name, anneal_steps=3, annealed_rate=7e-4)
    resumed.load_training_state(load_state(tmp_path / "state"))
    for model in (straight, resumed):
        model.step(batch(5))
    assert resumed.optimizer.param_groups[0]["lr"] == 7e-4
    assert all(torch.equal(value, weights(resumed)[key]) for key, value in weights(straight).items())


def test_eqrm_refuses_the_quantile_zero() -> None:
    with pytest.raises(InputError, match=r"'quantile' is 0, but must be between 0 and 1, or negative"):
        make("EQRM", quantile=0.0)
    assert np.isfinite(float(make("EQRM", quantile=-100.0, anneal_steps=0).step(batch(0))["loss"]))


def test_eqrm_next_to_one_weighs_the_worst_domain_most() -> None:
    model = make("EQRM", quantile=0.95, anneal_steps=0)
    data = batch(0)
    risks = torch.stack([F.cross_entropy(model(part.x)[1], part.y) for part in data.per_domain()])
    assert model.step(data)["loss"] > risks.max()


@pytest.mark.parametrize("name", ["IB_ERM", "Fishr", "RDM"])
def test_before_it_is_annealed_a_penalty_is_logged_and_not_followed(name: str) -> None:
    model, plain = make(name, anneal_steps=10), make("ERM")
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in plain.state_dict()})
    logs = model.step(batch(0))
    plain.step(batch(0))
    assert logs["matching" if name == "RDM" else "penalty"] > 0
    for ours, theirs in zip(gradients_left(model), gradients_left(plain), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_ib_irm_is_irm_without_the_bottleneck_and_ib_erm_without_invariance() -> None:
    for other, changes in (
        ("IRM", {"bottleneck_weight": 0.0}),
        ("IB_ERM", {"penalty_weight": 0.0, "anneal_steps": 0, "bottleneck_anneal_steps": 500}),
    ):
        model, plain = make("IB_IRM", **changes), make(other)
        plain.load_state_dict(model.state_dict())
        for t in range(3):
            model.step(batch(t)), plain.step(batch(t))
        assert all(torch.allclose(value, weights(plain)[key]) for key, value in weights(model).items())


@pytest.mark.parametrize("name", ["ANDMask", "SANDMask", "IGA"])
def test_gradients_are_taken_domain_by_domain(name: str) -> None:
    model, rows = make(name), []
    model.featurizer.register_forward_hook(lambda layer, inputs, output: rows.append(len(output)))
    model.step(batch(0, (2, 6, 4)))
    assert rows == [2, 6, 4]


def test_iga_differentiates_the_spread_exactly() -> None:
    model = make("IGA", penalty_weight=3.0)
    data = batch(0, (2, 6, 4))
    parameters = list(model.parameters())
    risks = [F.cross_entropy(model(part.x)[1], part.y) for part in data.per_domain()]
    each = [torch.cat([g.flatten() for g in torch.autograd.grad(r, parameters, create_graph=True)]) for r in risks]
    spread = torch.stack(each).var(0, correction=0).sum()
    expected = torch.autograd.grad(torch.stack(risks).mean() + 3 * spread, parameters)
    model.step(data)
    for ours, theirs in zip(gradients_left(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_iga_steps_a_network_with_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.heads = nn.Linear(1, 8), nn.Linear(8, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.heads(self.embed(x[..., None])).reshape(len(x), 6, 3, 1, 8).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v).mean((1, 2))

    cls = registry.get("IGA").algorithm
    model = cls(spec(), Network(Attention(), 8, 3), spaces.defaults(cls.Hparams))
    assert np.isfinite(float(model.step(batch(0))["penalty"]))


def test_parameters_that_the_loss_does_not_need_stay_without_gradient() -> None:
    for name in ("ANDMask", "IGA"):
        cls = registry.get(name).algorithm
        network = Network(nn.Sequential(nn.Linear(6, 8)), 8, 3)
        network.featurizer.register_parameter("unused", nn.Parameter(torch.ones(2)))
        model = cls(spec(), network, spaces.defaults(cls.Hparams, weight_decay=0.1, learning_rate=0.1))
        model.step(batch(0))
        assert torch.equal(model.featurizer.unused, torch.ones(2))


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
def test_random_mixtures_are_drawn_anew_within_each_batch(name: str) -> None:
    model = make(name)
    cuts = np.array([model.draw_cuts((2, 5, 1)) for _ in range(200)])
    assert [set(column) for column in cuts.T.tolist()] == [{0, 1}, set(range(5)), {0}]


@pytest.mark.parametrize("name", ["EQRM", "CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("trained", [False, True])
def test_domains_pass_together_unless_batch_norm_is_trained(name: str, trained: bool) -> None:
    class Normed(nn.Sequential):
        def train(self, mode: bool = True) -> Normed:
            super().train(mode)
            self[1].train(mode and trained)
            return self

    model = registry.get(name).algorithm(spec(), Network(Normed(nn.Linear(6, 8), nn.BatchNorm1d(8)), 8, 3))
    passes: list[int] = []
    model.featurizer[0].register_forward_hook(lambda layer, inputs, output: passes.append(len(output)))
    model.step(batch(0))
    assert passes == ([6, 6, 6] if trained else [18])


# --- ERM++ ---------------------------------------------------------------------------------------------------------


def test_ermplusplus_warms_up_the_head_alone_with_an_adam_of_its_own() -> None:
    model = make("ERM++", warm_up_steps=2, warm_up_rate=0.1)
    for t in range(4):
        before = weights(model)
        model.step(batch(t))
        moved = {key.split(".")[0] for key, value in weights(model).items() if not torch.equal(value, before[key])}
        assert moved == ({"head"} if t < 2 else {"head", "featurizer"})
    steps = {name: {int(v["step"]) for v in o.state.values()} for name, o in model.optimizers.items()}
    assert steps == {"main": {2}, "warm_up": {2}}


def test_ermplusplus_lowers_its_rate_on_a_plateau_and_remembers_it(tmp_path: Path) -> None:
    model = make("ERM++", warm_up_steps=1)
    model.observe(0.1)  # before the warm-up is over nothing is noted
    model.step(batch(0))
    rates = []
    for loss in (1.0, 2.0, 0.5, 0.49999, 0.49998, 0.4, 0.5):
        model.observe(loss)
        rates.append(round(model.optimizer.param_groups[0]["lr"] / 1e-3, 6))
    assert rates == [1, 1, 1, 1, 0.1, 0.1, 0.1]
    save_state(tmp_path / "state", model.training_state())
    resumed = make("ERM++", warm_up_steps=1)
    resumed.load_training_state(load_state(tmp_path / "state"))
    resumed.observe(0.5)  # the second in a row
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


def test_ermplusplus_averages_from_its_step_on_and_goes_by_either_name() -> None:
    model = make("ERMPlusPlus", average_from=3)
    assert model.name == "ERM++" and model.traits.averages == "swa"
    averaging, seen = SWA(**model.averaging_options()), []
    for t in range(5):
        model.step(batch(t))
        averaging.update(model.state_dict())
        seen.append(weights(model)["head.weight"])
    torch.testing.assert_close(averaging.averaged()["head.weight"], torch.stack(seen[2:]).mean(0))


def test_ermplusplus_trains_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(registry.get("ERM++").algorithm, "observe", lambda self, loss: seen.append(loss))
    rng = np.random.default_rng(0)
    y, domain = np.arange(90) % 3, np.arange(90) // 30
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(90, 5)) + 3 * np.eye(5)[y], y=y, domain=domain)
    changes = {"warm_up_steps": 2, "average_from": 4}
    options = {"steps": 6, "evaluate_every": 2, "device": "cpu", "hparams": changes}
    result = rcalign.train(tmp_path / "rows.npz", "erm++", ["2"], out=tmp_path / "run", **options)
    assert result["algorithm"] == "ERM++" and result["weights"] == "averaged (swa): mean of 3 steps, from step 4"
    assert len(seen) == 3 and np.isfinite(seen).all()
