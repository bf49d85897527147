"""Data frames with raw columns, and weights of rows and classes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from rcalign import DomainClassifier
from rcalign.data.batches import Batches
from rcalign.data.source import Arrays
from rcalign.errors import InputError

LIBRARIES = ["pandas", "polars"]


def columns(rows: int = 240, seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.4
    return {
        "site": rng.choice(["a", "b", "c"], rows).tolist(),
        "marker": [float(v) if rng.random() > 0.1 else None for v in rng.normal(3.0 * ill)],
        "smoker": [str(v) for v in rng.choice(["no", "yes"], rows)],
        "code": rng.integers(0, 5, rows).tolist(),
    }, np.where(ill, "ill", "well")


def frame(library: str, values: dict[str, Any]) -> Any:
    return pytest.importorskip(library).DataFrame(values)


@pytest.mark.parametrize("library", LIBRARIES)
def test_raw_columns_and_the_domain_by_name(library: str) -> None:
    values, y = columns()
    model = DomainClassifier("erm", steps=40, domains="site").fit(frame(library, values), y)
    assert model.domains_.tolist() == ["a", "b", "c"]
    assert model.feature_names_in_.tolist() == ["marker", "smoker", "code"] and model.n_features_in_ == 3
    fresh, truth = columns(seed=1)
    del fresh["site"]  # the next site has none of these names
    fresh["smoker"][0] = "sometimes"  # nor need it have the same categories
    fresh["more"] = [0] * 240
    assert model.score(frame(library, fresh), truth) > 0.85
    again = DomainClassifier("erm", steps=40).fit(
        frame(library, {k: v for k, v in values.items() if k != "site"}), y, domains=np.array(values["site"])
    )
    assert np.array_equal(again.predict_proba(frame(library, fresh)), model.predict_proba(frame(library, fresh)))


def test_wrong_frames_are_said() -> None:
    values, y = columns()
    data = frame("pandas", values)
    with pytest.raises(InputError, match="did you mean 'site'"):
        DomainClassifier("erm", steps=2, domains="sit").fit(data, y)
    with pytest.raises(InputError, match="given twice"):
        DomainClassifier("erm", steps=2, domains="site").fit(data, y, domains=values["site"])
    with pytest.raises(InputError, match="no data frame"):
        DomainClassifier("erm", steps=2, domains="site").fit(np.zeros((4, 2)), [0, 1, 0, 1])
    model = DomainClassifier("erm", steps=2, domains="site").fit(data, y)
    with pytest.raises(InputError, match=r"lacks the column 'marker'.*may be its 'Marker'"):
        model.predict(data.rename(columns={"marker": "Marker"}))
    with pytest.raises(InputError, match="give one with the same columns"):
        model.predict(np.zeros((3, 3)))


def test_a_frame_of_numbers_is_the_array_that_it_is() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    as_frame = frame("pandas", {name: X[:, k] for k, name in enumerate("abc")})
    domains = np.arange(60) % 3
    first = DomainClassifier("erm", steps=5).fit(X, y, domains=domains)
    second = DomainClassifier("erm", steps=5).fit(as_frame, y, domains=domains)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(first.predict_proba(X), second.predict_proba(as_frame))


def test_rows_are_drawn_in_proportion_to_their_weights() -> None:
    content, y = Arrays(np.zeros((40, 1), np.float32)), np.arange(40) % 2
    weights = np.r_[np.zeros(10), np.ones(10), np.full(10, 3.0), np.ones(10)]
    rows = [np.arange(20), np.arange(20, 40)]
    for balanced in (False, True):
        batches = Batches(content, y, rows, 500, seed=0, weights=weights, balanced=balanced)
        first, second = (np.bincount(part, minlength=40) for part in batches.indices(0))
        assert first[:10].sum() == 0 and (first[10:20] > 0).all()
        assert second[20:30].sum() / second[30:40].sum() == pytest.approx(3, rel=0.2)
        assert first.sum() == second.sum() == 500, "every domain is drawn alike often"


def test_weights_move_the_prediction_and_zero_means_absent() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), np.arange(200) % 2
    domains = np.repeat(["u", "v"], 100)

    def share(**given: Any) -> float:
        weight = given.pop("sample_weight", None)
        model = DomainClassifier("erm", steps=40, **given).fit(X, y, domains=domains, sample_weight=weight)
        return float((model.predict(X) == 1).mean())

    assert share(class_weight={0: 1.0, 1: 20.0}) > 0.9 > 0.1 > share(class_weight={0: 20.0, 1: 1.0})
    assert share(sample_weight=np.where(y == 1, 20.0, 1.0)) > 0.9
    kept = np.arange(200) % 4 < 2
    absent = DomainClassifier("erm", steps=10).fit(X[kept], y[kept], domains=domains[kept])
    zero = DomainClassifier("erm", steps=10).fit(X, y, domains=domains, sample_weight=kept.astype(float))
    assert zero.domains_.tolist() == ["u", "v"] and zero.classes_.tolist() == [0, 1]
    assert absent.validation_score_ == pytest.approx(zero.validation_score_, abs=0.25)
    with pytest.raises(ValueError, match="egative"):
        share(sample_weight=np.full(200, -1.0))
    with pytest.raises(ValueError, match="zero"):
        share(sample_weight=np.zeros(200))
