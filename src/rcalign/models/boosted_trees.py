"""Gradient-boosted trees as a network of fixed arrays: what scikit-learn fitted, without scikit-learn's pickles.

scikit-learn saves its models with pickle only, and reading a pickle runs whatever code it holds. Here the nodes of all
trees are tensors, saved as safetensors like any other weights, and walked by a compiled loop or, on other devices and
in exported files, by torch operations: either way the scores have the same bits as scikit-learn's.

A row starts at node 0 of every tree. At a node that splits a number it goes left if value <= threshold, at one that
splits a category if the category is in the node's set; where the value is missing (NaN, or a category below 0, which is
one that training did not have), where training sent missing values. The score of a class is a baseline plus the
values of the leaves it arrives at, added up in the order of the trees.

Paper: Ke et al., LightGBM: A Highly Efficient Gradient Boosting Decision Tree (2017), as scikit-learn implements it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rcalign.errors import InputError
from rcalign.registry import Description, Traits

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

ABOUT = Description(
    name="Gradient boosting",
    summary="adds up small decision trees, each fitted to what those before it got wrong; knows nothing of domains",
    paper="Ke et al., LightGBM (2017), by scikit-learn's HistGradientBoostingClassifier",
    family="baseline",
)
ABSENT = float(np.log(1e-6))  # the log probability of a class that training did not have
SET_BITS = 256  # categories of a column that scikit-learn can tell apart


class BoostedTrees(nn.Module):
    """T trees of at most M nodes, ``classes`` (K,) of all C classes, I = T / K rounds (with two classes K = 1).

    nodes: ``feature``, ``left``, ``right``, ``category_set`` (T, M) int64 (-1: the node splits a number), ``threshold``
    and ``value`` (T, M) float64, ``missing_left`` (T, M) bool; ``sets`` (S, 256) bool; ``baseline`` (K,) float64;
    ``classes`` int64; ``shape`` (2,): C and the depth of the deepest tree. A leaf is its own child.

    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> x = np.random.default_rng(0).normal(size=(60, 2))
    >>> fitted = HistGradientBoostingClassifier(max_iter=5).fit(x, (x[:, 0] > 0).astype(int))
    >>> trees = BoostedTrees.from_fitted(fitted, classes=2)
    >>> bool((trees.scores(torch.from_numpy(x))[:, 0].numpy() == fitted.decision_function(x)).all())
    True
    >>> trees(torch.from_numpy(x))[1].shape
    torch.Size([60, 2])
    """

    name = ABOUT.name
    traits = Traits()

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    value: Tensor
    category_set: Tensor
    sets: Tensor
    baseline: Tensor
    classes: Tensor
    shape: Tensor

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        missing = [name for name in ARRAYS if name not in arrays]
        if missing:
            raise InputError(f"the file of trees has no array '{missing[0]}': restore the file, or fit again.")
        for name in ARRAYS:
            self.register_buffer(name, arrays[name])
        self._check()
        self._num_classes, self._depth = (int(number) for number in self.shape)
        self._columns = int(self.feature.max()) + 1

    def _check(self) -> None:
        """A file that was changed must not make a row walk out of its arrays."""
        trees, nodes = self.value.shape
        inside = all(bool(((child >= 0) & (child < nodes)).all()) for child in (self.left, self.right))
        sets = bool((self.category_set < len(self.sets)).all()) and bool((self.feature >= 0).all())
        rounds = len(self.baseline) > 0 and trees % len(self.baseline) == 0
        known = bool(((self.classes >= 0) & (self.classes < self.shape[0])).all())
        if not (inside and sets and rounds and known):
            raise InputError(
                "the file of trees is damaged (a node, a set or a class is out of range): restore it, or fit again."
            )

    @classmethod
    def from_fitted(cls, fitted: HistGradientBoostingClassifier, classes: int) -> BoostedTrees:
        """The trees of a fitted classifier whose labels are among 0 ... classes - 1."""
        rounds: Any = fitted._predictors
        predictors = [tree for trees in rounds for tree in trees]
        order = _column_order(fitted)
        most = max(len(tree.nodes) for tree in predictors)
        size = (len(predictors), most)
        own = np.broadcast_to(np.arange(most), size)
        arrays = {
            "feature": np.zeros(size, np.int64),
            "threshold": np.zeros(size),
            "left": own.copy(),
            "right": own.copy(),
            "missing_left": np.zeros(size, bool),
            "value": np.zeros(size),
            "category_set": np.full(size, -1),
        }
        sets: list[np.ndarray] = [np.zeros(SET_BITS, bool)]  # one at least: an array that is looked into has rows
        for t, tree in enumerate(predictors):
            nodes = tree.nodes
            n, inner = len(nodes), nodes["is_leaf"] == 0
            arrays["value"][t, :n] = nodes["value"]
            arrays["feature"][t, :n] = np.where(inner, order[np.where(inner, nodes["feature_idx"], 0)], 0)
            arrays["threshold"][t, :n] = np.where(inner, nodes["num_threshold"], 0.0)
            arrays["missing_left"][t, :n] = nodes["missing_go_to_left"] == 1
            for side in ("left", "right"):
                arrays[side][t, :n] = np.where(inner, nodes[side], np.arange(n))
            for position in np.flatnonzero(inner & (nodes["is_categorical"] == 1)):
                arrays["category_set"][t, position] = len(sets)
                words = tree.raw_left_cat_bitsets[nodes["bitset_idx"][position]]
                sets.append(np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), bitorder="little") == 1)
        depth = max(int(tree.nodes["depth"].max()) for tree in predictors)
        return cls(
            {
                **{name: torch.from_numpy(values) for name, values in arrays.items()},
                "sets": torch.from_numpy(np.stack(sets)),
                "baseline": torch.from_numpy(np.asarray(fitted._baseline_prediction, np.float64).reshape(-1).copy()),
                "classes": torch.from_numpy(np.asarray(fitted.classes_, np.int64).copy()),
                "shape": torch.tensor([classes, depth]),
            }
        )

    def scores(self, x: Tensor) -> Tensor:
        """x (n, c) float64: numbers, and categories as their positions -> raw scores (n, K)."""
        if x.device.type != "cpu" or type(x) is not Tensor or torch.jit.is_tracing():  # a subclass: being exported
            return self._scores_by_operations(x)
        from rcalign.models.tree_kernels import walk  # here and not above: compiled when it is needed

        if x.shape[1] < self._columns:
            raise InputError(f"the trees split {self._columns} columns, but the rows have {x.shape[1]}.")
        scores = self.baseline.repeat(len(x), 1)
        nodes = (getattr(self, name).numpy() for name in NODES)
        walk(x.contiguous().numpy(), *nodes, self.sets.numpy(), self._depth, scores.numpy())
        return scores

    def _scores_by_operations(self, x: Tensor) -> Tensor:
        # x.shape[0], not len(x): an exported graph takes any number of rows
        start = torch.arange(len(self.value), device=x.device) * self.value.shape[1]  # where a tree's nodes begin
        node = start.expand(x.shape[0], -1)
        flat = {name: getattr(self, name).reshape(-1) for name in NODES}
        for _ in range(self._depth):
            values = torch.gather(x, 1, flat["feature"][node])
            group = flat["category_set"][node]
            is_category = group >= 0
            missing = torch.isnan(values) | (is_category & (values < 0))
            code = torch.nan_to_num(values, nan=0.0).clamp(0, SET_BITS - 1).long()
            in_set = self.sets.reshape(-1)[group.clamp(min=0) * SET_BITS + code]
            # and, or, not: ONNX Runtime has no "where" for truth values
            goes_left = (is_category & in_set) | (~is_category & (values <= flat["threshold"][node]))
            goes_left = (missing & flat["missing_left"][node]) | (~missing & goes_left)
            node = torch.where(goes_left, flat["left"][node], flat["right"][node]) + start
        rounds = len(self.value) // len(self.baseline)
        leaves = flat["value"][node].view(x.shape[0], rounds, len(self.baseline))
        first = self.baseline.expand(x.shape[0], 1, -1)
        return torch.cumsum(torch.cat([first, leaves], 1), 1)[:, -1]  # one after the other, as scikit-learn adds

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (n, c) float64 -> raw scores (n, K) and logits (n, C) float32, the log probabilities of all classes."""
        scores = self.scores(x)
        known = scores if scores.shape[1] > 1 else torch.cat([torch.zeros_like(scores), scores], 1)
        known = torch.log_softmax(known, 1).clamp(min=ABSENT)
        if len(self.classes) == self._num_classes:
            return scores, known.float()
        logits = torch.full((x.shape[0], self._num_classes), ABSENT, dtype=known.dtype, device=x.device)
        return scores, logits.index_copy(1, self.classes, known).float()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logits (n, C)."""
        return self(x)[1]


NODES = ("feature", "threshold", "left", "right", "missing_left", "value", "category_set")
ARRAYS = (*NODES, "sets", "baseline", "classes", "shape")


def _column_order(fitted: HistGradientBoostingClassifier) -> np.ndarray:
    """Column of the data for each feature of the trees: scikit-learn moves the categories to the front."""
    mask = fitted.is_categorical_
    if mask is None:
        return np.arange(fitted.n_features_in_)
    return np.concatenate([np.flatnonzero(mask), np.flatnonzero(~np.asarray(mask))])
