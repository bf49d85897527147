"""Hyperparameters that others read are declared by the algorithm, not known by their names."""

from __future__ import annotations

import pytest
import torch

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry, spaces
from rcalign.algorithms import base
from toy import batch, make, weights


@pytest.mark.parametrize("name", registry.names(parts=True))
def test_declared_hyperparameters_exist_and_have_a_known_role(name: str) -> None:
    entry = registry.get(name)
    fields = spaces.fields_of(entry.algorithm.Hparams)
    for role, field in entry.traits.alignment:
        assert role in ("weight", "temperature", "inner_rate") and field in fields


def test_a_role_nobody_has_is_the_default() -> None:
    assert registry.get("ERM").traits.alignment_value("temperature", {}, 1.0) == 1.0
    traits = registry.get("RC-Align").traits
    assert traits.alignment_value("inner_rate", {"inner_rate": 0.25}, 1.0) == 0.25


def test_training_does_not_need_a_fused_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch cannot be installed beside this one: what is asked of it is replaced."""
    fused = make("ERM")
    monkeypatch.setattr(base, "has_fused_adam", lambda device: False)
    plain = make("ERM")
    assert fused.optimizer.defaults["fused"] and not plain.optimizer.defaults["fused"]
    for t in range(3):
        for model in (fused, plain):
            model.step(batch(t))
    for name, value in weights(fused).items():
        assert torch.allclose(value, weights(plain)[name], atol=1e-6)
