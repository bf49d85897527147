"""Theorems 1 and 2: what the gap can be at most, and how the alignment loss bounds it.

Theorem 1, in a space where cross-entropy is Lipschitz (the features as a linear head reads them, or the logits):

    R_i <= R_S + sum_c |pi_i(c) - pi_S(c)| R_S,c + L sum_c pi_i(c) W1(P_i,c, P_S,c) + B * (mass of unsupported classes)

Theorem 2, in the space of unit features with metric d / T. mu_j,c: centroid of class c in support domain j, omega_j|c
the share of j in P_S,c, Phi(z) = log of the sum of exp(-d(z, mu) / T) over the denominator's centroids:

    sum_c pi_i(c) W1(P_i,c, P_S,c) <= A + C_scat                 two-step transport through the centroids
    A = sum_c pi_i(c) sum_j omega_j|c E d(z, mu_j,c) = T (L_DA - E Phi)       an identity
    Phi >= log N - R / T,  so  A <= T L_DA + R - T log N <= T L_DA + R
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from rcalign.diagnosis.findings import Chain, Lipschitz, Step
from rcalign.diagnosis.transport import Array, Distance, cloud, euclidean, wasserstein
from rcalign.errors import unknown

HEAD_SPACE = "features as the head reads them"
LOGIT_SPACE = "centred logits"
UNIT_SPACE = "unit features"
DENOMINATORS = ("all_but_own", "negatives")
UNIT_TOLERANCE = 1e-6
DIAMETER = 2.0  # of the unit ball


def head_lipschitz(weight: Array) -> Lipschitz:
    """The Lipschitz constants of cross-entropy in the features that a linear head (C, d) reads.

    grad_z loss(z, c) = sum_k p_k (w_k - w_c), so its norm is at most max_k ||w_k - w_c||.

    >>> head_lipschitz(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])).per_class
    (5.0, 5.0, 4.0)
    """
    per_class = euclidean(weight, weight).max(axis=1)
    return Lipschitz(float(per_class.max()), tuple(per_class.tolist()), HEAD_SPACE)


def logit_lipschitz(num_classes: int) -> Lipschitz:
    """The same in the logits, where the head is the identity: sqrt(2) for every class, whatever made the logits."""
    return Lipschitz(float(np.sqrt(2.0)), (float(np.sqrt(2.0)),) * num_classes, LOGIT_SPACE)


def centred(logits: Array) -> Array:
    """Logits without their mean: cross-entropy does not see it, and distances only shrink.

    >>> centred(np.array([[1.0, 3.0]]))
    array([[-1.,  1.]])
    """
    return logits - logits.mean(axis=1, keepdims=True)


def unit(features: Array) -> Array:
    """Rows of length one; a zero row stays zero.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    return features / np.where(length > 0, length, 1.0)


def are_unit(features: Array) -> bool:
    """Whether every row has length one already."""
    return bool(np.abs(np.linalg.norm(features, axis=1) - 1.0).max() <= UNIT_TOLERANCE)


def theorem_1(
    support_risk: float,
    prior_bounds: Array,
    feature_bounds: Array,
    unsupported_bounds: Array,
) -> float:
    """R_S + prior shift + feature shift + unsupported mass, from their terms per class (C,)."""
    return float(support_risk + prior_bounds.sum() + feature_bounds.sum() + unsupported_bounds.sum())


def theorem_2(
    query: Array,
    labels: Array,
    support: Array,
    support_labels: Array,
    support_domains: Array,
    weights: Array,
    distances: dict[int, Distance],
    *,
    num_classes: int,
    temperature: float = 1.0,
    denominator: str = "all_but_own",
    risk_terms: tuple[float, float] | None = None,
) -> Chain | None:
    """The chain for query samples (n, d) against support samples (m, d), all unit vectors.

    weights (m,): the support mixture. distances: class -> W1 between the two in this space, for the classes that both
    have. risk_terms: (everything in the final bound but the feature shift, L), where the head reads this space. None if
    no class is in both, or if the denominator is empty (one class in all, with ``negatives``).
    """
    if denominator not in DENOMINATORS:
        raise unknown("denominator", denominator, DENOMINATORS)
    shared = sorted(distances)
    if not shared:
        return None
    domain_ids, domain = np.unique(support_domains, return_inverse=True)
    num_domains = len(domain_ids)
    pair = domain.ravel() * num_classes + support_labels
    mass = np.bincount(pair, weights, minlength=num_domains * num_classes)  # (K C,)
    present = mass > 0
    sums = np.zeros((num_domains * num_classes, support.shape[1]))
    np.add.at(sums, pair, support)
    counts = np.bincount(pair, minlength=num_domains * num_classes)
    mu = unit(sums / np.maximum(counts, 1)[:, None])[present]
    of_class = np.tile(np.arange(num_classes), num_domains)[present]
    class_mass = np.bincount(of_class, mass[present], minlength=num_classes)
    omega = mass[present] / class_mass[of_class]  # omega_j|c of each centroid

    own = np.isin(labels, shared)
    z, y = query[own], labels[own]
    share = 1.0 / len(query)  # the mass of one query sample
    distance = euclidean(z, mu)  # (n, centroids)
    positive = of_class[None] == y[:, None]
    allowed = ~positive if denominator == "negatives" else np.ones_like(positive)
    if not allowed.any(axis=1).all():
        return None
    logits = -distance / temperature
    phi = logsumexp(logits, axis=1, b=allowed)
    weight = np.where(positive, omega[None], 0.0)
    transport_cost = float((weight * distance).sum() * share)
    # the loss by its own definition, not through the identity, so that the identity can be tested
    alignment = float((weight * -(logits - phi[:, None])).sum() * share)
    as_trained = float((phi[:, None] - logits)[positive].mean())
    counted = np.log(allowed.sum(axis=1))

    prior = np.bincount(y, minlength=num_classes) * share
    of_pair = np.cumsum(present)[pair] - 1
    spread = np.sqrt(np.einsum("md,md->m", support - mu[of_pair], support - mu[of_pair]))
    scatter_of_class = np.bincount(support_labels, weights * spread, minlength=num_classes)
    scatter = float(sum(prior[c] * scatter_of_class[c] / class_mass[c] for c in shared))

    via = 0.0
    for c in shared:
        stops = cloud(mu[of_class == c], omega[of_class == c])
        here = support_labels == c
        into = wasserstein(cloud(z[y == c]), stops)
        out = wasserstein(stops, cloud(support[here], weights[here]))
        via += float(prior[c] * (into.upper + out.upper))

    supported_mass = float(own.sum() * share)
    log_count = float(counted.sum() * share)
    phi_mean = float(phi.sum() * share)
    seen = float(distance[allowed].max())
    total = Distance.weighted_sum([(float(prior[c]), distances[c]) for c in shared])
    with_seen = temperature * (alignment - log_count) + seen * supported_mass + scatter
    with_diameter = temperature * (alignment - log_count) + DIAMETER * supported_mass + scatter
    paper = temperature * alignment + DIAMETER * supported_mass + scatter
    links = [
        ("distance", "Σ π(c) W₁", min(total.upper, via)),  # an estimate's upper end may lie above the next link
        ("through the centroids", "Σ π(c) [W₁(P, μ) + W₁(μ, P_S)]", via),
        ("transport cost + scatter", "A + C = T (L_DA − E Φ) + C", transport_cost + scatter),
        ("Φ by the largest distance seen", "T L_DA − T log N + R_seen + C", with_seen),
        ("Φ by the diameter", "T L_DA − T log N + R + C", with_diameter),
        ("as in the paper", "T L_DA + R + C", paper),
    ]
    steps = tuple(
        Step(name, formula, value, value - (links[at - 1][2] if at else value))
        for at, (name, formula, value) in enumerate(links)
    )
    return Chain(
        space=UNIT_SPACE,
        temperature=temperature,
        denominator=denominator,
        supported_mass=supported_mass,
        distance=total,
        via_centroids=via,
        transport_cost=transport_cost,
        scatter=scatter,
        alignment_loss=alignment,
        alignment_loss_as_trained=as_trained,
        phi=phi_mean,
        phi_bound=log_count - DIAMETER * supported_mass / temperature,
        log_count=log_count,
        diameter=DIAMETER,
        diameter_seen=seen,
        steps=steps,
        chained=risk_terms is not None,
        risk_bound=None if risk_terms is None else risk_terms[0] + risk_terms[1] * paper,
    )
