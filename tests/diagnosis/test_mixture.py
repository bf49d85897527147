"""Theorem 3: the linear programme, the guarantee and the verdict."""

from __future__ import annotations

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcalign.diagnosis import diagnose_features
from rcalign.diagnosis.mixture import RULE, nearest_mixture, thinned, verdict
from rcalign.diagnosis.transport import cloud, euclidean, wasserstein


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 8), st.sampled_from([1e-5, 1.0, 1e5]))
def test_no_other_mixture_is_nearer(seed: int, count: int, rows: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    sources = [cloud(scale * rng.normal(size=(int(rng.integers(1, 8)), 2))) for _ in range(count)]
    target = cloud(scale * (rng.normal(size=(rows, 2)) + 0.5))
    weights, left = nearest_mixture(target, sources)
    assert weights.sum() == pytest.approx(1.0)

    def distance(at: np.ndarray) -> float:
        points = np.concatenate([source.points for source in sources])
        mass = np.concatenate([share * source.weights for share, source in zip(at, sources, strict=True)])
        return wasserstein(target, cloud(points, mass)).value

    assert distance(weights) == pytest.approx(left, rel=1e-6, abs=1e-7 * scale)
    for other in [*np.eye(count), *rng.dirichlet(np.ones(count), size=4)]:
        assert left <= distance(other) + 1e-7 * scale


def test_a_mixture_of_the_sources_is_found_with_nothing_left() -> None:
    rng = np.random.default_rng(0)
    sources = [rng.normal(size=(10, 3)) + 4 * k for k in range(3)]
    target = np.concatenate([np.repeat(sources[0], 3, axis=0), sources[2]])
    weights, left = nearest_mixture(cloud(target), [cloud(points) for points in sources])
    assert weights == pytest.approx([0.75, 0.0, 0.25], abs=1e-9)
    assert left == pytest.approx(0.0, abs=1e-9)


def test_thinning_keeps_what_is_small() -> None:
    target, sources = np.zeros((1000, 2)), [np.zeros((5, 2)), np.zeros((4000, 2))]
    few, each = thinned(target, sources, 40_000)
    assert len(each[0]) == 5
    assert len(few) * (len(each[0]) + len(each[1])) <= 40_000
    assert len(few) > 150


def around(rng: np.random.Generator, rows: int, *centre: float) -> np.ndarray:
    return rng.normal(size=(rows, 4)) + np.array(centre)


def places(seed: int = 1) -> tuple[list[np.ndarray], np.random.Generator]:
    rng = np.random.default_rng(seed)
    return [around(rng, 120, *centre) for centre in ((0, 0, 0, 0), (3, 0, 0, 0), (0, 3, 0, 0))], rng


def test_the_verdict_follows_its_rule() -> None:
    counted = {"inside": 0, "near": 0, "outside": 0}
    for seed in range(6):
        sources, rng = places(seed)
        targets = {
            "inside": np.concatenate([around(rng, 60, 0, 0, 0, 0), around(rng, 60, 3, 0, 0, 0)])[rng.permutation(120)],
            "near": around(rng, 120, 1.2, 1.2, 1.2, 0),
            "outside": around(rng, 120, 0, 0, 9, 0),
        }
        for name, points in targets.items():
            place, _, reference, floor, p = verdict(points, sources)
            counted[name] += place == name
            assert reference is not None and floor is not None and p is not None and floor < reference
    assert counted["near"] == counted["outside"] == 6
    assert counted["inside"] >= 5
    assert "Outside" in RULE and "Inside" in RULE


def test_the_verdict_with_one_source() -> None:
    inside = 0
    for seed in range(6):
        sources, rng = places(seed)
        inside += verdict(around(rng, 100, 0, 0, 0, 0), sources[:1])[0] == "inside"
        assert verdict(around(rng, 100, 9, 9, 9, 9), sources[:1])[0] == "outside"
    assert inside >= 4
    assert verdict(np.zeros((1, 4)), [np.zeros((1, 4))])[0] == "near"  # nothing to compare with


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_a_sample_of_the_sources_is_rarely_called_anything_else(apart: float) -> None:
    """At the level of the rule, also where the sources are alike: of 40 targets 2 are expected, 6 are too many."""
    places: list[str] = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        centres = apart * rng.normal(size=(3, 6))
        sources = [rng.normal(size=(30, 6)) + centre for centre in centres]
        target = rng.normal(size=(30, 6)) + centres[rng.integers(0, 3, 30)]
        places.append(verdict(target, sources)[0])
    assert places.count("outside") <= 3
    assert places.count("inside") >= 35


def test_an_unlabelled_target_outside_the_sources_says_so() -> None:
    sources, rng = places()
    labels = np.tile([0, 1], 180)
    head = {"head_weight": [[1.0, 0, 0, 0], [0, 1.0, 0, 0]]}
    target = around(rng, 80, 0, 0, 9, 0)
    found = diagnose_features(
        np.concatenate(sources), labels, np.repeat(np.arange(3), 120), **head, target="mars", target_features=target
    )
    assert found.target is not None
    assert found.target.verdict == "outside" and found.target.name == "mars"
    assert "outside the sources" in found.advice[0].title
    assert found.target.mixture.guarantee >= found.target.mixture.source_risk
    assert "labels of the target are not known" in found.target.mixture.assumption
    assert found.target.priors is not None
    assert all(one.mixture is None for one in found.held_out)


def test_the_guarantee_without_labels_holds_for_the_labels_that_the_plan_brings() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(30, 3)) * 2
        labels, domains = rng.integers(0, 3, 30), np.arange(30) % 3
        weight = rng.normal(size=(3, 3))
        target = rng.normal(size=(12, 3)) + rng.normal(size=3)
        found = diagnose_features(x, labels, domains, head_weight=weight, target_features=target, replicates=2)
        assert found.target is not None
        fit = found.target.mixture
        mass = np.array(fit.weights)[domains] / 10
        plan = ot.emd(np.full(12, 1 / 12), mass, euclidean(target, x))
        logits = target @ weight.T
        losses = np.log(np.exp(logits).sum(1, keepdims=True)) - logits  # (target, label)
        assert (plan * losses[:, labels]).sum() <= fit.guarantee + 1e-9
        # any labels at all: M for every share of the target whose label is not the plan's
        given = rng.integers(0, 3, 12)
        wrong = (plan * (given[:, None] != labels[None])).sum()
        difference = np.ptp(x @ weight.T, axis=1).max()
        assert losses[np.arange(12), given].mean() <= fit.guarantee + difference * wrong + 1e-9
        assert f"{difference:.4g}" in fit.assumption
