"""Diagnoses whose numbers are known in advance, and what must not change them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from worlds import world

from rcalign.diagnosis import Diagnosis, diagnose_features
from rcalign.diagnosis.bound import head_lipschitz
from rcalign.functional.alignment import alignment_loss, centroids

HEAD = {"head_weight": [[1.0, 0.0], [0.0, 1.0]], "head_bias": [0.0, 0.0]}


def test_identical_domains_have_no_gap_and_no_distance() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), np.arange(20) % 2
    found = diagnose_features(np.tile(x, (3, 1)), np.tile(y, 3), np.repeat(np.arange(3), 20), **HEAD)
    for one in found.held_out:
        assert one.gap == pytest.approx(0.0, abs=1e-15)
        assert one.prior_bound == pytest.approx(0.0, abs=1e-15)
        assert one.feature_bound == 0.0  # exactly
        assert all(c.distance is not None and c.distance.upper == 0.0 for c in one.classes)
        assert one.chain is not None and one.chain.distance.upper == 0.0
        assert one.bound == pytest.approx(one.risk, rel=1e-14)
        assert one.mixture is not None and one.mixture.distance.upper == 0.0
        assert one.mixture.guarantee == pytest.approx(one.risk, rel=1e-14)


def test_translated_domains_are_as_far_as_they_were_moved() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    move = np.array([[0.6, -0.8], [3.0, 4.0]])
    found = diagnose_features(np.concatenate([x, x + move[y]]), np.tile(y, 2), np.repeat([0, 1], 30), **HEAD)
    for one in found.held_out:
        assert [c.distance.value for c in one.classes if c.distance] == pytest.approx([1.0, 5.0], rel=1e-12)
        assert one.prior_part == pytest.approx(0.0, abs=1e-15)
        assert one.feature_part == pytest.approx(one.gap, rel=1e-12)
        assert one.feature_bound == pytest.approx(np.sqrt(2.0) * (0.5 * 1.0 + 0.5 * 5.0), rel=1e-12)


def test_one_point_for_each_class_by_hand() -> None:
    # domain 0: class 0 at (0, 0), class 1 at (0, 2); domain 1: class 0 at (3, 0), class 1 at (0, 2)
    x, y, d = np.array([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 2.0]]), [0, 1, 0, 1], [0, 0, 1, 1]
    found = diagnose_features(x, y, d, **HEAD)
    at_origin, apart, sure = np.log(2.0), np.log1p(np.exp(-2.0)), np.log1p(np.exp(-3.0))
    one = found.of("domain 1")
    assert one.risk == pytest.approx((sure + apart) / 2, rel=1e-12)
    assert one.support_risk == pytest.approx((at_origin + apart) / 2, rel=1e-12)
    assert one.feature_part == pytest.approx((sure - at_origin) / 2, rel=1e-12)
    assert one.bound == pytest.approx(one.support_risk + np.sqrt(2.0) * 0.5 * 3.0, rel=1e-12)
    assert found.lipschitz.constant == pytest.approx(np.sqrt(2.0), rel=1e-15)
    # one point for each class: no scatter, so the chain is tight down to A
    assert one.chain is not None
    assert one.chain.scatter == 0.0
    assert one.chain.transport_cost == pytest.approx(one.chain.distance.value, rel=1e-12)


def test_prior_shift_alone() -> None:
    # both domains have the same two points; only their shares differ
    x = np.array([[0.0, 0.0], [0.0, 2.0]])
    labels = np.array([0, 1] + [0] * 3 + [1])
    domains = np.array([0, 0, 1, 1, 1, 1])
    found = diagnose_features(x[labels], labels, domains, **HEAD)
    one = found.of("domain 1")
    rare, common = np.log(2.0), np.log1p(np.exp(-2.0))
    assert one.feature_part == 0.0 and one.feature_bound == 0.0
    assert one.prior_part == pytest.approx(0.25 * rare - 0.25 * common, rel=1e-12)
    assert one.prior_bound == pytest.approx(0.25 * rare + 0.25 * common, rel=1e-12)
    assert one.tight_bound == pytest.approx(one.risk, rel=1e-12)


def test_a_class_without_support_is_reported_and_bounded_by_the_largest_loss() -> None:
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    found = diagnose_features(x, [0, 0, 1], [0, 1, 1], **HEAD)
    one = found.of("domain 1")
    assert one.unsupported_mass == 0.5
    assert one.unsupported_part == pytest.approx(0.5 * np.log1p(np.exp(-5.0)), rel=1e-12)
    assert one.unsupported_bound == pytest.approx(0.5 * found.largest_loss, rel=1e-15)
    assert found.largest_loss == pytest.approx(np.log(2.0), rel=1e-15)
    assert any(advice.kind == "unsupported" and "'class 1'" in advice.title for advice in found.advice)
    assert any("largest loss seen" in note for note in found.notes)


def test_the_lipschitz_constants_bound_every_gradient_and_are_reached() -> None:
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(4, 3))
    lipschitz = head_lipschitz(weight)
    assert lipschitz.constant == pytest.approx(max(np.linalg.norm(a - b) for a in weight for b in weight), rel=1e-12)
    for c in range(4):
        steepest = 0.0
        for z in rng.normal(size=(200, 3)) * 1e3:  # far out, the softmax picks one class
            p = np.exp(weight @ z - (weight @ z).max())
            steepest = max(steepest, float(np.linalg.norm((p / p.sum()) @ weight - weight[c])))
        assert steepest <= lipschitz.per_class[c] * (1 + 1e-12)
        assert steepest >= 0.5 * lipschitz.per_class[c]


def test_a_head_that_is_scaled_scales_the_bound_of_the_features() -> None:
    made = world(7, classes=3, domains=3, samples=40)
    plain = diagnose_features(**made)
    moved = diagnose_features(**{**made, "features": made["features"] / 4.0, "head_weight": made["head_weight"] * 4.0})
    for one, other in zip(plain.held_out, moved.held_out, strict=True):
        assert other.bound == pytest.approx(one.bound, rel=1e-9)
        assert other.risk == pytest.approx(one.risk, rel=1e-9)
        assert one.chain is not None and other.chain is not None
        assert other.chain.alignment_loss == pytest.approx(one.chain.alignment_loss, rel=1e-9)  # unit features


def test_logits_give_the_same_risks_in_their_own_space() -> None:
    made = world(8, classes=4, samples=40)
    by_head = diagnose_features(**made)
    logits = made["features"] @ made["head_weight"].T + made["head_bias"]
    by_logits = diagnose_features(made["features"], made["labels"], made["domains"], logits=logits)
    assert (by_head.space, by_logits.space) == ("features as the head reads them", "centred logits")
    for one, other in zip(by_head.held_out, by_logits.held_out, strict=True):
        assert other.risk == pytest.approx(one.risk, rel=1e-12)
        assert [c.distance.value for c in other.classes if c.distance] == pytest.approx(
            [c.logit_distance.value for c in one.classes if c.logit_distance], rel=1e-9
        )
        assert one.tight_bound <= other.tight_bound + 1e-9


@pytest.mark.parametrize("denominator", ["all_but_own", "negatives"])
def test_the_alignment_loss_is_the_one_that_is_trained(denominator: str) -> None:
    made = world(9, domains=4, classes=3, samples=60, width=5)
    found = diagnose_features(**made, temperature=0.4, denominator=denominator)
    x, y, d = (torch.as_tensor(made[key]) for key in ("features", "labels", "domains"))
    for k, one in enumerate(found.held_out):
        query = d == k
        mu, present = centroids(x[~query], y[~query], d[~query], 4, 3)
        trained = alignment_loss(
            x[query],
            y[query],
            d[query],
            mu,
            present,
            temperature=0.4,
            denominator=denominator,  # type: ignore[arg-type]
        )
        assert one.chain is not None
        assert one.chain.alignment_loss_as_trained == pytest.approx(float(trained), rel=1e-9)


def test_with_every_class_everywhere_and_class_weights_the_two_alignment_losses_agree() -> None:
    rng = np.random.default_rng(10)
    labels, domains = np.tile(np.arange(3), 24), np.repeat(np.arange(4), 18)
    x = rng.normal(size=(72, 4)) + labels[:, None]
    found = diagnose_features(x, labels, domains, head_weight=rng.normal(size=(3, 4)), support="classes")
    for one in found.held_out:
        assert one.chain is not None
        assert one.chain.alignment_loss == pytest.approx(one.chain.alignment_loss_as_trained, rel=1e-12)


def test_the_chain_is_claimed_only_where_the_head_reads_unit_features() -> None:
    unit, free = diagnose_features(**world(11, unit=True)), diagnose_features(**world(11))
    assert all(one.chain and one.chain.chained and one.chain.risk_bound is not None for one in unit.held_out)
    assert all(one.chain and not one.chain.chained and one.chain.risk_bound is None for one in free.held_out)
    assert any("neither is chained" in note for note in free.notes)


def test_the_order_of_the_samples_changes_nothing_at_all() -> None:
    for seed in range(5):
        made = world(seed, samples=50, grid=seed == 3, head=seed != 4)
        order = np.random.default_rng(seed).permutation(50)
        moved = {
            key: value[order] if key in ("features", "labels", "domains", "logits") else value
            for key, value in made.items()
        }
        assert diagnose_features(**made, exact_pairs=64) == diagnose_features(**moved, exact_pairs=64)
        if seed == 0:
            target = np.random.default_rng(9).normal(size=(20, 3))
            one, other = (
                diagnose_features(**made, target_features=target, replicates=10),
                diagnose_features(**moved, target_features=target[::-1], replicates=10),
            )
            assert one == other


def test_renaming_domains_and_classes_renames_the_report() -> None:
    made = world(3, domains=4, classes=4, samples=60)
    names, kinds = ["a", "b", "c", "d"], ["k", "l", "m", "n"]
    domain_to, class_to = np.array([2, 0, 3, 1]), np.array([3, 1, 0, 2])
    plain = diagnose_features(**made, domain_names=names, class_names=kinds, exact_pairs=64)
    renamed = diagnose_features(
        made["features"],
        class_to[made["labels"]],
        domain_to[made["domains"]],
        head_weight=made["head_weight"][np.argsort(class_to)],
        head_bias=made["head_bias"][np.argsort(class_to)],
        domain_names=[names[i] for i in np.argsort(domain_to)],
        class_names=[kinds[i] for i in np.argsort(class_to)],
        exact_pairs=64,
    )
    assert numbers(plain) == pytest.approx(numbers(renamed), rel=1e-9, abs=1e-9)


def numbers(found: Diagnosis) -> dict[str, float]:
    """Every number of the held-out domains under a name that does not depend on any order."""
    values: dict[str, float] = {}
    for one in found.held_out:
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            if isinstance(value, float):
                values[f"{one.domain} {field.name}"] = value
        for c in one.classes:
            for key, value in dataclasses.asdict(c).items():
                if isinstance(value, float):
                    values[f"{one.domain} {c.name} {key}"] = value
            if c.distance is not None:
                values[f"{one.domain} {c.name} upper"] = c.distance.upper
                values[f"{one.domain} {c.name} lower"] = c.distance.lower
        assert one.chain is not None and one.mixture is not None
        for step in one.chain.steps:
            values[f"{one.domain} {step.name}"] = step.value
        for name, weight in zip(one.mixture.sources, one.mixture.weights, strict=True):
            values[f"{one.domain} from {name}"] = weight
        values[f"{one.domain} left"] = one.mixture.distance.upper
    return values


def test_threads_change_nothing() -> None:
    made = world(12, samples=40)
    assert diagnose_features(**made, workers=1) == diagnose_features(**made, workers=4)
