"""Trees out of scikit-learn compute what scikit-learn computes, to the bit, and come back from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier

from rcalign.checkpoints import load_weights, save_weights
from rcalign.errors import InputError
from rcalign.models.boosted_trees import ABSENT, BoostedTrees

CATEGORY = np.array([False, True, False, True, False])


def rows(n: int, seed: int) -> np.ndarray:
    """Numbers and categories (of 70 values: more than 64 bits) with gaps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).round(2)  # values that repeat lie on thresholds
    x[:, CATEGORY] = rng.integers(0, 70, (n, 2))
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def fitted(classes: list[int], categories: bool = True) -> HistGradientBoostingClassifier:
    x = rows(600, seed=0)
    signal = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1]) % 5 + (np.isnan(x[:, 2]))
    y = np.array(classes)[(3 * signal).astype(int) % len(classes)]
    options = {"categorical_features": CATEGORY} if categories else {}
    return HistGradientBoostingClassifier(max_iter=12, random_state=0, **options).fit(x, y)


@pytest.mark.parametrize("categories", [True, False])
@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2], [0, 2, 5]], ids=["two", "three", "three of six"])
def test_scores_have_the_same_bits(classes: list[int], categories: bool, tmp_path: Path) -> None:
    model = fitted(classes, categories)
    save_weights(tmp_path / "trees.safetensors", BoostedTrees.from_fitted(model, 6).state_dict())
    trees = BoostedTrees(load_weights(tmp_path / "trees.safetensors"))
    x = rows(300, seed=1)
    expected = model.decision_function(x).reshape(300, -1)
    assert (trees.scores(torch.from_numpy(x)).numpy() == expected).all()
    found = torch.softmax(trees.predict(torch.from_numpy(x)).double(), 1).numpy()
    np.testing.assert_allclose(found[:, classes], model.predict_proba(x), atol=1e-5)
    absent = [k for k in range(6) if k not in classes]
    assert found[:, absent].max() < 2e-6 and trees.predict(torch.from_numpy(x))[:, absent].max() <= ABSENT + 1e-5


def test_a_category_that_training_did_not_have_is_a_gap() -> None:
    trees = BoostedTrees.from_fitted(fitted([0, 1, 2]), 3)
    x = rows(100, seed=2)
    gap, unseen = x.copy(), x.copy()
    gap[:, CATEGORY], unseen[:, CATEGORY] = np.nan, -1.0
    assert torch.equal(trees.scores(torch.from_numpy(gap)), trees.scores(torch.from_numpy(unseen)))


@pytest.mark.parametrize("name", ["left", "category_set", "classes"])
def test_a_damaged_file_is_refused(name: str) -> None:
    arrays = BoostedTrees.from_fitted(fitted([0, 1, 2]), 3).state_dict()
    with pytest.raises(InputError, match="damaged"):
        BoostedTrees({**arrays, name: arrays[name] + 10_000})
    with pytest.raises(InputError, match=f"no array '{name}'"):
        BoostedTrees({key: value for key, value in arrays.items() if key != name})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 600), classes=st.integers(2, 4), categories=st.booleans())
def test_the_loop_and_the_operations_walk_alike(seed: int, rows: int, classes: int, categories: bool) -> None:
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(200, 3))
    known[:, 1] = rng.integers(0, 6, 200)
    known[rng.random((200, 3)) < 0.1] = np.nan
    y = rng.integers(0, classes, 200)
    fitted = HistGradientBoostingClassifier(
        max_iter=4, categorical_features=[1] if categories else None, min_samples_leaf=3
    ).fit(known, y)
    trees = BoostedTrees.from_fitted(fitted, classes)
    x = rng.normal(size=(rows, 3)) * 3
    x[:, 1] = rng.integers(-2, 9, rows)  # also categories that training did not have
    x[rng.random((rows, 3)) < 0.2] = np.nan
    x[rng.random((rows, 3)) < 0.05] = np.inf
    given_rows = torch.from_numpy(x)
    assert torch.equal(trees.scores(given_rows), trees._scores_by_operations(given_rows))


def test_too_few_columns_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    fitted = HistGradientBoostingClassifier(max_iter=3).fit(x, (x[:, 3] > 0).astype(int))
    with pytest.raises(InputError, match="the rows have 3"):
        BoostedTrees.from_fitted(fitted, 2).scores(torch.from_numpy(x[:, :3].copy()))
