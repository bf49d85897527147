"""What can be said of the data before anything is trained: counts, gaps, copies, and which kind of shift there is.

Two shifts are measured in one unit, so that they can be compared: how well two domains can be told apart by one row.
For a pair of domains, each counting the same, and a guess of the domain that is right with probability a, the shift is
2 a - 1: 0 if they cannot be told apart, 1 if always. The mean over all pairs is

    prior shift     where the guess knows the class only: the total variation between the shares of classes, exact
    feature shift   where the guess knows the features only, after each class was brought to the same mean, every
                    (domain, class) pair weighing the same: a linear guess, on rows it was not fitted on

So the first says how much the shares of the classes differ between domains, the second how much the classes themselves
look different.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from rcalign.data.column_encoder import encode_columns
from rcalign.data.columns import Table, as_category, learn_encoding
from rcalign.data.source import Arrays, Dataset, ImageArray, listed
from rcalign.diagnosis.priors import total_variation

MOST_ROWS = 2000  # that the linear guess of the domain is fitted on
MOST_INPUTS = 32
SMALL_PAIR = 5  # rows of a class in a domain below which little can be said of it
SMALL, LARGE = 0.15, 0.4  # shifts below and above are called so


@dataclass(frozen=True)
class DataOverview:
    """What was found. counts: (K, C) rows. copies: groups of rows that are the same, in more than one domain.

    sentences: the findings in words, the most important first.
    """

    rows: int
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    prior_shift: float
    feature_shift: float | None
    copies: int
    copied_rows: tuple[tuple[int, ...], ...]
    missing: tuple[str, ...]
    sentences: tuple[str, ...]


def summarise_data(dataset: Dataset, features: np.ndarray | None = None, *, seed: int = 0) -> DataOverview:
    """Counts, shifts and copies of a data set, before anything is trained.

    features: (n, f) of each row; of arrays and tables their own values by default.

    >>> from rcalign.data.source import from_names
    >>> rng = np.random.default_rng(0)
    >>> y, d = np.arange(400) % 2, np.repeat(np.arange(4), 100)
    >>> names = [str(v) for v in y], [f"site {v}" for v in d]
    >>> data = from_names("toy", Arrays(rng.normal(size=(400, 3)) + d[:, None]), *names, fingerprint="0")
    >>> found = summarise_data(data)
    >>> round(found.prior_shift, 2), found.feature_shift > 0.3, found.sentences[0][:48]
    (0.0, True, 'Domains differ in how their classes look, not in')
    """
    counts = dataset.counts()
    if features is None:
        features = own_features(dataset)
    prior = prior_shift(counts)
    feature = None if features is None else feature_shift(features, dataset.y, dataset.domain, seed=seed)
    copies = copies_across_domains(dataset)
    missing = tuple(
        f"class '{dataset.classes[c]}' is missing in {listed([dataset.domains[k] for k in np.flatnonzero(gone)])}"
        for c, gone in enumerate((counts == 0).T)
        if gone.any()
    )
    sentences = [
        *(_shift_sentences(prior, feature) if len(dataset.domains) > 1 else ()),
        *_copy_sentences(copies, dataset),
        *_count_sentences(dataset, counts, missing),
    ]
    return DataOverview(
        rows=len(dataset),
        domains=dataset.domains,
        classes=dataset.classes,
        counts=tuple(tuple(int(n) for n in row) for row in counts),
        prior_shift=prior,
        feature_shift=feature,
        copies=len(copies),
        copied_rows=tuple(copies[:20]),
        missing=missing,
        sentences=tuple(sentences),
    )


def prior_shift(counts: np.ndarray) -> float:
    """The total variation between the class shares of two domains, mean over all pairs. counts: (K, C) rows.

    >>> prior_shift(np.array([[50, 50], [10, 10]])), prior_shift(np.array([[9, 0], [0, 9]]))
    (0.0, 1.0)
    """
    domains = len(counts)
    if domains < 2:
        return 0.0
    shares = counts / counts.sum(1, keepdims=True)
    return float(np.mean([total_variation(a, b) for a, b in itertools.combinations(shares, 2)]))


def feature_shift(features: np.ndarray, y: np.ndarray, domain: np.ndarray, *, seed: int = 0) -> float | None:
    """How well two domains can be told apart by the features of a row, whatever its class: mean over all pairs.

    None where there are too few rows to hold some back. features: (n, f). y, domain: (n,) positions.
    """
    rng = np.random.default_rng(seed)
    rows = np.arange(len(y))
    if len(rows) > MOST_ROWS:
        rows = np.sort(rng.choice(rows, MOST_ROWS, replace=False))
    x = np.asarray(features[rows], dtype=np.float64).reshape(len(rows), -1)
    y, domain = y[rows], domain[rows]
    domains, position = np.unique(domain, return_inverse=True)
    pair = y * len(domains) + position
    sizes = np.bincount(pair)
    if len(domains) < 2 or min(np.bincount(position)) < 6:
        return None
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    for c in np.unique(y):  # class means over domains that have the class, each domain counting the same
        here = [x[(y == c) & (position == k)] for k in range(len(domains))]
        x[y == c] -= np.mean([part.mean(0) for part in here if len(part)], axis=0)
    if x.shape[1] > MOST_INPUTS:
        x = PCA(MOST_INPUTS, random_state=seed).fit_transform(x)
    weight = 1.0 / sizes[pair]
    evidence = np.zeros((len(y), len(domains)))
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    for fit_rows, held in folds.split(x, position):
        guess = LogisticRegression(C=0.1, max_iter=300)  # of all domains at once, then asked about pairs
        guess.fit(x[fit_rows], position[fit_rows], sample_weight=weight[fit_rows] * len(y) / weight[fit_rows].sum())
        evidence[held] = guess.predict_log_proba(x[held])
    shifts = []
    for a, b in itertools.permutations(range(len(domains)), 2):
        here = position == a
        shifts.append(2 * np.average(evidence[here, a] > evidence[here, b], weights=weight[here]) - 1)
    return float(max(0.0, np.mean(shifts)))


def own_features(dataset: Dataset) -> np.ndarray | None:
    """Features (n, f) that a data set has without a network: numbers as they are, columns encoded; None for images."""
    content = dataset.content
    if isinstance(content, Table):
        return encode_columns(learn_encoding(content, np.arange(len(dataset))), content)
    if isinstance(content, Arrays):
        return content.x.reshape(len(dataset), -1)
    return None


def copies_across_domains(dataset: Dataset) -> list[tuple[int, ...]]:
    """Groups of rows that are the same to the last bit and lie in more than one domain. Labels do not matter.

    Rows of a table with fewer than four columns are not compared: they may well be equal by chance.
    """
    content = dataset.content
    groups: dict[bytes, list[int]] = defaultdict(list)
    if isinstance(content, Table):
        if len(content.columns) < 4:
            return []
        columns = [[as_category(value) for value in values] for values in content.raw.values()]
        for row in range(len(dataset)):
            groups["\0".join(column[row] for column in columns).encode()].append(row)
    elif isinstance(content, Arrays | ImageArray):
        for row in range(len(dataset)):
            groups[hashlib.sha256(np.ascontiguousarray(content.x[row]).tobytes()).digest()].append(row)
    else:
        by_size: dict[int, list[int]] = defaultdict(list)  # only files of one size can be the same
        for row, path in enumerate(content.paths):
            by_size[path.stat().st_size].append(row)
        for rows in by_size.values():
            if len({int(dataset.domain[row]) for row in rows}) > 1:
                for row in rows:
                    groups[hashlib.sha256(content.paths[row].read_bytes()).digest()].append(row)
    return [tuple(rows) for rows in groups.values() if len({int(dataset.domain[row]) for row in rows}) > 1]


def _shift_sentences(prior: float, feature: float | None) -> list[str]:
    if feature is None:
        return [f"The shares of classes differ {_degree(prior)} between domains (prior shift {prior:.2f})."]
    figures = f"(prior shift {prior:.2f}, feature shift {feature:.2f}; 0: two domains are alike, 1: nothing alike)"
    if max(prior, feature) < SMALL:
        return [f"Domains hardly differ, neither in the shares of classes nor in their appearance {figures}."]
    if prior < SMALL:
        return [f"Domains differ in how their classes look, not in the shares of classes {figures}."]
    if feature < SMALL:
        return [f"Domains differ in the shares of classes, not in how the classes look {figures}."]
    if prior > 1.25 * feature:
        return [f"The shares of classes differ more than their appearance {figures}."]
    if feature > 1.25 * prior:
        return [f"The appearance of classes differs more than their shares {figures}."]
    return [f"The shares of classes and their appearance both differ between domains {figures}."]


def _degree(value: float) -> str:
    return "hardly" if value < SMALL else "strongly" if value > LARGE else "somewhat"


def _copy_sentences(copies: Sequence[tuple[int, ...]], dataset: Dataset) -> list[str]:
    if not copies:
        return []
    rows = sum(len(group) for group in copies)
    names = sorted({dataset.domains[dataset.domain[row]] for group in copies for row in group})
    share = rows / len(dataset)
    how = f"{100 * share:.1f} % of all" if share >= 0.001 else "less than 0.1 % of all"
    text = (
        f"{rows} rows ({how}) are copies of a row in another domain ({listed(names)}): what is tested there was seen "
        "in training, so accuracies are too good. Remove them, or find out how they came about."
    )
    different = sum(len({int(dataset.y[row]) for row in group}) > 1 for group in copies)
    if different:
        text += f" {different} of the copies have different labels."
    return [text]


def _count_sentences(dataset: Dataset, counts: np.ndarray, missing: Sequence[str]) -> list[str]:
    sentences = []
    if missing:
        shown = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more classes" if len(missing) > 3 else "")
        sentences.append(f"Not every domain has every class: {shown}.")
    small = [
        f"{dataset.classes[c]} in {dataset.domains[k]} ({counts[k, c]})"
        for k, c in zip(*np.nonzero((counts > 0) & (counts < SMALL_PAIR)), strict=True)
    ]
    if small:
        sentences.append(f"Some classes have very few rows in a domain: {', '.join(small[:3])}{_more(small)}.")
    totals = counts.sum(0)
    if totals.max() > 10 * max(1, totals.min()):
        most, least = dataset.classes[int(totals.argmax())], dataset.classes[int(totals.argmin())]
        sentences.append(
            f"Classes are very unequal: {totals.max()} rows of '{most}', {totals.min()} of '{least}'. Look at the "
            "balanced accuracy too."
        )
    return sentences


def _more(items: Sequence[str], shown: int = 3) -> str:
    return f" and {len(items) - shown} more" if len(items) > shown else ""
