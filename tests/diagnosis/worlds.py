"""Random models and data sets for the diagnosis, and every inequality that must hold for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcalign.diagnosis import Diagnosis

TOLERANCE = 1e-9


def world(
    seed: int,
    *,
    domains: int = 3,
    classes: int = 3,
    width: int = 3,
    samples: int = 24,
    scale: float = 1.0,
    shift: float = 1.0,
    unit: bool = False,
    grid: bool = False,
    head: bool = True,
    skew: bool = False,
) -> dict[str, Any]:
    """Arguments of ``diagnose``: every domain has a sample; classes may be missing anywhere."""
    rng = np.random.default_rng(seed)
    domain = np.concatenate([np.arange(domains), rng.integers(0, domains, max(samples - domains, 0))])
    prior = rng.dirichlet(np.full(classes, 0.4 if skew else 5.0), size=domains)
    label = np.array([rng.choice(classes, p=prior[d]) for d in domain])
    features = rng.normal(size=(len(domain), width))
    features += shift * (rng.normal(size=(classes, width))[label] + rng.normal(size=(domains, width))[domain])
    if grid:  # many equal points
        features = np.round(features)
    features *= scale
    if unit:
        features = np.where(np.abs(features).sum(1, keepdims=True) > 0, features, 1.0)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
    weight = rng.normal(size=(classes, width)) * rng.choice([0.1, 1.0, 5.0])
    bias = rng.normal(size=classes)
    arrays = {"features": features, "labels": label, "domains": domain}
    if head:
        return {**arrays, "head_weight": weight, "head_bias": bias}
    return {**arrays, "logits": np.tanh(features @ weight.T) * 3.0 + bias}  # a head that is not linear


def violations(report: Diagnosis) -> list[str]:
    """Every inequality and identity that does not hold, in words."""
    found: list[str] = []

    def at_most(name: str, low: float, high: float) -> None:
        if not low <= high + TOLERANCE * (1.0 + abs(low) + abs(high)):
            found.append(f"{name}: {low!r} > {high!r}")

    def same(name: str, one: float, other: float) -> None:
        at_most(name, one, other)
        at_most(name, other, one)

    for one in report.held_out:
        where = f"{one.domain}: "
        same(where + "parts = gap", one.prior_part + one.feature_part + one.unsupported_part, one.gap)
        same(
            where + "class parts = gap",
            sum(c.prior_part + c.feature_part + c.unsupported_part for c in one.classes),
            one.gap,
        )
        same(where + "priors", sum(c.prior for c in one.classes), 1.0)
        same(where + "support priors", sum(c.support_prior for c in one.classes), 1.0)
        at_most(where + "Theorem 1, tight", one.risk, one.tight_bound)
        at_most(where + "tight <= paper", one.tight_bound, one.bound)
        at_most(where + "unsupported", one.unsupported_part, one.unsupported_bound)
        at_most(where + "prior shift", abs(one.prior_part), one.prior_bound)
        at_most(where + "feature shift", abs(one.feature_part), one.feature_bound)
        for at, c in enumerate(one.classes):
            if c.distance is not None:
                assert c.risk is not None and c.support_risk is not None
                moved = abs(c.risk - c.support_risk)
                at_most(where + c.name + " Lipschitz", moved, report.lipschitz.per_class[at] * c.distance.upper)
                at_most(where + c.name + " bracket", c.distance.lower, c.distance.upper)
                if c.logit_distance is not None:
                    at_most(where + c.name + " in the logits", moved, np.sqrt(2.0) * c.logit_distance.upper)
        if one.chain is not None:
            chain = one.chain
            identity = chain.temperature * (chain.alignment_loss - chain.phi)
            same(where + "A = T (L - Phi)", chain.transport_cost, identity)
            at_most(where + "Phi", chain.phi_bound, chain.phi)
            at_most(where + "seen", chain.diameter_seen, chain.diameter)
            for before, after in zip(chain.steps, chain.steps[1:], strict=False):
                at_most(where + after.name, before.value, after.value)
            at_most(where + "chain", chain.distance.lower, chain.steps[-1].value)
            if chain.risk_bound is not None:
                at_most(where + "final bound", one.risk, chain.risk_bound)
        if one.mixture is not None:
            fit = one.mixture
            assert fit.risk is not None
            at_most(where + "Theorem 3", fit.risk, fit.guarantee)
            same(where + "mixture weights", sum(fit.weights), 1.0)
            at_most(where + "mixture weights", 0.0, min(fit.weights))
    return found
