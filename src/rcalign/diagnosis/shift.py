"""Where the gap comes from: risks, priors, and the exact split of the gap between a domain and its support.

For a held-out domain i and its support mixture S, class by class,

    R_i - R_S = sum_c (pi_i(c) - pi_S(c)) R_S,c          prior part, over the classes that the support has
              + sum_c  pi_i(c) (R_i,c - R_S,c)            feature part, over the classes that both have
              + sum_c  pi_i(c)  R_i,c                     unsupported part, over the classes that the support lacks

an identity, not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcalign.diagnosis.transport import Array
from rcalign.errors import unknown

SUPPORTS: tuple[str, ...] = ("domains", "samples", "classes")


def support_weights(labels: Array, domains: Array, kind: str = "domains") -> Array:
    """The mass (n,) of each support sample in the support mixture; they add up to one.

    ``domains``: every domain weighs the same, so R_S is the mean of the domains' risks. ``samples``: every sample
    weighs the same. ``classes``: P_S,c is the plain mean of P_j,c over the domains that have class c (the weights of
    the alignment loss in the paper's Theorem 2), the prior is the mean of the domains' priors.

    >>> labels, domains = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    >>> support_weights(labels, domains, "samples")
    array([0.25, 0.25, 0.25, 0.25])
    >>> support_weights(labels, domains, "domains").round(3)
    array([0.167, 0.167, 0.167, 0.5  ])
    >>> support_weights(labels, domains, "classes").round(3)
    array([0.167, 0.167, 0.333, 0.333])
    """
    if kind not in SUPPORTS:
        raise unknown("support mixture", kind, SUPPORTS)
    if kind == "samples":
        return np.full(len(labels), 1.0 / len(labels))
    _, domain = np.unique(domains, return_inverse=True)
    sizes = np.bincount(domain)
    equal = 1.0 / (len(sizes) * sizes[domain])
    if kind == "domains":
        return equal
    prior = np.bincount(labels, equal)
    pairs = np.zeros((len(sizes), len(prior)))
    np.add.at(pairs, (domain, labels), 1.0)
    return prior[labels] / ((pairs > 0).sum(axis=0)[labels] * pairs[domain, labels])


@dataclass(frozen=True)
class Split:
    """Per class (C,): priors, risks (nan where there is none), whether the support has it, and the three parts."""

    prior: Array
    support_prior: Array
    risk: Array
    support_risk: Array
    supported: Array
    prior_part: Array
    feature_part: Array
    unsupported_part: Array

    @property
    def gap(self) -> float:
        return float((self.prior_part + self.feature_part + self.unsupported_part).sum())


def split_gap(
    losses: Array, labels: Array, support_losses: Array, support_labels: Array, weights: Array, num_classes: int
) -> Split:
    """The exact split of mean(losses) - weights @ support_losses.

    >>> labels, ones = np.array([0, 1]), np.ones(2)
    >>> query = np.array([1.0, 3.0, 3.0]), np.array([0, 1, 1])
    >>> only_prior = split_gap(*query, np.array([1.0, 3.0]), labels, ones / 2, 2)
    >>> round(only_prior.gap, 6), float(only_prior.feature_part.sum())
    (0.333333, 0.0)
    """
    prior = np.bincount(labels, minlength=num_classes) / len(labels)
    support_prior = np.bincount(support_labels, weights, minlength=num_classes)
    risk = _class_means(losses, labels, np.ones(len(labels)), num_classes)
    support_risk = _class_means(support_losses, support_labels, weights, num_classes)
    supported = support_prior > 0
    known = np.where(supported, support_risk, 0.0)
    seen = np.where(prior > 0, risk, 0.0)
    return Split(
        prior=prior,
        support_prior=support_prior,
        risk=risk,
        support_risk=support_risk,
        supported=supported,
        prior_part=np.where(supported, (prior - support_prior) * known, 0.0),
        feature_part=np.where(supported, prior * np.where(prior > 0, seen - known, 0.0), 0.0),
        unsupported_part=np.where(supported, 0.0, prior * seen),
    )


def _class_means(values: Array, labels: Array, weights: Array, num_classes: int) -> Array:
    mass = np.bincount(labels, weights, minlength=num_classes)
    total = np.bincount(labels, weights * values, minlength=num_classes)
    return np.divide(total, mass, out=np.full(num_classes, np.nan), where=mass > 0)
