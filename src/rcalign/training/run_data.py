"""A trained run and data: its own, still the same; rows that it was not trained on; what it gives for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from rcalign.data import loading
from rcalign.data.overlap import rows_also_in
from rcalign.data.source import Dataset
from rcalign.data.sources import table
from rcalign.data.splits import Splits
from rcalign.data.splits import split as make_splits
from rcalign.errors import InputError
from rcalign.store.run_folder import RunConfig
from rcalign.training.trained import TrainedModel

LEFT_OUT_FILE = "left-out.npz"  # of a model of ``fit``: what it said of each domain when that was left out


@dataclass(frozen=True, eq=False)
class LabelledOutputs:
    """What a model gives for labelled rows that it was not trained on.

    features: (n, h). logits: (n, C). labels: (n,) positions among the model's classes. domains: (n,) positions in
    ``domain_names``. notes: what to know of them, in sentences. left_out: the logits of each domain are those of a
    model that was trained without it, but the features those of the model that was trained on all. untrained_features:
    (n, f), ``TrainedModel.untrained_features`` of the same rows where left_out; None elsewhere, or if there are none.
    """

    features: np.ndarray
    logits: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    domain_names: list[str]
    notes: tuple[str, ...] = ()
    left_out: bool = False
    untrained_features: np.ndarray | None = None


def loaded(data: str | Path | Dataset, model: TrainedModel) -> Dataset:
    """The data set, loaded if it was named; the columns of a table have the roles that they had in training."""
    if isinstance(data, Dataset):
        return data
    roles = table.divided(model.config.data)[1]
    path = Path(data)
    if roles is None or not path.is_file() or path.suffix.lower() not in table.SUFFIXES:
        return loading.load(data)
    columns = table.header(path)
    there = dataclasses.replace(
        roles,
        id=roles.id if roles.id in columns else None,
        ignore=tuple(name for name in roles.ignore if name in columns),
        sample=None,
    )
    return loading.load(table.address(path, there))


def own_data(run: str | Path, model: TrainedModel) -> Dataset:
    """The data that a run was trained on, if they are the same still: else its splits would mix training and test."""
    dataset = loading.load(model.config.data, skip_bad=model.config.skip_bad)
    if dataset.fingerprint != model.config.data_fingerprint:
        raise InputError(
            f"the data '{model.config.data}' changed since the run '{run}' was trained, so which rows were trained on "
            "is not known: name other data, or train again."
        )
    return dataset


def own_splits(dataset: Dataset, config: RunConfig) -> Splits:
    """The rows of a run's own parts."""
    share = config.unlabelled_share
    return make_splits(dataset, config.protocol, config.test_domains, config.seed, unlabelled_share=share)


def without_training_rows(
    run: str | Path,
    model: TrainedModel,
    dataset: Dataset,
    rows_of: Mapping[str, np.ndarray],
    include: bool,
) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """The rows of each domain that the run was not trained on, and in a sentence how many it was."""
    config = model.config
    try:
        own = own_data(run, model)
    except InputError:
        return rows_of, ["The data that the run was trained on are not there, so rows of them are not recognised here."]
    splits = own_splits(own, config)
    parts = [*splits.train.values(), *(splits.unlabelled.values() if config.spec.targets else ())]
    if config.train_on_validation:
        parts += [splits.val[name] for name in splits.train if name in splits.val]
    trained = np.concatenate(parts)
    seen = rows_also_in(dataset, own, trained)
    if not seen.any():
        return rows_of, []
    count = f"{int(seen.sum()):,} of {len(dataset):,} rows were part of the training"
    if include:
        return rows_of, [f"{count} and are included, as asked: the figures are too good."]
    left = {name: rows[~seen[rows]] for name, rows in rows_of.items()}
    left = {name: rows for name, rows in left.items() if len(rows)}
    if not left:
        raise InputError(
            f"all {len(dataset):,} rows were part of the training: give other data, or `include_training`."
        )
    return left, [f"{count} and were left out (`include_training` keeps them)."]


def class_positions(model: TrainedModel, dataset: Dataset) -> np.ndarray:
    """The model's position of each class of a data set."""
    known = model.config.spec.classes
    extra = [name for name in dataset.classes if name not in known]
    if extra:
        raise InputError(
            f"the data have a class the model does not know, '{extra[0]}' (it knows {', '.join(known)}): leave that "
            "class out."
        )
    return np.array([known.index(name) for name in dataset.classes])


def rows_by_domain(dataset: Dataset) -> dict[str, np.ndarray]:
    """All rows of each domain."""
    return {name: np.flatnonzero(dataset.domain == k) for k, name in enumerate(dataset.domains)}


def outputs_of(model: TrainedModel, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, h) and logits (n, C) of network inputs, as float64."""
    return model.features(x).double().cpu().numpy(), model.logits(x).double().cpu().numpy()


def untrained_features_of(model: TrainedModel, x: Tensor) -> np.ndarray | None:
    """``TrainedModel.untrained_features`` (n, f) of network inputs, as float64; None where there are none."""
    found = model.untrained_features(x)
    return None if found is None else found.double().cpu().numpy()


def joined(batches: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Batches (n_i, f) as one array; None if there is none, or a batch has none."""
    there = [batch for batch in batches if batch is not None]
    return np.concatenate(there) if there and len(there) == len(batches) else None


def untrained_outputs(
    run: str | Path,
    model: TrainedModel,
    data: str | Path | Dataset | None = None,
    *,
    include_training: bool = False,
) -> LabelledOutputs:
    """What a run gives for rows that it was not trained on.

    Of its own data those are the validation rows of the source domains and the test rows of the others (under protocol
    "mdlt" the test rows of all); of other data, all rows that are not also among those that it was trained on, or with
    include_training simply all. A model of ``fit`` is trained on every row of its own data: there the logits are those
    that ``fit`` kept, of models which had not seen the row's domain.
    """
    config = model.config
    dataset = own_data(run, model) if data is None else loaded(data, model)
    kept = _left_out(run) if data is None and config.protocol == "all" else None
    notes: tuple[str, ...] = ()
    if data is None:
        splits = own_splits(dataset, config)
        rows_of = dict(splits.test) if config.protocol == "mdlt" else {**splits.val, **splits.test}
        rows_of = {name: rows_of[name] for name in dataset.domains if name in rows_of}
    else:
        left, said = without_training_rows(run, model, dataset, rows_by_domain(dataset), include_training)
        rows_of, notes = dict(left), tuple(said)
    if kept is not None:
        rows_of = {name: rows[np.isin(rows, kept[0])] for name, rows in rows_of.items()}
        notes = ("The outputs for each known domain are those of a model that was trained without it.",)
    elif data is None and config.protocol == "all":
        notes = ("The model was trained on these rows of the known domains: their figures are too good.",)
    position = class_positions(model, dataset)
    pairs, untrained = [], []
    for rows in rows_of.values():
        for x in model.inputs(dataset, rows):
            pairs.append(outputs_of(model, x))
            if kept is not None:
                untrained.append(untrained_features_of(model, x))
    features, logits = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    if kept is not None:
        order = np.argsort(kept[0])
        logits = kept[1][order[np.searchsorted(kept[0][order], np.concatenate(list(rows_of.values())))]]
    return LabelledOutputs(
        features,
        logits,
        np.concatenate([position[dataset.y[rows]] for rows in rows_of.values()]),
        np.concatenate([np.full(len(rows), k) for k, rows in enumerate(rows_of.values())]),
        list(rows_of),
        notes,
        left_out=kept is not None,
        untrained_features=joined(untrained),
    )


def _left_out(run: str | Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows (n,) and logits (n, C) of a model of ``fit`` when their domain was left out; None for other models."""
    file = Path(run) / LEFT_OUT_FILE
    if not file.is_file():
        return None
    with np.load(file, allow_pickle=False) as found:
        return found["rows"], found["logits"].astype(np.float64)
