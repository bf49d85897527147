"""Metrics against recorded figures, closed forms and scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, log_loss

from rcalign.errors import InputError
from rcalign.evaluation import metrics as m


def outputs(seed: int, n: int = 200, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal((n, classes)), rng.integers(classes, size=n)


def test_shot_accuracy_matches_the_recorded_figures(reference: Path) -> None:
    recorded = json.loads((reference / "parity/protocol/shot_accuracy.json").read_text())
    counts = [row["train_counts"] for row in recorded["domains"]]
    labels = np.concatenate([row["labels"] for row in recorded["domains"]])
    predicted = np.concatenate([row["preds"] for row in recorded["domains"]])
    domain = np.concatenate([np.full(len(row["labels"]), row["domain"]) for row in recorded["domains"]])
    thresholds = {"many": recorded["many_threshold"], "few": recorded["few_threshold"]}
    ours = m.shot_accuracy(predicted == labels, labels, domain, counts, **thresholds)
    theirs = recorded["over_all_domains"]
    assert ours == pytest.approx({**{k: theirs[k] for k in ("many", "few", "zero")}, "medium": theirs["median"]})
    for row in recorded["domains"]:  # one domain at a time: an empty group is None, the peer's empty list
        here = domain == row["domain"]
        alone = m.shot_accuracy((predicted == labels)[here], labels[here], domain[here], counts, **thresholds)
        for ours_name, their_name in (("many", "many"), ("medium", "median"), ("few", "few"), ("zero", "zero")):
            expected = np.mean(row[their_name]) if row[their_name] else None
            assert alone[ours_name] == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("count", "group"), [(0, "zero"), (1, "few"), (20, "few"), (21, "medium"), (100, "medium"), (101, "many")]
)
def test_shot_groups_at_the_thresholds(count: int, group: str) -> None:
    found = m.shot_accuracy([True], [0], [0], [[count]])
    assert found == {name: (1.0 if name == group else None) for name in ("many", "medium", "few", "zero")}


def test_a_pair_counts_once_however_many_rows_it_has() -> None:
    correct = [True] * 99 + [False]
    assert m.shot_accuracy(correct, [0] * 99 + [1], [0] * 100, [[500, 500]])["many"] == 0.5


def test_accuracy_balanced_accuracy_and_likelihood_match_scikit_learn() -> None:
    z, y = outputs(0)
    assert m.accuracy(z, y) == pytest.approx((z.argmax(1) == y).mean())
    assert m.balanced_accuracy(z, y) == pytest.approx(balanced_accuracy_score(y, z.argmax(1)))
    assert m.negative_log_likelihood(z, y) == pytest.approx(log_loss(y, m.softmax(z)))


def test_balanced_accuracy_leaves_absent_classes_out() -> None:
    z = np.eye(3)[[0, 0, 2]]
    assert m.balanced_accuracy(z, [0, 0, 0]) == pytest.approx(2 / 3)


def test_confusion_adds_up_to_accuracy() -> None:
    z, y = outputs(1)
    table = m.confusion(z.argmax(1), y, 4)
    assert table.sum() == len(y)
    assert np.trace(table) / len(y) == pytest.approx(m.accuracy(z, y))
    assert table.sum(1).tolist() == np.bincount(y, minlength=4).tolist()


def test_calibration_error_by_hand() -> None:
    # two bins of (0, .5], (.5, 1]: confidences .5 (right) and .9, .7 (right, wrong)
    probabilities = [[0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [0.7, 0.2, 0.1]]
    expected = (abs(1 - 0.5) * 1 + abs(0.5 - 0.8) * 2) / 3
    assert m.expected_calibration_error(probabilities, [0, 0, 1], bins=2) == pytest.approx(expected)


@pytest.mark.parametrize("bins", [1, 3, 10, 15])
def test_a_bin_edge_belongs_to_the_bin_below(bins: int) -> None:
    edges = np.arange(1, bins + 1) / bins
    edges = edges[edges >= 0.5]
    probabilities = np.stack([edges, 1 - edges], 1)
    # one row per bin: the error is the mean of each row's own gap
    expected = np.abs(1 - edges).mean()
    assert m.expected_calibration_error(probabilities, [0] * len(edges), bins) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.2, 5.0))
def test_temperature_undoes_a_scale_and_never_raises_the_loss(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((300, 3))
    y = np.array([rng.choice(3, p=row) for row in m.softmax(z)])
    plain, scaled = m.fit_temperature(z, y), m.fit_temperature(scale * z, y)
    assert scaled == pytest.approx(scale * plain, rel=1e-6)
    best = m.negative_log_likelihood(scale * z / scaled, y)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert best <= m.negative_log_likelihood(scale * z / (factor * scaled), y) + 1e-12


def test_temperature_at_the_ends_of_its_interval() -> None:
    z = np.array([[3.0, 0.0], [0.0, 3.0]])
    assert m.fit_temperature(z, [0, 1]) == m.TEMPERATURES[0]
    assert m.fit_temperature(z, [1, 0]) == m.TEMPERATURES[1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.accuracy(np.zeros((0, 3)), np.zeros(0, int)), "no rows"),
        (lambda: m.accuracy(np.zeros((2, 3)), [0]), "shape"),
        (lambda: m.accuracy(np.zeros((1, 3)), [3]), "0 to 2 is expected"),
        (lambda: m.accuracy([[np.nan, 0.0]], [0]), "diverged"),
        (lambda: m.accuracy([[1.0, 0.0]], [0.5]), "whole positions"),
        (lambda: m.expected_calibration_error([[2.0, -1.0]], [0]), "softmax"),
        (lambda: m.expected_calibration_error([[1.0, 0.0]], [0], bins=0), "at least 1"),
        (lambda: m.shot_accuracy([True], [0], [1], [[3]]), "domain"),
        (lambda: m.shot_accuracy([True], [0, 0], [0], [[3]]), "rows"),
        (lambda: m.shot_accuracy([True], [0], [0], [[3]], many=1, few=2), "many"),
        (lambda: m.shot_accuracy([True], [0], [0], [3]), "per domain"),
        (lambda: m.confusion([0], [0, 1], 2), "predictions"),
    ],
)
def test_wrong_input_is_said(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
