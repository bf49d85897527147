"""MetaReg: what moves in which stage."""

from __future__ import annotations

import pytest
import torch

from rcalign import registry, spaces
from rcalign.errors import InputError
from toy import batch, make, seeded, spec, vector_network, weights


def second_stage(**changes: object) -> torch.nn.Module:
    entry = registry.get("MetaReg")
    with seeded(0):
        network = vector_network()
    return entry.algorithm(spec(), network, spaces.defaults(entry.algorithm.Hparams, "arrays", **changes))


def test_the_meta_step_moves_the_strengths_and_nothing_else() -> None:
    model = make("MetaReg-regulariser", learning_rate=1e-2)
    for optimizer in ("main",):
        for group in model.optimizers[optimizer].param_groups:
            group["lr"] = 0.0  # what (a) does is switched off: the rest must stay
    before = weights(model)
    for t in range(5):
        model.step(batch(t))
    after = weights(model)
    assert {name for name in after if not torch.equal(before[name], after[name])} == {"strength"}
    assert (model.strength >= 0).all() and model.strength.any()


def test_every_domain_trains_its_own_head() -> None:
    model = make("MetaReg-regulariser")
    model.step(batch(0))
    heads = [head.weight.detach() for head in model.head.each]
    assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[1], heads[2])


def test_stage_two_is_a_new_model_under_the_learned_strengths() -> None:
    first = make("MetaReg-regulariser", learning_rate=1e-2)
    for t in range(5):
        first.step(batch(t))
    model = second_stage()
    untouched = weights(model)
    model.start_from(first.state_dict())
    assert torch.equal(model.strength, first.strength)
    assert all(torch.equal(untouched[name], p) for name, p in model.named_parameters())
    logs = model.step(batch(0))
    assert logs["loss"] == logs["cross_entropy"] + logs["penalty"] > logs["cross_entropy"]
    assert torch.equal(model.strength, first.strength)


def test_zero_strengths_are_plain_training() -> None:
    model, plain = second_stage(), make("ERM")
    model.start_from(make("MetaReg-regulariser").state_dict())  # not a step: phi = 0
    assert not model.strength.any()
    for t in range(3):
        model.step(batch(t))
        plain.step(batch(t))
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(model)[name], value)


def test_without_stage_one_it_says_so() -> None:
    with pytest.raises(InputError, match="run MetaReg-regulariser first"):
        second_stage().step(batch(0))
    with pytest.raises(InputError, match="found no strengths"):
        second_stage().start_from(make("ERM").state_dict())
    with pytest.raises(InputError, match=r"shape \(3, 5\)"):
        second_stage().start_from({"strength": torch.zeros(3, 5)})
