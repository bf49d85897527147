"""Priors of an unlabelled target, and predictions that use them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rcalign.diagnosis.priors import adapt_priors, bbse_priors, em_priors, estimate_priors
from rcalign.errors import InputError

MEANS = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])


def sample(rng: np.random.Generator, n: int, prior: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and the logits of the Bayes classifier for uniform priors."""
    labels = rng.choice(3, n, p=prior)
    x = rng.normal(size=(n, 2)) + MEANS[labels]
    return labels, x @ MEANS.T - 0.5 * (MEANS**2).sum(1)


def estimated(seed: int, prior: list[float], n: int = 1500) -> tuple[object, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    source_labels, source_logits = sample(rng, n, [1 / 3] * 3)
    target_labels, target_logits = sample(rng, n, prior)
    found = estimate_priors(
        source_logits, source_labels, target_logits, classes=("a", "b", "c"), seed=seed, replicates=100
    )
    return found, target_labels, target_logits


def test_label_shift_is_recovered() -> None:
    truth = [0.7, 0.25, 0.05]
    found, labels, logits = estimated(0, truth)
    for intervals in (found.em, found.bbse):
        assert [i.value for i in intervals] == pytest.approx(truth, abs=0.04)
        assert sum(i.value for i in intervals) == pytest.approx(1.0)
        assert all(i.low <= i.value <= i.high for i in intervals)
    assert found.agree
    before = (logits.argmax(1) == labels).mean()
    adapted = adapt_priors(logits, found.source, [i.value for i in found.em])
    assert (adapted.argmax(1) == labels).mean() > before + 0.01


def test_the_intervals_cover() -> None:
    truth = [0.6, 0.3, 0.1]
    covered = []
    for seed in range(40):
        found = estimated(seed, truth, n=400)[0]
        covered += [i.low <= t <= i.high for i, t in zip(found.bbse, truth, strict=True)]
        covered += [i.low <= t <= i.high for i, t in zip(found.em, truth, strict=True)]
    assert np.mean(covered) >= 0.88  # 95 % nominal; 240 correlated trials


def test_a_model_that_is_never_wrong_is_believed() -> None:
    """Its intervals have hardly any width, and must not be taken for apart."""
    rng = np.random.default_rng(0)
    labels, new = rng.choice(3, 200), rng.choice([0, 2], 100)
    logits = [12 * np.eye(3)[y] + rng.normal(size=(len(y), 3)) for y in (labels, new)]
    found = estimate_priors(logits[0], labels, logits[1], classes=("a", "b", "c"), replicates=50)
    assert found.agree and found.differ and found.noise < 0.01


def test_no_shift_stays_no_shift() -> None:
    found = estimated(3, [1 / 3] * 3)[0]
    assert [i.value for i in found.em] == pytest.approx([1 / 3] * 3, abs=0.04)


def test_features_that_moved_make_the_two_disagree() -> None:
    rng = np.random.default_rng(5)
    source_labels, source_logits = sample(rng, 1500, [1 / 3] * 3)
    x = 0.3 * rng.normal(size=(1500, 2)) + [1.4, 1.0]  # a cloud that no class of the sources looks like
    target = x @ MEANS.T - 0.5 * (MEANS**2).sum(1)
    found = estimate_priors(source_logits, source_labels, target, classes=("a", "b", "c"), replicates=100)
    assert not found.agree


def test_em_with_weights_is_em_on_repeated_rows() -> None:
    rng = np.random.default_rng(6)
    logits = sample(rng, 40, [0.5, 0.3, 0.2])[1]
    counts = rng.integers(0, 4, 40)
    source = np.array([0.2, 0.3, 0.5])
    weighted = em_priors(logits, source, counts[:, None].astype(float))[:, 0]
    np.testing.assert_allclose(weighted, em_priors(np.repeat(logits, counts, axis=0), source), atol=1e-6)


def test_em_climbs_the_likelihood() -> None:
    rng = np.random.default_rng(7)
    logits = sample(rng, 300, [0.6, 0.3, 0.1])[1]
    source = np.full(3, 1 / 3)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    def likelihood(prior: np.ndarray) -> float:
        return float(np.log((p / source) @ prior).mean())

    best = em_priors(logits, source)
    for other in rng.dirichlet(np.ones(3), size=200):
        assert likelihood(other) <= likelihood(best) + 1e-7


def test_a_class_that_is_never_predicted_does_not_break_it() -> None:
    confusion = np.array([[0.5, 0.2, 0.3], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    prior = bbse_priors(confusion, np.array([1.0, 0.0, 0.0]))
    assert np.isfinite(prior).all() and prior.sum() == pytest.approx(1.0)


def test_a_class_without_source_samples_keeps_prior_zero() -> None:
    logits = np.array([[1.0, 0.0, 0.5]] * 10)
    assert em_priors(logits, np.array([0.5, 0.0, 0.5]))[1] == 0.0
    found = estimate_priors(logits, np.array([0, 2] * 5), logits, classes=("a", "b", "c"), replicates=5)
    assert found.em[1].value == found.bbse[1].value == 0.0


def test_adapting_is_bayes() -> None:
    rng = np.random.default_rng(8)
    logits, source, target = rng.normal(size=(5, 3)), np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.1, 0.8])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = p * target / source
    adapted = np.exp(adapt_priors(logits, source, target))
    np.testing.assert_allclose(adapted / adapted.sum(1, keepdims=True), expected / expected.sum(1, keepdims=True))
    assert np.isfinite(adapt_priors(logits, source, [1.0, 0.0, 0.0])).all()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([0.5, 0.5], [0.2, 0.3, 0.5], r"have shape \(2,\), but there are 3 classes"),
        ([0.5, 0.3, 0.2], [0.5, 0.5, 0.5], "add up to 1.5"),
        ([0.5, 0.5, 0.0], [0.2, 0.3, 0.5], "never learned"),
        ([0.5, 0.6, -0.1], [0.2, 0.3, 0.5], "expected numbers from 0 to 1"),
    ],
)
def test_bad_priors(source: list[float], target: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapt_priors(np.zeros((2, 3)), source, target)


def site(seed: int, moved: float) -> tuple[bool, float, float]:
    """A model of four sources on a new site with other class shares, and with looks ``moved`` from the sources':
    (is the estimate trusted, accuracy as it is, accuracy adapted)."""
    rng = np.random.default_rng(seed)
    means, offsets = 1.3 * rng.normal(size=(3, 6)), 0.5 * rng.normal(size=(4, 6))
    domain = np.repeat(np.arange(4), 240)
    y = np.concatenate([rng.choice(3, 240, p=rng.dirichlet(np.full(3, 5.0))) for _ in range(4)])
    x = rng.normal(size=(960, 6)) + means[y] + offsets[domain]
    train = np.arange(960) % 2 == 0
    model = LogisticRegression(max_iter=500).fit(x[train], y[train])
    labels = rng.choice(3, 300, p=rng.dirichlet(np.full(3, 0.7)))
    new = rng.normal(size=(300, 6)) + means[labels] + (offsets[rng.integers(4)] if not moved else 0)
    new += moved * (rng.normal(size=6) + rng.normal(size=(3, 6))[labels])
    source = np.bincount(y[train], minlength=3) / train.sum()
    logits = model.decision_function(new)
    found = estimate_priors(
        model.decision_function(x[~train]),
        y[~train],
        logits,
        classes=("a", "b", "c"),
        source_priors=source,
        source_domains=domain[~train],
        features=(x[~train], new),
        replicates=60,
        seed=seed,
    )
    shares = np.array([one.value for one in found.em])
    adapted = adapt_priors(logits, source, shares / shares.sum())
    return found.doubt is None and found.differ, *((scores.argmax(1) == labels).mean() for scores in (logits, adapted))


def weak_site(seed: int, scale: float, rows: int) -> tuple[bool, bool, float]:
    """A model of six classes, ``scale`` apart, on few rows of a new site that looks a little different: (is there no
    other doubt, are the shares used, what using them changes in accuracy)."""
    rng = np.random.default_rng(seed)
    means, offsets = scale * rng.normal(size=(6, 6)), 0.5 * rng.normal(size=(5, 6))
    domain, y = np.repeat(np.arange(4), 150), rng.integers(6, size=600)
    x = rng.normal(size=(600, 6)) + means[y] + offsets[domain]
    left_out = np.zeros((600, 6))
    for k in range(4):
        fitted = LogisticRegression(max_iter=300).fit(x[domain != k], y[domain != k])
        left_out[domain == k] = fitted.decision_function(x[domain == k])
    model = LogisticRegression(max_iter=300).fit(x, y)
    labels = rng.choice(6, rows, p=rng.dirichlet(np.full(6, 5.0)))
    new = rng.normal(size=(rows, 6)) + means[labels] + offsets[4]
    source = np.bincount(y, minlength=6) / 600
    logits = model.decision_function(new)
    found = estimate_priors(
        left_out,
        y,
        logits,
        classes=tuple("abcdef"),
        source_priors=source,
        source_domains=domain,
        features=(x, new),
        replicates=40,
        seed=seed,
    )
    shares = np.array([one.value for one in found.em])
    adapted = adapt_priors(logits, source, shares / shares.sum())
    change = (adapted.argmax(1) == labels).mean() - (logits.argmax(1) == labels).mean()
    without = dataclasses.replace(found, noise=0.0).doubt is None
    return without, found.doubt is None and found.differ, change


def test_a_model_that_knows_little_is_not_adapted_by_few_samples() -> None:
    sites = [weak_site(seed, scale, rows) for scale, rows in ((0.4, 40), (0.8, 100)) for seed in range(8)]
    plausible = [change for without, _, change in sites if without]
    assert len(plausible) >= 8 and np.mean(plausible) < -0.03, "nothing else raises doubt, and using them does harm"
    assert sum(used for _, used, _ in sites) <= 1


def test_shares_are_trusted_where_only_they_changed() -> None:
    only_shares = [site(seed, 0.0) for seed in range(15)]
    assert np.mean([trusted for trusted, *_ in only_shares]) >= 0.6
    assert np.mean([after - before for trusted, before, after in only_shares if trusted]) > 0.005
    moved = [site(seed, 1.5) for seed in range(15)]
    assert np.mean([trusted for trusted, *_ in moved]) <= 0.1
    assert min(after - before for _, before, after in moved) < -0.05  # what is prevented
