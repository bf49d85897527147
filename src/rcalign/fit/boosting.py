"""Gradient boosting beside the networks, fitted on the same rows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from rcalign.data.columns import UNSEEN, Encoding, Table, learn_encoding
from rcalign.data.source import Dataset
from rcalign.errors import InputError
from rcalign.models.boosted_trees import BoostedTrees

SETTINGS = ("learning_rate", "max_iter", "max_leaf_nodes", "min_samples_leaf", "l2_regularization")  # that are recorded
FIRST_ROUNDS = 10  # of trees, that are made whatever the time
THIRD = 3.0  # times as long as all rounds should take must be left to fit them at once


@dataclasses.dataclass(frozen=True, eq=False)
class FittedTrees:
    """trees: the model. encoding: of the columns. x: (n, c), all rows of the table as the trees read them."""

    trees: BoostedTrees
    encoding: Encoding
    x: np.ndarray
    rounds: int
    settings: Mapping[str, Any]
    cut: bool = False  # by time


def expected_seconds(dataset: Dataset) -> float:
    """The seconds that a fold may take before one was measured: trees are fitted to each class, to one of two.

    From what folds took on one core: 0.5 s with 20,000 rows of 10 columns and 3 classes, 4 s with 200,000 rows of 30
    columns and 2 classes.
    """
    assert isinstance(dataset.content, Table)
    outputs = len(dataset.classes) if len(dataset.classes) > 2 else 1
    return 0.5 + dataset.content.x.size * (2 + outputs) / 5e6


def fit_trees(
    dataset: Dataset, rows: np.ndarray, seed: int, seconds_left: Callable[[], float] | None = None
) -> FittedTrees:
    """scikit-learn's HistGradientBoosting with its own settings, fitted on some rows of a table.

    seconds_left: until when it must have ended, with as many rounds of trees as there is time for (``fit_in_time``).
    What is saved must compute what scikit-learn fitted: that is checked on all rows, to the bit.
    """
    assert isinstance(dataset.content, Table)
    encoding = learn_encoding(dataset.content, rows)
    x = encoding.read(dataset.content)
    category = np.concatenate([[column.kind == "category"] * column.width for column in encoding.columns]).astype(bool)
    known = x.copy()
    known[:, category] = np.where(x[:, category] == UNSEEN, np.nan, x[:, category])
    fitted = HistGradientBoostingClassifier(categorical_features=category, random_state=seed)
    cut = fit_in_time(fitted, known[rows], dataset.y[rows], seconds_left)
    trees = BoostedTrees.from_fitted(fitted, len(dataset.classes))
    ours = trees.scores(torch.from_numpy(x)).numpy()
    if not (ours == fitted.decision_function(known).reshape(ours.shape)).all():
        raise InputError(
            "the trees of this version of scikit-learn are not walked as rcalign walks them: use the version in "
            "constraints.txt."
        )
    parameters = fitted.get_params()
    return FittedTrees(trees, encoding, x, fitted.n_iter_, {name: parameters[name] for name in SETTINGS}, cut)


def fit_in_time(
    model: HistGradientBoostingClassifier,
    x: np.ndarray,
    y: np.ndarray,
    seconds_left: Callable[[], float] | None = None,
) -> bool:
    """Fits all rounds of trees, or as many as there is time for, but at least ten. -> whether time was up before.

    scikit-learn cannot be stopped inside a fit, but goes on with one (``warm_start``) to the same trees, to the bit.
    So a few rounds are fitted and timed, then the rest if that takes a third of the time left, else as many as take
    half of it, and so on.
    """
    most = model.max_iter
    if seconds_left is None:
        model.fit(x, y)
        return False
    begun, wanted = time.monotonic(), min(FIRST_ROUNDS, most)
    model.set_params(warm_start=True)
    while True:
        model.set_params(max_iter=wanted).fit(x, y)
        made = model.n_iter_
        if made < wanted or made >= most:  # stopped early by its own rule, or whole
            cut = False
            break
        per_round = (time.monotonic() - begun) / made
        left, rest = seconds_left(), most - made
        more = rest if THIRD * per_round * rest <= left else min(rest, int(left / (2 * per_round)))
        if more < 1:
            cut = True
            break
        wanted = made + more
    model.set_params(max_iter=most, warm_start=False)
    return cut
