"""Not one violation over more than a thousand random models and data sets; and the check itself can fail."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import violations, world

from rcalign.diagnosis import bound, diagnose, diagnose_features, transport

anything = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "domains": st.integers(2, 4),
        "classes": st.integers(2, 5),
        "width": st.integers(1, 5),
        "samples": st.integers(4, 30),
        "scale": st.sampled_from([1e-4, 1.0, 30.0, 1e4]),
        "shift": st.sampled_from([0.0, 0.3, 3.0]),
        "unit": st.booleans(),
        "grid": st.booleans(),
        "head": st.booleans(),
        "skew": st.booleans(),
    }
)
choices = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.1, 1.0, 3.0]),
        "denominator": st.sampled_from(["all_but_own", "negatives"]),
        "support": st.sampled_from(["domains", "samples", "classes"]),
        "exact_pairs": st.sampled_from([16, 10**6]),  # 16: nearly every distance is a bracket
    }
)


@settings(max_examples=60, deadline=None)
@given(anything, choices)
def test_no_inequality_is_violated(made: dict[str, Any], chosen: dict[str, Any]) -> None:
    assert violations(diagnose_features(**world(**made), **chosen, workers=1)) == []


@pytest.mark.slow
@settings(max_examples=1200, deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, choices)
def test_no_inequality_is_violated_in_a_thousand_worlds(made: dict[str, Any], chosen: dict[str, Any]) -> None:
    assert violations(diagnose_features(**world(**made), **chosen, workers=1)) == []


@settings(max_examples=40, deadline=None)
@given(anything)
def test_a_labelled_target_is_bounded_like_a_domain(made: dict[str, Any]) -> None:
    found = diagnose_features(**world(**made), target="domain 1", workers=1)
    assert violations(found) == []
    assert found.target is not None and found.target.labelled
    assert found.target.mixture == found.of("domain 1").mixture
    assert "domain 1" not in found.domains


def _smaller(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """The same constants, too small."""

    def broken(*args: Any) -> Any:
        right = function(*args)
        return dataclasses.replace(
            right, constant=factor * right.constant, per_class=tuple(factor * one for one in right.per_class)
        )

    return broken


def _shrunk(function: Callable[..., transport.Distance]) -> Callable[..., transport.Distance]:
    def broken(*args: Any, **kwargs: Any) -> transport.Distance:
        right = function(*args, **kwargs)
        return dataclasses.replace(right, upper=0.5 * right.upper, value=0.5 * right.value, lower=0.0)

    return broken


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "the head's Lipschitz constant is too small": (diagnose, "head_lipschitz", _smaller(bound.head_lipschitz, 0.3)),
    "the logits' Lipschitz constant is too small": (diagnose, "logit_lipschitz", _smaller(bound.logit_lipschitz, 0.3)),
    "the diameter of the unit ball is too small": (bound, "DIAMETER", 1.2),
    "a distance is halved": (diagnose, "wasserstein", _shrunk(transport.wasserstein)),
    "labels do not count in Theorem 3": (diagnose, "_largest_difference", lambda samples: 0.0),
    "the support mixture is not the one of the risk": (
        diagnose,
        "split_gap",
        lambda *args: report_split(*args[:4], np.full(len(args[4]), 1.0 / len(args[4])), args[5]),
    ),
    "features are not of unit length in Theorem 2": (diagnose, "unit", lambda features: 3.0 * bound.unit(features)),
}
report_split = diagnose.split_gap


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_constant_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [
        {"head": head, "unit": unit, "scale": scale, "shift": 3.0, "domains": 3, "classes": 3, "samples": 20}
        for head, unit, scale in itertools.product([True, False], [True, False], [1.0, 30.0])
    ]
    worlds = [world(seed, **kind) for seed in range(3) for kind in kinds]
    assert all(violations(diagnose_features(**made, workers=1)) == [] for made in worlds[:4])
    module, attribute, wrong = MUTATIONS[name]
    monkeypatch.setattr(module, attribute, wrong)
    assert any(violations(diagnose_features(**made, workers=1)) for made in worlds), f"nobody noticed that {name}"
