"""Class priors of an unlabelled target, and logits that know them.

Both estimates assume label shift: P(z | y) of the target is that of the sources, only P(y) differs.

EM (Saerens, Latinne and Decaestecker 2002), from the model's probabilities p(c | z) under the source prior s:

    q_t(c) ~ p(c | z_t) pi(c) / s(c),   pi(c) <- mean over target samples of q_t(c),   until nothing changes

Black-box shift estimation (Lipton, Wang and Smola 2018), from hard predictions only: with the sources' confusion matrix
M_kc = P(predicted k, true c) and the target's predicted shares m,  M w = m,  pi(c) ~ max(w_c, 0) s(c).

Whether label shift explains the target is checked twice. The two estimates must agree. And what is left must be small:
the energy distance (2 E|X - Y| - E|X - X'| - E|Y - Y'|, without bias) of the target's features from those of the
sources, weighted to the estimated shares. It is compared with the same distance of each source from the other sources,
weighted to its own shares, and, where sources are as like one another as samples of one distribution, with that of
samples drawn from the weighted sources themselves. This is fair only where the sources' rows have no advantage over the
target's: features of rows that a model was trained on are tighter than those of any new row.

Whether the estimate is good enough to be used is checked where the truth is known: on samples of one source at a time,
as many as the target has, in which every class has its share in training. A model that knows little, or few samples,
make EM give most of the mass to a few classes, and its bootstrap intervals do not show it. Shares are only said to
differ if they are farther from those in training than twice what the estimates of such samples are off: then the truth
is nearer to the estimate than to the shares in training.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from rcalign.diagnosis.findings import Interval, PriorEstimates
from rcalign.diagnosis.transport import Array
from rcalign.errors import InputError

_FLOOR = 1e-12  # a prior of zero is taken for this, so that adapted logits stay finite
_RESIDUAL_ROWS = 600  # of the sources, and of the target, that the check of label shift reads
_GAP = 0.01  # between intervals that agree: those of a model that is always sure have no width
_NOISE_ROWS = 2000  # of the sources, from which samples of known shares are drawn
_DRAWS = 4_000_000  # bootstrap counts in memory at once


def adapt_priors(logits: ArrayLike, source_priors: ArrayLike, target_priors: ArrayLike) -> Array:
    """Logits (n, C) for another class prior: logit_c + log target(c) - log source(c).

    >>> adapt_priors([[0.0, 0.0]], [0.5, 0.5], [0.9, 0.1]).argmax(axis=1)
    array([0])
    >>> adapt_priors([[1.0, 2.0]], [0.3, 0.7], [0.3, 0.7])
    array([[1., 2.]])
    """
    scores = np.asarray(logits, dtype=np.float64)
    source = _prior("source priors", source_priors, scores.shape[-1])
    target = _prior("target priors", target_priors, scores.shape[-1])
    if ((source == 0) & (target > 0)).any():
        at = int(np.flatnonzero((source == 0) & (target > 0))[0])
        raise InputError(
            f"class {at} has source prior 0 but target prior {target[at]:.3g}: it was never learned, so give 0 for it."
        )
    return scores + np.log(np.maximum(target, _FLOOR)) - np.log(np.maximum(source, _FLOOR))


def _prior(name: str, given: ArrayLike, classes: int) -> Array:
    values = np.asarray(given, dtype=np.float64)
    if values.shape != (classes,):
        raise InputError(
            f"the {name} have shape {values.shape}, but there are {classes} classes: expected ({classes},)."
        )
    if not np.isfinite(values).all() or (values < 0).any() or abs(values.sum() - 1.0) > 1e-6:
        raise InputError(f"the {name} add up to {values.sum():.6g}: expected numbers from 0 to 1 that add up to one.")
    return values


def em_priors(
    logits: Array,
    source: Array,
    weights: Array | None = None,
    *,
    start: Array | None = None,
    tolerance: float = 1e-9,
    iterations: int = 2000,
) -> Array:
    """Target priors by EM: logits (n, C), source prior (C,) -> (C,); or (C, B) for weights (n, B) of B replicates.

    source may be (C, B) too, one prior for each replicate. start (C,): where to begin (None: at the source prior).
    Stops when no prior moves by more than ``tolerance``.

    >>> sure = np.array([[50.0, 0.0]] * 3 + [[0.0, 50.0]])
    >>> em_priors(sure, np.array([0.5, 0.5])).round(6)
    array([0.75, 0.25])
    """
    by_replicate = source if source.ndim == 2 else source[:, None]  # (C, B) or (C, 1)
    seen = (by_replicate > 0).all(axis=1)
    given = softmax(logits, axis=1)[:, seen]  # p(c | z)
    by_replicate = by_replicate[seen]
    masses = np.full((len(logits), 1), 1.0 / len(logits)) if weights is None else weights / weights.sum(axis=0)
    # a prior that starts at zero would stay there
    first = by_replicate if start is None else np.maximum(start, 1e-6)[seen][:, None]
    prior = np.repeat(first / first.sum(axis=0), masses.shape[1] // first.shape[1], axis=1)  # (C, B)
    for _ in range(iterations):
        ratio = prior / by_replicate
        evidence = given @ ratio  # (n, B)
        following = ratio * (given.T @ (masses / np.maximum(evidence, 1e-300)))
        following /= following.sum(axis=0)
        moved = float(np.abs(following - prior).max())
        prior = following
        if moved < tolerance:
            break
    found = np.zeros((len(source), masses.shape[1]))
    found[seen] = prior
    return found[:, 0] if weights is None else found


def bbse_priors(confusion: Array, predicted: Array) -> Array:
    """Target priors by black-box shift estimation: confusion (..., C, C) = P(predicted, true), predicted (..., C).

    >>> bbse_priors(np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([0.74, 0.26])).round(6)
    array([0.9, 0.1])
    """
    source = confusion.sum(axis=-2)
    ratio = np.einsum("...ck,...k->...c", np.linalg.pinv(confusion, rcond=1e-8), predicted)
    prior = np.maximum(ratio, 0.0) * source
    total = prior.sum(axis=-1, keepdims=True)
    return np.where(total > 0, prior / np.where(total > 0, total, 1.0), source)


def estimate_priors(
    source_logits: Array,
    source_labels: Array,
    target_logits: Array,
    *,
    classes: tuple[str, ...],
    source_priors: Array | None = None,
    source_domains: Array | None = None,
    features: tuple[Array, Array] | None = None,
    untrained_features: tuple[Array, Array] | None = None,
    replicates: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> PriorEstimates:
    """Both estimates with percentile-bootstrap intervals: sources and target are drawn anew in every replicate.

    source_priors (C,): what the model was trained on; None: the shares among the source labels. source_domains (n,):
    positions; None: one source. features: of the sources (n, d) and of the target (any number of its rows, d), to check
    whether label shift explains the target; None: the probabilities stand for them. Features must be of rows that the
    model was not trained on: those of training rows lie closer together than a new site's. untrained_features: likewise
    in a space that training did not shape; then label shift must explain the target in both.
    """
    count = len(classes)
    rng = np.random.default_rng(seed)
    source = (
        np.bincount(source_labels, minlength=count) / len(source_labels) if source_priors is None else source_priors
    )
    source = _prior("source priors", source, count)
    predicted, guessed = source_logits.argmax(axis=1), target_logits.argmax(axis=1)

    pairs = np.bincount(predicted * count + source_labels, minlength=count * count) / len(source_labels)
    confusion = pairs.reshape(count, count)
    shares = np.bincount(guessed, minlength=count) / len(guessed)
    bbse = bbse_priors(confusion, shares)
    em = em_priors(target_logits, source)

    drawn = rng.multinomial(len(source_labels), pairs, size=replicates) / len(source_labels)
    em_parts, share_parts = [], []
    at_once = max(1, _DRAWS // len(guessed))
    for start in range(0, replicates, at_once):
        # the same target rows for both estimates: how often each is drawn, (b, n)
        rows = rng.multinomial(
            len(guessed), np.full(len(guessed), 1.0 / len(guessed)), size=min(at_once, replicates - start)
        )
        share_parts += [np.bincount(guessed, row, minlength=count) / len(guessed) for row in rows]
        counts = rows.T.astype(np.float64)
        # a prior that was given is known; one that was counted is as uncertain as the count
        own = np.repeat(source[:, None], len(rows), axis=1)
        if source_priors is None:
            own = drawn.reshape(replicates, count, count).sum(axis=1)[start : start + len(rows)].T
            own = np.where(
                source[:, None] > 0, np.maximum(own, 0.5 / len(source_labels)), 0.0
            )  # half a sample at least
        em_parts.append(em_priors(target_logits, own, counts, start=em, tolerance=1e-5, iterations=300).T)
    bbse_drawn = bbse_priors(drawn.reshape(replicates, count, count), np.stack(share_parts))  # (B, C)
    em_drawn = np.concatenate(em_parts)  # (B, C)

    em_intervals, bbse_intervals = _intervals(em, em_drawn, confidence), _intervals(bbse, bbse_drawn, confidence)
    gaps = [max(a.low - b.high, b.low - a.high) for a, b in zip(em_intervals, bbse_intervals, strict=True)]
    seen = confusion.sum(axis=0) > 0
    domains = np.zeros_like(source_labels) if source_domains is None else source_domains
    spaces = [features or (softmax(source_logits, axis=1), softmax(target_logits, axis=1))]
    spaces += [] if untrained_features is None else [untrained_features]
    residuals = [label_shift_residual(a, source_labels, domains, b, em, seed=seed) for a, b in spaces]
    left, allowed = max(residuals, key=lambda found: found[0] / max(found[1], 1e-300))
    noise = estimator_noise(
        source_logits, source_labels, source_domains, source, min(len(guessed), _NOISE_ROWS), seed=seed
    )
    return PriorEstimates(
        classes=classes,
        source=tuple(source.tolist()),
        em=em_intervals,
        bbse=bbse_intervals,
        agree=max(gaps) <= _GAP,
        left=left,
        allowed=allowed,
        shift=total_variation(em, source),
        noise=noise,
        confidence=confidence,
        replicates=replicates,
        condition_number=min(float(np.linalg.cond(confusion[:, seen] / confusion.sum(axis=0)[seen])), 1e300),
    )


def estimator_noise(
    logits: Array,
    labels: Array,
    domains: Array | None,
    shares: Array,
    size: int,
    *,
    draws: int = 60,
    level: float = 0.05,
    seed: int = 0,
) -> float:
    """How far EM is from the truth on samples of one domain with known class shares: the (1 - level) quantile.

    logits (n, C), labels (n,), domains (n,) positions (None: one): of rows that the model was not trained on. shares
    (C,): of the classes in the samples, which are the model's prior too. size: rows of a sample. As total variation.

    >>> sure, unsure = 9.0 * np.eye(2), 0.1 * np.eye(2)
    >>> y = np.arange(200) % 2
    >>> noise = np.random.default_rng(0).normal(size=(200, 2))
    >>> [estimator_noise(z[y] + noise, y, None, np.array([0.5, 0.5]), 50) > 0.2 for z in (sure, unsure)]
    [False, True]
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(labels))[:_NOISE_ROWS]
    logits, labels = logits[rows], labels[rows]
    domains = np.zeros_like(labels) if domains is None else domains[rows]
    there = np.bincount(labels, minlength=len(shares)) > 0
    wanted = np.where(there, shares, 0.0)
    if wanted.sum() == 0:
        return 1.0
    wanted = wanted / wanted.sum()
    counted = np.unique(domains)
    counts = np.zeros((len(labels), max(draws, len(counted))))
    truth = rng.multinomial(size, wanted, size=counts.shape[1])
    for b in range(counts.shape[1]):
        own = domains == counted[b % len(counted)]
        for c in np.flatnonzero(truth[b]):
            of_class = np.flatnonzero((labels == c) & own)
            of_class = of_class if len(of_class) else np.flatnonzero(labels == c)
            np.add.at(counts[:, b], rng.choice(of_class, truth[b, c]), 1)
    found = em_priors(logits, shares, counts, tolerance=1e-5, iterations=300).T
    return float(np.quantile([total_variation(a, b) for a, b in zip(found, truth / size, strict=True)], 1 - level))


def total_variation(a: Array, b: Array) -> float:
    """Half of the sum of differences of two distributions over classes (C,): 0 if they are the same, at most 1.

    >>> total_variation(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    0.75
    """
    return float(np.abs(a - b).sum() / 2)


def label_shift_residual(
    sources: Array,
    labels: Array,
    domains: Array,
    target: Array,
    shares: Array,
    *,
    level: float = 0.05,
    draws: int = 99,
    seed: int = 0,
) -> tuple[float, float]:
    """(what label shift to ``shares`` leaves unexplained, how much of that is usual), as energy distances.

    sources (n, d), target (m, d): features; labels, domains (n,). Usual is the larger of: the largest residual of
    a source against the other sources; the (1 - level) quantile of samples of the target's size drawn from the sources,
    weighted to the shares.

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(300) % 2
    >>> p = np.clip(0.8 * np.eye(2)[y] + 0.1 + rng.normal(size=(300, 1)) * [0.05, -0.05], 0, 1)
    >>> left, allowed = label_shift_residual(p, y, np.arange(300) // 100, p[y == 0], np.array([1.0, 0.0]))
    >>> left <= allowed
    True
    """
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(sources))[:_RESIDUAL_ROWS]
    sources, labels, domains = sources[rows], labels[rows], domains[rows]
    target = target[rng.permutation(len(target))[:_RESIDUAL_ROWS]]
    among = _distances(sources, sources)

    def weighted(rows: Array, wanted: Array) -> Array:
        """Masses of the rows in which every class has its wanted share, as far as the rows have it."""
        counts = np.bincount(labels[rows], minlength=len(wanted))
        mass = (wanted / np.maximum(counts, 1))[labels[rows]]
        return mass / mass.sum() if mass.sum() > 0 else np.full(len(rows), 1.0 / len(rows))

    everything = np.arange(len(sources))
    mass = weighted(everything, shares)
    even = np.full(len(target), 1.0 / len(target))
    left = _energy(_distances(target, target), _distances(target, sources), among, even, mass)
    usual = []
    for k in np.unique(domains):
        own, others = np.flatnonzero(domains == k), np.flatnonzero(domains != k)
        if len(own) > 1 and len(others) > 1:
            wanted = np.bincount(labels[own], minlength=len(shares)) / len(own)
            flat = np.full(len(own), 1.0 / len(own))
            inner, across, outer = among[np.ix_(own, own)], among[np.ix_(own, others)], among[np.ix_(others, others)]
            usual.append(_energy(inner, across, outer, flat, weighted(others, wanted)))
    null = []
    for _ in range(draws):
        drawn = rng.choice(everything, len(target), p=mass)
        null.append(_energy(among[np.ix_(drawn, drawn)], among[drawn], among, even, mass))
    return left, max([float(np.quantile(null, 1 - level)), *usual])


def _distances(x: Array, y: Array) -> Array:
    squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None] - 2.0 * x @ y.T
    return np.sqrt(np.maximum(squared, 0.0))


def _energy(inner: Array, across: Array, outer: Array, a: Array, b: Array) -> float:
    """The energy distance without bias, from distances within (n, n), between (n, m), within (m, m) and masses."""
    one = float(a @ inner @ a) / max(1.0 - float(a @ a), 1e-12)
    other = float(b @ outer @ b) / max(1.0 - float(b @ b), 1e-12)
    return 2.0 * float(a @ across @ b) - one - other


def _intervals(values: Array, drawn: Array, confidence: float) -> tuple[Interval, ...]:
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    # the estimate itself always lies in its interval, also where clipping at zero makes the draws lopsided
    low, high = np.minimum(low, values), np.maximum(high, values)
    return tuple(Interval(float(v), float(a), float(b)) for v, a, b in zip(values, low, high, strict=True))
