"""What a diagnosis reads: arrays from any framework, checked once, in an order of their own."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from rcalign.diagnosis.transport import Array, row_keys
from rcalign.errors import InputError, unknown

FIELDS = ("features", "labels", "domains", "logits", "head_weight", "head_bias", "class_names", "domain_names")
HEAD_TOLERANCE = 1e-3  # logits may come from a network in half precision


@dataclass(frozen=True)
class FeatureSet:
    """Arrays as a user gave them, or as a file has them. Only ``features`` must be there; an unlabelled target has no
    ``labels``."""

    features: ArrayLike
    labels: ArrayLike | None = None
    domains: ArrayLike | None = None
    logits: ArrayLike | None = None
    head_weight: ArrayLike | None = None
    head_bias: ArrayLike | None = None
    class_names: Sequence[str] | None = None
    domain_names: Sequence[str] | None = None


def load_features(path: str | Path) -> FeatureSet:
    """Read an ``.npz`` with any of: features (n, d), labels (n,), domains (n,), logits (n, C), head_weight (C, d),
    head_bias (C,), class_names (C,), domain_names (K,). Pickled arrays are refused."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}: give the .npz that holds the features.")
    try:
        stored = np.load(path, allow_pickle=False)
        found = list(getattr(stored, "files", []))  # a single .npy has none
        arrays = {name: stored[name] for name in found if name in FIELDS}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} cannot be read as a plain .npz ({error}): save it with numpy.savez and no object arrays."
        ) from None
    if "features" not in arrays:
        listed = ", ".join(found) or "nothing"
        raise InputError(f"{path} has no array 'features' (found: {listed}): name the (n, d) array 'features'.")
    names = {key: arrays.pop(key) for key in ("class_names", "domain_names") if key in arrays}
    texts: dict[str, Any] = {key: tuple(str(name) for name in values.ravel()) for key, values in names.items()}
    return FeatureSet(**arrays, **texts)


@dataclass(frozen=True)
class Samples:
    """Checked samples, in canonical order: features (n, d), logits (n, C), labels (n,) or all -1, domains (n,)."""

    features: Array
    logits: Array
    labels: Array
    domains: Array

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, index: Array) -> Samples:
        return Samples(self.features[index], self.logits[index], self.labels[index], self.domains[index])

    @property
    def losses(self) -> Array:
        """Cross-entropy of each sample (n,)."""
        return logsumexp(self.logits, axis=1) - self.logits[np.arange(len(self)), self.labels]


@dataclass(frozen=True)
class Problem:
    """Everything that was given, checked. ``head``: (C, d), or None if only logits are known."""

    sources: Samples
    target: Samples | None
    head: Array | None
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    target_name: str | None
    notes: tuple[str, ...]

    @property
    def target_labelled(self) -> bool:
        return self.target is not None and bool((self.target.labels >= 0).all())


def checked_samples(given: FeatureSet, target: str | None, own_target: FeatureSet | None) -> Problem:
    """What was given to ``diagnose_features`` as a Problem, or one InputError about the first thing that is wrong.

    target: the name of a domain of the given ones, or the name to give to ``own_target``, samples of their own.
    """
    for name in ("features", "labels", "domains"):
        if getattr(given, name) is None:
            raise InputError(
                f"no {name} were given: a diagnosis needs features, labels and domains of the same samples."
            )
    assert given.labels is not None and given.domains is not None
    x = _matrix("features", given.features)
    weight, bias = _head(given.head_weight, given.head_bias, x.shape[1])
    scores = _scores("logits", given.logits, x, weight, bias)
    width = scores.shape[1]
    if width < 2:
        raise InputError(f"the logits have {width} column, but there must be two or more classes: give one for each.")
    classes = _names("class", given.class_names, width)
    y = _positions("labels", given.labels, len(x), classes, given.class_names is not None)
    if given.domain_names is not None:
        names = tuple(str(name) for name in given.domain_names)
    else:
        names = _found_names(given.domains)
    if len(set(names)) < len(names):
        raise InputError("two domains have the same name: give each its own.")
    d = _positions("domains", given.domains, len(x), names, True)

    empty = tuple(name for k, name in enumerate(names) if not (d == k).any())
    names, d = tuple(name for name in names if name not in empty), np.unique(d, return_inverse=True)[1]
    everything = _canonical(Samples(x, scores, y, d.ravel()), weight, bias)
    if own_target is not None:
        if target in names:
            raise InputError(f"the target is called '{target}' like one of the domains: give it another name.")
        sources, aside, target_name = (
            everything,
            _target(own_target, x.shape[1], classes, weight, bias, given.class_names is not None),
            target or "target",
        )
    elif target is not None:
        if target not in names:
            raise unknown("domain", target, names, "Or give an unlabelled target as features of its own.")
        at = names.index(target)
        aside = everything.rows(np.flatnonzero(everything.domains == at))
        sources = everything.rows(np.flatnonzero(everything.domains != at))
        sources = replace(sources, domains=np.where(sources.domains > at, sources.domains - 1, sources.domains))
        names, target_name = names[:at] + names[at + 1 :], target
    else:
        sources, aside, target_name = everything, None, None
    if len(names) + (aside is not None) < 2:
        only = f"'{names[0]}'" if names else "none"
        raise InputError(f"there is one domain ({only}): a diagnosis compares domains, so at least two are needed.")
    notes = _notes(sources, classes, names)
    if empty and given.domain_names is not None:
        notes = (f"{_listed('domain', list(empty))} without samples: left out.", *notes)
    return Problem(sources, aside, weight, classes, names, target_name, notes)


def _matrix(name: str, given: ArrayLike) -> Array:
    values = _numbers(name, given)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{name} has shape {values.shape}: expected (samples, width), neither of them zero.")
    return values


def _numbers(name: str, given: ArrayLike) -> Array:
    try:
        values = np.asarray(given).astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} does not hold numbers: expected an array of floats.") from None
    bad = ~np.isfinite(values)
    if bad.any():
        where = ", ".join(str(int(i)) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{name} has {int(bad.sum())} values that are not finite, the first at [{where}]: leave those samples out."
        )
    return values + 0.0  # one zero, so that equal rows have equal bytes


def _head(weight: ArrayLike | None, bias: ArrayLike | None, width: int) -> tuple[Array | None, Array | None]:
    if weight is None:
        if bias is not None:
            raise InputError("head_bias was given without head_weight: give both, or logits alone.")
        return None, None
    w = _matrix("head_weight", weight)
    if w.shape[1] != width:
        raise InputError(
            f"the head reads {w.shape[1]} features, but the features have {width}: give those that the head reads."
        )
    b = np.zeros(len(w)) if bias is None else _numbers("head_bias", bias)
    if b.shape != (len(w),):
        raise InputError(f"head_bias has shape {b.shape}, but head_weight has {len(w)} classes: expected ({len(w)},).")
    return w, b


def _scores(name: str, logits: ArrayLike | None, x: Array, weight: Array | None, bias: Array | None) -> Array:
    """The logits: given, or computed by the head; if both, they must agree."""
    computed = None if weight is None or bias is None else x @ weight.T + bias
    if logits is None:
        if computed is None:
            raise InputError(f"neither {name} nor a head was given: give logits (n, C) or head_weight (C, d).")
        return computed
    if np.ndim(logits) == 1:  # what scikit-learn's decision_function gives for two classes: the second less the first
        second = _numbers(name, logits)
        logits = np.column_stack([np.zeros_like(second), second])
    given = _matrix(name, logits)
    if len(given) != len(x):
        raise InputError(f"{name} has {len(given)} rows, but there are {len(x)} samples: expected one row for each.")
    if computed is None:
        return given
    if given.shape[1] != computed.shape[1]:
        raise InputError(
            f"{name} has {given.shape[1]} classes, but the head has {computed.shape[1]}: give those of one model."
        )
    off = float(np.abs(given - computed).max())
    if off > HEAD_TOLERANCE * (1.0 + float(np.abs(computed).max())):
        raise InputError(
            f"{name} differ from features x head by up to {off:.3g}: the head is not what made them; give only one."
        )
    return computed


def _names(kind: str, given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if given is None:
        return tuple(f"{kind} {i}" for i in range(count))
    names = tuple(str(name) for name in given)
    if len(names) != count:
        raise InputError(f"{len(names)} {kind} names were given, but there are {count}: one for each is needed.")
    if len(set(names)) < len(names):
        raise InputError(f"two {kind} names are the same: each must be different.")
    return names


def _found_names(domains: ArrayLike) -> tuple[str, ...]:
    """Names from the values themselves: strings as they are, numbers k as 'domain k'."""
    values = np.asarray(domains)
    if values.dtype.kind in "iub":
        top = int(values.max()) if values.size else -1
        return tuple(f"domain {k}" for k in range(top + 1))
    return tuple(str(name) for name in np.unique(values))


def _positions(name: str, given: ArrayLike, count: int, names: tuple[str, ...], named: bool) -> Array:
    """Positions 0 .. len(names) - 1 from whole numbers or from names."""
    values = np.asarray(given)
    if values.ndim != 1:
        raise InputError(f"{name} has shape {values.shape}: expected one entry for each sample, shape ({count},).")
    if len(values) != count:
        raise InputError(f"{name} has {len(values)} entries, but features has {count} rows: expected the same number.")
    if values.dtype.kind in "US":
        if not named:
            raise InputError(f"{name} are names, but no class_names were given: give them in the order of the logits.")
        place = {label: position for position, label in enumerate(names)}
        strange = [str(v) for v in np.unique(values) if str(v) not in place]
        if strange:
            raise unknown(name.rstrip("s").replace("target_", "target "), strange[0], names)
        return np.array([place[str(v)] for v in values], dtype=np.int64)
    if values.dtype.kind not in "iub":
        numbers = _numbers(name, values)
        if (numbers != np.round(numbers)).any():
            raise InputError(
                f"{name} holds {numbers[numbers != np.round(numbers)][0]:g}: expected whole numbers or names."
            )
        values = numbers
    positions = values.astype(np.int64)
    out = (positions < 0) | (positions >= len(names))
    if out.any():
        kind = "classes" if "label" in name else "domains"
        raise InputError(
            f"{name} holds {int(positions[out][0])}, but there are {len(names)} {kind}: expected 0 to {len(names) - 1}."
        )
    return positions


def _target(
    given: FeatureSet, width: int, classes: tuple[str, ...], weight: Array | None, bias: Array | None, named: bool
) -> Samples:
    """The samples of the target. named: the classes have names of the user's, so labels may be those."""
    x = _matrix("target_features", given.features)
    if x.shape[1] != width:
        raise InputError(f"target_features has {x.shape[1]} columns, but the sources have {width}: use the same model.")
    scores = _scores("target_logits", given.logits, x, weight, bias)
    if scores.shape[1] != len(classes):
        raise InputError(
            f"the target has {scores.shape[1]} classes, but the sources have {len(classes)}: use the same model."
        )
    y = np.full(len(x), -1, dtype=np.int64)
    if given.labels is not None:
        y = _positions("target_labels", given.labels, len(x), classes, named)
    return _canonical(Samples(x, scores, y, np.zeros(len(x), dtype=np.int64)), weight, bias)


def _canonical(samples: Samples, weight: Array | None, bias: Array | None) -> Samples:
    """Sorted by a hash of each row: the same for every order in which the samples came, and as good as shuffled.

    So the first m samples of any group are a random subsample of it that no renaming and no reordering changes. The
    head's logits are computed in that order: a matrix product rounds a row by its place.
    """
    rows = samples.features if weight is not None else np.column_stack([samples.features, samples.logits])
    place = np.unique(row_keys(rows), return_inverse=True)[1]
    ordered = samples.rows(np.lexsort((samples.labels, samples.domains, place)))
    return ordered if weight is None or bias is None else replace(ordered, logits=ordered.features @ weight.T + bias)


def _notes(sources: Samples, classes: tuple[str, ...], domains: tuple[str, ...]) -> tuple[str, ...]:
    """What a reader should know about the data: classes that rest on one sample, classes that nobody has."""
    counts = np.zeros((len(domains), len(classes)), dtype=np.int64)
    np.add.at(counts, (sources.domains, sources.labels), 1)
    notes = []
    total = counts.sum(axis=0)
    single = [name for name, count in zip(classes, total, strict=True) if count == 1]
    if single:
        notes.append(f"{_listed('class', single)} with one sample in all: risk and distance rest on that sample.")
    absent = [name for name, count in zip(classes, total, strict=True) if count == 0]
    if absent:
        notes.append(f"{_listed('class', absent)} without any sample in the sources: nothing is known about it.")
    pairs = int((counts[:, total > 1] == 1).sum())
    if pairs:
        notes.append(f"{pairs} (domain, class) pairs have one sample: their terms are exact for the data, but rough.")
    return tuple(notes)


def _listed(kind: str, names: list[str], most: int = 5) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    plural = {"class": "classes", "domain": "domains"}[kind]
    return f"{kind if len(names) == 1 else plural} {shown}{more}"
