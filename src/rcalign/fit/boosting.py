"""Gradient boosting beside the networks: fitted on the same rows, saved without pickle, used by the same commands."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from rcalign.checkpoints import save_weights
from rcalign.data.batches import evaluation_batches
from rcalign.data.columns import UNSEEN, Encoding, Table, learn_encoding
from rcalign.data.source import Dataset
from rcalign.data.splits import split as make_splits
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH, evaluate_parts
from rcalign.fit.portfolio import PORTFOLIO
from rcalign.models.boosted_trees import ABOUT, BoostedTrees
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunFolder
from rcalign.training.job import prepare_run
from rcalign.training.loop import HowFar, run_result
from rcalign.training.options import TrainOptions

SETTINGS = ("learning_rate", "max_iter", "max_leaf_nodes", "min_samples_leaf", "l2_regularization")  # that are recorded


@dataclasses.dataclass(frozen=True, eq=False)
class FittedTrees:
    """trees: the model. encoding: of the columns. x: (n, c), all rows of the table as the trees read them."""

    trees: BoostedTrees
    encoding: Encoding
    x: np.ndarray
    rounds: int
    settings: Mapping[str, Any]


def fit_trees(dataset: Dataset, rows: np.ndarray, seed: int) -> FittedTrees:
    """scikit-learn's HistGradientBoosting with its own settings, fitted on some rows of a table.

    What is saved must compute what scikit-learn fitted: that is checked on all rows, to the bit.
    """
    assert isinstance(dataset.content, Table)
    encoding = learn_encoding(dataset.content, rows)
    x = encoding.read(dataset.content.raw)
    category = np.concatenate([[column.kind == "category"] * column.width for column in encoding.columns]).astype(bool)
    known = x.copy()
    known[:, category] = np.where(x[:, category] == UNSEEN, np.nan, x[:, category])
    fitted = HistGradientBoostingClassifier(categorical_features=category, random_state=seed)
    fitted.fit(known[rows], dataset.y[rows])
    trees = BoostedTrees.from_fitted(fitted, len(dataset.classes))
    ours = np.concatenate([trees.scores(part).numpy() for part in torch.from_numpy(x).split(4096)])
    if not (ours == fitted.decision_function(known).reshape(ours.shape)).all():
        raise InputError(
            "the trees of this version of scikit-learn are not walked as rcalign walks them: use the version in "
            "constraints.txt."
        )
    parameters = fitted.get_params()
    return FittedTrees(trees, encoding, x, fitted.n_iter_, {name: parameters[name] for name in SETTINGS})


def train_trees(
    dataset: Dataset, data: str, out: Path, *, seed: int, settings: Mapping[str, Any], progress: bool = False
) -> RunResult:
    """Fits the trees on every row and leaves a run folder, as the training of a network does."""
    folder = RunFolder(out)
    begun = time.perf_counter()
    splits = make_splits(dataset, "all", (), seed)
    # of a network's configuration, what is true of trees too: the data, its classes and counts
    options = TrainOptions(algorithm=PORTFOLIO[0].algorithm, seed=seed, **settings)
    made = prepare_run(options, dataset, data=data, splits=splits, progress=progress)
    found = fit_trees(dataset, np.arange(len(dataset)), seed)
    config = dataclasses.replace(
        made.config,
        algorithm=ABOUT.name,
        protocol="all",
        hparams=dict(found.settings),
        steps=found.rounds,
        evaluate_every=found.rounds,
        average=None,
        spec=dataclasses.replace(made.config.spec, input_shape=(found.x.shape[1],)),
        table=found.encoding.to_json(),
    )
    folder.begin(config, resume=folder.config_file.exists())
    try:
        save_weights(folder.best_file, found.trees.state_dict())
        parts = evaluate_parts(
            found.trees.predict,
            splits,
            dataset.y,
            lambda rows: evaluation_batches(found.x, rows, BATCH),
            len(dataset.classes),
        )
        at = HowFar(found.rounds, found.rounds, seconds=time.perf_counter() - begun)
        result = run_result(parts, config, at, f"all {found.rounds} rounds of trees", dataset.shots)
        folder.finish(result)
    finally:
        folder.release()
    return result
