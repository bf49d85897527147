"""scikit-learn's face: a classifier that is told each row's domain when it is fitted, and splitters that know domains.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> y, domains = np.arange(120) % 2, np.repeat(["north", "south", "east"], 40)
>>> X = rng.normal(size=(120, 4)) + 2 * y[:, None]
>>> model = DomainClassifier("rc-align", steps=20).fit(X, y, domains=domains)
>>> model.predict(X[:2]).tolist(), model.predict_proba(X).shape, model.transform(X).shape
([0, 1], (120, 2), (120, 256))
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry, spaces
from rcalign.data.cache import open_images
from rcalign.data.column_encoder import encode_columns
from rcalign.data.columns import Encoding, Table, is_gap, read_columns
from rcalign.data.source import Arrays, Dataset, fingerprint
from rcalign.data.sources.arrays import from_arrays
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.data.sources.table import Roles, frame_columns, infer_columns, is_frame
from rcalign.data.splits import Splits, mdlt_rule
from rcalign.data.stream import decoded_batches
from rcalign.errors import InputError, unknown
from rcalign.evaluation.evaluate import BATCH
from rcalign.evaluation.metrics import softmax
from rcalign.registry import RegisteredAlgorithm
from rcalign.store.run_folder import RunFolder
from rcalign.training.callbacks import make_callbacks
from rcalign.training.job import prepare_run
from rcalign.training.loop import Interrupted
from rcalign.training.options import TrainOptions, described, in_estimators
from rcalign.training.run import complete, hparams_of
from rcalign.training.trained import TrainedModel

EVALUATIONS = 5  # among whose checkpoints the validation rows choose
PLAIN = "ERM"  # what is left of a method of several domains when there are none


_PARAMETERS: dict[str, Any] = {  # name -> default
    **{name: described()[name].default for name in in_estimators()},
    "algorithm": "rc-align",
    "steps": 300,
    "domains": None,
    "class_weight": None,
    "validation_fraction": 0.2,
    "random_state": 0,
    "callbacks": None,
    "verbose": False,
}


def _signature() -> inspect.Signature:
    """Of the constructor: algorithm and backbone by position too, then all other parameters, then hyperparameters."""
    kinds = {"algorithm": inspect.Parameter.POSITIONAL_OR_KEYWORD, "backbone": inspect.Parameter.POSITIONAL_OR_KEYWORD}
    named = [
        inspect.Parameter(name, kinds.get(name, inspect.Parameter.KEYWORD_ONLY), default=_PARAMETERS[name])
        for name in [*kinds, *(name for name in _PARAMETERS if name not in kinds)]
    ]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([first, *named, inspect.Parameter("hparams", inspect.Parameter.VAR_KEYWORD)])


class DomainClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """A classifier for domains it has never seen, by any algorithm of ``rcalign algorithms``.

    X: features (n, f), series (n, channels, t), images (n, h, w, 3) uint8, a list of n image paths, or a data frame of
    pandas or polars with numbers, categories, dates and gaps, whose encoding is learned in ``fit`` and applied to the
    raw columns of every later frame. Columns and channels are standardised by the rows that train, never by those to be
    predicted.

    The parameters are ``algorithm``, ``backbone`` and the other options of ``rcalign train`` that make sense without a
    folder, by the same names and with the same meaning (the fields of ``rcalign.training.options.TrainOptions``), such
    as ``weights``, ``freeze_backbone``, ``image_size``, ``average``, ``device``, ``precision``. What differs:

    - steps: 300 unless given; evaluate_every: None for five evaluations, among which the validation rows choose.
    - domains: the column of a data frame that has each row's domain; it is not learned from.
    - class_weight: None, "balanced" (classes are drawn alike often) or a weight for each class.
    - validation_fraction: share of each (domain, class) pair's rows that choose the checkpoint and the temperature of
      the probabilities instead of training.
    - random_state: an int repeats to the bit on the same machine.
    - log: "wandb", or with a place of their own "tensorboard=FOLDER", "mlflow=FOLDER": there is no run folder.
    - callbacks: a list of ``rcalign.training.callbacks.Callback``, which follow the training.
    - verbose: show a progress bar.
    - any other name: a hyperparameter of the algorithm, as ``rcalign algorithms NAME`` lists them.

    After ``fit``:

    - classes_, domains_: the values seen; algorithm_: the name of the algorithm that ran.
    - temperature_: what logits are divided by, so that probabilities are calibrated on the validation rows.
    - validation_score_: mean over domains of the accuracy on the validation rows.
    - model_: the trained network.
    """

    __metadata_request__fit = {"domains": True}  # noqa: RUF012  (scikit-learn's own way to say so)

    def __init__(self, algorithm: str = "rc-align", backbone: str | None = None, **options: Any) -> None:
        given = {"algorithm": algorithm, "backbone": backbone, **options}
        for name, default in _PARAMETERS.items():
            setattr(self, name, given.pop(name, default))
        for name, value in given.items():  # hyperparameters
            setattr(self, name, value)

    __init__.__signature__ = _signature()  # type: ignore[attr-defined]  # scikit-learn reads the parameters from it

    # --- parameters ----------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, the hyperparameters that were given among them."""
        return {**super().get_params(deep), **self._hparams()}

    def set_params(self, **params: Any) -> DomainClassifier:
        """Sets parameters or hyperparameters of any algorithm; whether they fit together is seen in ``fit``."""
        known = {*self.get_params(), *_all_hyperparameters()}
        for name in params:
            if name not in known:
                raise unknown("parameter", name, known)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _hparams(self) -> dict[str, Any]:
        fixed = self._get_param_names()
        return {
            name: value
            for name, value in vars(self).items()
            if name not in fixed and not name.startswith("_") and not name.endswith("_")
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags

    # --- fitting -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, domains: Any = None, sample_weight: Any = None) -> DomainClassifier:
        """Trains. domains: (n,) of any values; without them all rows are one domain, and the method plain training.

        sample_weight: (n,), at least 0: rows of a domain are drawn in proportion to it (each domain as often as the
        others, whatever its weights). So a row of weight 2 counts like two copies of it on average, not to the bit.
        """
        X, domains = self._without_domain_column(X, domains)
        X, y = self._checked(X, y, fitting=True)
        weights = self._row_weights(sample_weight, X, y)
        if weights is not None and not weights.all():  # a row of weight zero is as if it was not there
            kept = np.flatnonzero(weights)
            X = X.select(kept) if isinstance(X, Table) else [X[k] for k in kept] if isinstance(X, list) else X[kept]
            y, weights = y[kept], weights[kept]
            domains = None if domains is None else column_or_1d(domains)[kept]
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y has one class only, {self.classes_[0]!r}, but a classifier needs at least two: add rows of another "
                "class."
            )
        entry = self._entry(domains is None)
        self.algorithm_ = entry.name
        options = self._options(entry)
        callbacks = [*make_callbacks(options.log), *(self.callbacks or ())]
        dataset = self._dataset(X, labels, *self._domains(domains, len(labels)))
        splits = _divided(dataset, self.validation_fraction, options.seed)
        job = prepare_run(options, dataset, splits=splits, progress=bool(self.verbose))
        task = dataclasses.replace(job.task, row_weights=weights)
        self.encoding_: Encoding | None = task.encoding
        with tempfile.TemporaryDirectory(prefix="rcalign-") as folder:
            try:
                model, result = complete(
                    task,
                    job.config,
                    RunFolder(folder),
                    job.hparams,
                    progress=bool(self.verbose),
                    callbacks=callbacks,
                    keeps_folder=False,
                )
            except Interrupted:
                raise KeyboardInterrupt from None
        model.optimizers = {}  # nothing is trained any more, and they are twice as large as the network
        # rows are predicted in double precision, so that no row's result depends on how many others come with it
        if isinstance(dataset.content, Arrays) and task.inputs.device.type != "mps":
            model.double()
        validation_overlaps_training = any(
            len(np.intersect1d(task.splits.val.get(name, rows[:0]), rows)) for name, rows in task.splits.train.items()
        )
        self.temperature_ = 1.0 if validation_overlaps_training else result.temperature
        self.validation_score_ = result.validation
        augmentation = task.augmentation
        self.model_ = TrainedModel(job.config, model, task.frozen, augmentation, task.inputs.device, self.temperature_)
        example = next(task.inputs.batches(np.concatenate(list(task.splits.train.values()))[:1]))
        like = next(model.head.parameters())
        self._n_features_out = model.embed(example.to(like)).shape[1]  # a method may put layers between
        return self

    def _entry(self, alone: bool) -> RegisteredAlgorithm:
        entry = registry.get(str(self.algorithm))
        if not alone or entry.name == PLAIN:
            return entry
        plain = entry.traits.min_domains > 1
        effect = f"is plain training ({PLAIN})" if plain else "trains on one domain"
        _warn_every_time(
            f"no domains were given, so {entry.name} {effect}: give fit(X, y, domains=...), one value for each row "
            "(inside cross_validate and searches, with metadata routing: params={'domains': ...})."
        )
        return registry.get(PLAIN) if plain else entry

    def _options(self, entry: RegisteredAlgorithm) -> TrainOptions:
        """The options of the run; hyperparameters of the algorithm asked for are left out where plain training runs."""
        hparams = self._hparams()
        asked = registry.get(str(self.algorithm))
        if entry is not asked:
            hparams_of(asked, "default", hparams)  # wrong ones are an error all the same
            hparams = {name: hparams[name] for name in spaces.fields_of(entry.algorithm.Hparams) if name in hparams}
        given = {name: getattr(self, name) for name in in_estimators()}
        options = TrainOptions(**{**given, "algorithm": entry.name, "hparams": hparams, "seed": self._seed()})
        if options.steps is not None and options.evaluate_every is None:
            options = options.replace(evaluate_every=math.ceil(options.steps / EVALUATIONS))
        return options

    def _seed(self) -> int:
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _without_domain_column(self, X: Any, domains: Any) -> tuple[Any, Any]:
        """A data frame without its column of domains, and those as values."""
        if self.domains is None:
            return X, domains
        if not is_frame(X):
            raise InputError(f"domains is the column '{self.domains}', but X is no data frame: give fit(domains=...).")
        if domains is not None:
            raise InputError(f"domains are given twice: as the column '{self.domains}' and in fit. Leave one out.")
        names = [str(name) for name in X.columns]
        if self.domains not in names:
            raise unknown("column of X, given as domains,", str(self.domains), names)
        return X, np.asarray(frame_columns(X)[self.domains])

    def _row_weights(self, sample_weight: Any, X: Any, y: np.ndarray) -> np.ndarray | None:
        """One weight for each row, from those given and those of its class; None if all are alike."""
        if sample_weight is None and self.class_weight is None:
            return None
        weights = np.ones(len(y))
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, np.zeros((len(y), 1)), ensure_non_negative=True)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, y)
        if not weights.any():
            raise InputError("every row has weight zero: give at least some a weight above it.")
        return np.asarray(weights, dtype=np.float64)

    def _domains(self, domains: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """All values in order, and the position of each row's."""
        if domains is None:
            self.domains_ = np.array(["all"])
            return self.domains_, np.zeros(rows, dtype=np.int64)
        values = column_or_1d(domains)
        if len(values) != rows:
            raise InputError(f"there are {len(values)} domains for {rows} rows: give one for each row.")
        if any(map(_is_missing, values.tolist())):
            raise InputError("some rows have no domain (NaN, NA or None): name one for each row.")
        self.domains_, codes = np.unique(values, return_inverse=True)
        return self.domains_, codes

    def _dataset(self, X: Any, labels: np.ndarray, domains: np.ndarray, codes: np.ndarray) -> Dataset:
        if isinstance(X, Table):
            parts = [X.x.tobytes(), labels.tobytes(), codes.tobytes()]
            none = np.zeros(len(labels), np.int64)
            data = Dataset("X", (), (), none, none, None, None, X, (), fingerprint(parts))
        elif isinstance(X, list):
            root = Path(os.path.commonpath([path.parent for path in X]))
            texts = [str(n) for n in labels], [str(n) for n in codes]
            data = dataset_of_files("X", root, X, *texts, skip_bad=False, progress=bool(self.verbose))
        else:
            data = from_arrays({"x": X, "y": labels, "domain": codes}, name="X", where="X")
        return dataclasses.replace(
            data,
            classes=tuple(str(value) for value in self.classes_),
            domains=tuple(str(value) for value in domains),
            y=labels.astype(np.int64),
            domain=codes.astype(np.int64),
        )

    # --- predicting ----------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated logits (n, C); with two classes the second's minus the first's, (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (n, C), in the order of ``classes_``."""
        return softmax(self._logits(X))

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        best = self._logits(X).argmax(1)
        return self.classes_[best]

    def transform(self, X: Any) -> np.ndarray:
        """What the last layer reads of each row: features (n, h)."""
        model = self._fitted()
        return np.concatenate([model.features(x).cpu().numpy() for x in self._inputs(X)])

    def _logits(self, X: Any) -> np.ndarray:
        model = self._fitted()
        logits = np.concatenate([model.logits(x).double().cpu().numpy() for x in self._inputs(X)])
        return logits / self.temperature_

    def _fitted(self) -> TrainedModel:
        check_is_fitted(self, "model_")
        return self.model_

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        """Network inputs, a batch at a time."""
        model, X = self.model_, self._checked(X)
        if isinstance(X, Table):
            assert self.encoding_ is not None
            X = encode_columns(self.encoding_, X, "X")
        if isinstance(X, list) or X.ndim == 4:
            if model.augmentation is None:
                shape = model.config.spec.input_shape
                raise InputError(
                    f"X holds images, but the classifier was fitted on samples of shape {shape}: give samples "
                    "of that shape."
                )
            for images in _files(X, model) if isinstance(X, list) else _images(X, model):
                yield model.augmentation.evaluate(images.to(model.device))
            return
        if model.augmentation is not None:
            raise InputError(
                f"X has shape {X.shape}, but the classifier was fitted on images: give paths of image files, or images "
                "as an array (n, height, width, 3)."
            )
        if X.shape[1:] != model.config.spec.input_shape:
            expected = model.config.spec.input_shape
            raise InputError(
                f"X has samples of shape {X.shape[1:]}, but the classifier was fitted on {expected}: give "
                "samples of that shape."
            )
        like = next(model.algorithm.parameters())
        for start in range(0, len(X), BATCH):
            yield torch.from_numpy(np.ascontiguousarray(X[start : start + BATCH], dtype=np.float32)).to(like)

    def _checked(self, X: Any, y: Any = None, *, fitting: bool = False) -> Any:
        """X as a list of paths or an array and, in fit, y (n,); by scikit-learn's own checks where they apply."""
        table = self._as_table(X, fitting)
        if table is not None:
            if not fitting:
                return table
            y = column_or_1d(y, warn=True)
            check_consistent_length(table.x, y)
            return table, y
        paths = _as_paths(X)
        if paths is None and getattr(X, "ndim", 2) != 4:
            options: dict[str, Any] = {"dtype": [np.float64, np.float32], "allow_nd": True}
            if fitting:
                return validate_data(self, X, y, **options)
            return validate_data(self, X, reset=False, **options)
        if paths is not None:
            X = paths
        else:
            X = np.asarray(X)
            from_arrays(
                {"x": X[:1], "y": np.zeros(1, int), "domain": np.zeros(1, int)}, where="X"
            )  # the kind of images
        if not fitting:
            return X
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        return X, y

    def _as_table(self, X: Any, fitting: bool) -> Table | None:
        """A data frame as a table; None for what is none, or has nothing but numbers and is read as an array."""
        encoding: Encoding | None = None if fitting else getattr(self, "encoding_", None)
        if encoding is not None:
            if not is_frame(X):
                raise InputError("the classifier was fitted on a data frame: give one with the same columns.")
            raw = frame_columns(X)
            return Table(encoding.read(raw, "X"), {c.name: raw[c.name] for c in encoding.columns}, encoding.columns)
        if not fitting or not is_frame(X) or (self.domains is None and _only_numbers(X)):
            return None
        raw = frame_columns(X)
        names = [name for name in raw if name != self.domains]
        roles = Roles(label="", domain="" if self.domains is None else str(self.domains))
        columns, notes = infer_columns(raw, roles, "X")
        for note in notes:
            warnings.warn(note, stacklevel=4)
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, dtype=object)
        return Table(read_columns(columns, raw, "X"), {c.name: raw[c.name] for c in columns}, columns)


def _only_numbers(frame: Any) -> bool:
    columns = [np.asarray(frame[name]) for name in frame.columns]
    return all(values.dtype.kind in "fiub" for values in columns) and not any(
        is_gap(value) for values in columns if values.dtype.kind == "f" for value in values
    )


class LeaveOneDomainOut(BaseCrossValidator):
    """Each domain in turn is the test part: how a model does on the next domain is what its scores say.

    >>> domains = ["a", "b", "a", "c"]
    >>> [test.tolist() for _, test in LeaveOneDomainOut().split(domains, domains=domains)]
    [[0, 2], [1], [3]]
    """

    __metadata_request__split = {"domains": True, "groups": True}  # noqa: RUF012  (as above)

    def split(self, X: Any, y: Any = None, domains: Any = None, groups: Any = None) -> Iterator[Any]:
        """Pairs of row numbers (train, test). domains: (n,); ``groups`` is another name for it."""
        values = _domain_of_rows(domains, groups)
        check_consistent_length(X, y, values)
        for value in self._several(values):
            yield np.flatnonzero(values != value), np.flatnonzero(values == value)

    def get_n_splits(self, X: Any = None, y: Any = None, domains: Any = None, groups: Any = None) -> int:
        """The number of splits: one for each domain."""
        return len(self._several(_domain_of_rows(domains, groups)))

    @staticmethod
    def _several(values: np.ndarray) -> np.ndarray:
        found = np.unique(values)
        if len(found) < 2:
            raise InputError(f"all rows are of one domain ('{found[0]}'), but to leave one out takes at least two.")
        return found


class DomainStratifiedShuffleSplit(BaseCrossValidator):
    """Random splits in which every (domain, class) pair has the same share of test rows, and keeps a row to train on.

    For domains that are known when the model is used; for new ones see ``LeaveOneDomainOut``.

    >>> y, domains = [0, 0, 1, 1] * 5, ["a", "b"] * 10
    >>> splits = DomainStratifiedShuffleSplit(2, test_size=0.4).split(y, y, domains=domains)
    >>> [sorted((domains[i], y[i]) for i in test) for _, test in splits][0]
    [('a', 0), ('a', 0), ('a', 1), ('a', 1), ('b', 0), ('b', 0), ('b', 1), ('b', 1)]
    """

    __metadata_request__split = {"domains": True, "groups": True}  # noqa: RUF012  (as above)

    def __init__(self, n_splits: int = 10, *, test_size: float = 0.2, random_state: Any = 0) -> None:
        self.n_splits = n_splits
        self.test_size = test_size
        self.random_state = random_state

    def split(self, X: Any, y: Any = None, domains: Any = None, groups: Any = None) -> Iterator[Any]:
        """Pairs of row numbers (train, test), both shuffled. domains: (n,); ``groups`` is another name for it."""
        if y is None:
            raise InputError("y is missing: the classes of the rows are needed to stratify by them.")
        if not 0 < self.test_size < 1:
            raise InputError(f"test_size is {self.test_size}, but a share between 0 and 1 is expected.")
        values, labels = _domain_of_rows(domains, groups), column_or_1d(y)
        check_consistent_length(X, labels, values)
        domain = np.unique(values, return_inverse=True)[1]
        pair = domain * (len(labels) + 1) + np.unique(labels, return_inverse=True)[1]
        members = [np.flatnonzero(pair == value) for value in np.unique(pair)]
        sizes = [min(len(rows) - 1, int(self.test_size * len(rows) + 0.5)) for rows in members]
        if not any(sizes):
            raise InputError(
                f"no (domain, class) pair has rows enough for a test part of {self.test_size:g}: add rows."
            )
        random = check_random_state(self.random_state)
        for _ in range(self.n_splits):
            chosen = [random.permutation(rows)[:size] for rows, size in zip(members, sizes, strict=True)]
            test = np.concatenate(chosen)
            train = np.setdiff1d(np.arange(len(labels)), test)
            yield random.permutation(train), random.permutation(test)

    def get_n_splits(self, X: Any = None, y: Any = None, domains: Any = None, groups: Any = None) -> int:
        """``n_splits``."""
        return self.n_splits


def _is_missing(value: Any) -> bool:
    """None, or what compares with itself to anything but equal: NaN, NaT and pandas' NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _domain_of_rows(domains: Any, groups: Any) -> np.ndarray:
    if (domains is None) == (groups is None):
        raise InputError("each row's domain is needed once: give domains (or, by scikit-learn's name, groups).")
    return column_or_1d(domains if domains is not None else groups)


def _divided(dataset: Dataset, share: float, seed: int) -> Splits:
    """Every domain's rows to train on and to validate by; where there are too few to divide, all rows do both."""
    if not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise InputError(f"validation_fraction is {share!r}, but a share from 0 to below 1 is expected.")
    part = mdlt_rule(dataset.y, dataset.domain, seed, (0, len(dataset)), share)
    rows_of = {name: np.flatnonzero(dataset.domain == k) for k, name in enumerate(dataset.domains)}
    train = {name: rows[part[rows] == "train"] for name, rows in rows_of.items()}
    val = {name: rows[part[rows] == "val"] for name, rows in rows_of.items() if (part[rows] == "val").any()}
    return Splits(train, val or train, {})


def _as_paths(X: Any) -> list[Path] | None:
    """X as absolute paths, if it is a list (or a column) of them."""
    values = X.tolist() if hasattr(X, "tolist") and getattr(X, "ndim", 0) == 1 else X
    if not isinstance(values, (list, tuple)) or not values:
        return None
    if not all(isinstance(item, (str, os.PathLike)) for item in values):
        return None
    paths = [Path(os.path.abspath(item)) for item in values]
    if all(isinstance(item, str) for item in values) and not any(path.suffix or path.exists() for path in paths):
        raise InputError(
            f"X is a list of texts such as {values[0]!r}, of which none is a file: give paths of image files, or "
            "numbers, such as embeddings of the texts."
        )
    return paths


def _files(paths: list[Path], model: TrainedModel) -> Iterator[Tensor]:
    for batch in decoded_batches(paths, model.stored_size, BATCH):
        for path, why in batch.skipped:
            raise InputError(f"'{path}' is not a whole image: {why}; leave it out.")
        yield torch.from_numpy(batch.images)


def _images(X: np.ndarray, model: TrainedModel) -> Iterator[Tensor]:
    for start in range(0, len(X), BATCH):
        some = X[start : start + BATCH]
        none = np.zeros(len(some), int)
        data = from_arrays({"x": some, "y": none, "domain": none}, where="X")
        yield open_images(data, model.stored_size).take(np.arange(len(some)))


def _warn_every_time(text: str) -> None:
    """Warns where ``fit`` was called, also of what was said before: a search fits often, and may forget once.

    ``warnings.warn`` leaves out a text that it has shown for the same line; filters apply here as they do there.
    """
    caller = sys._getframe(3)
    warnings.warn_explicit(text, UserWarning, caller.f_code.co_filename, caller.f_lineno, registry={})


def _all_hyperparameters() -> set[str]:
    kinds = (registry.get(name).algorithm.Hparams for name in registry.names(parts=True))
    return {name for kind in kinds for name in spaces.fields_of(kind)}
