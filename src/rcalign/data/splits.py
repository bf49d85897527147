"""Which rows train, choose and test. Pure: a data set and a seed in, row numbers out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rcalign.data.source import Dataset, listed
from rcalign.errors import InputError, unknown

PROTOCOLS = ("lodo", "mdlt", "wilds", "adapt", "all")
HOLDOUT = 0.2  # DomainBed's share of a domain that is kept for choosing
UNLABELLED_SHARE = 0.5  # of a held-out domain's test rows, under "adapt"
GROUP_SHARES = (0.15, 0.30)  # of groups: val, test; the rest trains


@dataclass(frozen=True, eq=False)
class Splits:
    """Row numbers (int64, ascending within a part) by domain name, in the data set's order of domains.

    train: source domains only. val: source domains; of a held-out domain the part that only oracle selection may read.
    test: held-out domains (lodo) or all domains (mdlt). unlabelled: rows of held-out domains that are not tested; under
    "adapt" they train without their labels.
    """

    train: dict[str, np.ndarray]
    val: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    unlabelled: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.train)


def split(
    dataset: Dataset,
    protocol: str,
    test_domains: Sequence[str],
    seed: int,
    *,
    allow_unseen: bool = False,
    held_out: tuple[int, int] = (20, 10),
    held_out_share: float = 0.5,
    unlabelled_share: float | None = None,
) -> Splits:
    """The rows of a protocol.

    ``lodo``: ``test_domains`` are held out. Without a split column, the first 20 % of each shuffled domain are its val
    part and the rest trains, or tests where the domain is held out: DomainBed's rule, to the row (``domainbed_split``).
    With groups, groups are divided once for all domains, by class, 55 % train, 15 % val, 30 % test: a held-out domain
    is tested on test groups only, so that nothing tested was trained on in any domain. With a split column, source
    domains use their train and val rows, and a held-out domain its test rows, or all its rows if it has none.

    ``adapt``: as lodo, but ``unlabelled_share`` (0.5) of a held-out domain's test rows are not tested: an algorithm may
    train on them without their labels. DomainBed's rule, to the row; with groups, whole groups of them. No label of a
    held-out domain decides where a row goes. ``lodo`` with a share leaves the same rows out.

    ``mdlt``: every domain trains, chooses and tests: by the split column, or by groups as above, or by ``mdlt_rule``
    with ``held_out`` (test, val) rows of each (domain, class) pair and at most ``held_out_share`` of a pair.

    ``all``: every row of every domain trains, and nothing is tested: the final model of ``rcalign fit``, which knows
    from leaving domains out how long to train. The val parts are the training rows again.

    ``wilds``: the data set's own split column decides all of it: domains with train rows are sources, those with test
    rows are tested, and by a validation domain that neither trains nor is tested a model is chosen.

    A domain whose split column gives train rows but no val rows lends a fifth of them (whole groups) to val.
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    for name in test_domains:
        if name not in dataset.domains:
            raise unknown("domain", name, dataset.domains)
    if protocol == "wilds":
        return _official(dataset, set(test_domains), allow_unseen)
    held = set(test_domains)
    if unlabelled_share is None and protocol == "adapt":
        unlabelled_share = UNLABELLED_SHARE
    if unlabelled_share is not None and protocol not in ("lodo", "adapt"):
        raise InputError(f"`unlabelled_share` is for the protocols adapt and lodo, not for {protocol}: leave it out.")
    if protocol == "all":
        every = {name: np.flatnonzero(dataset.domain == k) for k, name in enumerate(dataset.domains)}
        return Splits(every, every, {})
    if protocol == "mdlt":
        if held and held != set(dataset.domains):
            raise InputError(
                f"the mdlt protocol tests every domain, but {listed(sorted(held))} was given as test domain: leave it "
                "out, or use the lodo protocol."
            )
        held = set()
    if len(held) == len(dataset.domains):
        raise InputError(
            f"all {len(held)} domains of '{dataset.name}' are held out, but at least one must be left to train on: "
            "hold out fewer."
        )
    if dataset.split is not None:
        part = _from_column(dataset, held, seed)
    elif dataset.group is not None:
        y = dataset.y
        if unlabelled_share is not None:  # labels of held-out domains must not decide what is trained on
            y = np.where(np.isin(dataset.domain, _positions(dataset, held)), len(dataset.classes), y)
        part = divide_groups(dataset.group, y, seed, GROUP_SHARES)
    elif protocol == "mdlt":
        part = mdlt_rule(dataset.y, dataset.domain, seed, held_out, held_out_share)
    else:
        part = _by_domain(dataset, held, seed)
    splits = _collect(dataset, part, held, tests_all=protocol == "mdlt")
    if unlabelled_share is not None:
        splits = _with_unlabelled(dataset, splits, unlabelled_share, seed)
    _check(dataset, splits, allow_unseen)
    return splits


def _positions(dataset: Dataset, names: set[str]) -> list[int]:
    return [k for k, name in enumerate(dataset.domains) if name in names]


def _with_unlabelled(dataset: Dataset, splits: Splits, share: float, seed: int) -> Splits:
    """Some test rows of each held-out domain as unlabelled ones instead."""
    test: dict[str, np.ndarray] = {}
    unlabelled: dict[str, np.ndarray] = {}
    for name, rows in splits.test.items():
        position = dataset.domains.index(name)
        its_seed = seed_hash(seed, position)
        if dataset.group is not None:
            groups = np.unique(dataset.group[rows])
            taken, _ = domainbed_split(len(groups), share, its_seed)
            chosen = np.isin(dataset.group[rows], groups[taken])
        else:
            if dataset.split is None:  # in the order of DomainBed's first split, which its second one shuffles again
                every = np.flatnonzero(dataset.domain == position)
                _, rest = domainbed_split(len(every), HOLDOUT, its_seed)
                ordered = every[rest][np.isin(every[rest], rows)]
            else:
                ordered = rows
            taken, _ = domainbed_split(len(ordered), share, its_seed)
            chosen = np.isin(rows, ordered[taken])
        if chosen.all() or not chosen.any():
            found = "all" if chosen.all() else "none"
            raise InputError(
                f"`unlabelled_share` is {share:g}, which makes {found} of the {len(rows)} test rows of '{name}' "
                "unlabelled: choose another share, or add rows."
            )
        test[name], unlabelled[name] = rows[~chosen], rows[chosen]
    return Splits(splits.train, splits.val, test, unlabelled)


def _official(dataset: Dataset, asked: set[str], allow_unseen: bool) -> Splits:
    if dataset.split is None:
        raise InputError(
            f"'{dataset.name}' has no split of its own, which the wilds protocol follows: give data with a split "
            "column (Camelyon17 and FMoW have one), or use the lodo protocol."
        )
    parts: dict[str, dict[str, np.ndarray]] = {}
    for part in ("train", "val", "test"):
        rows_of = {
            name: np.flatnonzero((dataset.domain == k) & (dataset.split == part))
            for k, name in enumerate(dataset.domains)
        }
        parts[part] = {name: rows for name, rows in rows_of.items() if len(rows)}
    if asked and asked != set(parts["test"]):
        raise InputError(
            f"the split of '{dataset.name}' tests {listed(list(parts['test']))}, but {listed(sorted(asked))} was "
            "given: leave the test domains out, or use the lodo protocol."
        )
    if not parts["train"] or not parts["test"]:
        raise InputError(f"the split of '{dataset.name}' has no {'train' if parts['test'] else 'test'} rows.")
    splits = Splits(parts["train"], parts["val"], parts["test"])
    _check(dataset, splits, allow_unseen)
    return splits


def _collect(dataset: Dataset, part: np.ndarray, held: set[str], *, tests_all: bool) -> Splits:
    train: dict[str, np.ndarray] = {}
    val: dict[str, np.ndarray] = {}
    test: dict[str, np.ndarray] = {}
    for position, name in enumerate(dataset.domains):
        here = dataset.domain == position
        if name not in held:
            train[name] = np.flatnonzero(here & (part == "train"))
        if name in held or tests_all:
            test[name] = np.flatnonzero(here & (part == "test"))
        rows = np.flatnonzero(here & (part == "val"))
        if len(rows):
            val[name] = rows
    return Splits(train, val, test)


def _check(dataset: Dataset, splits: Splits, allow_unseen: bool) -> None:
    for kind, parts in (("training", splits.train), ("test", splits.test)):
        for name, rows in parts.items():
            if len(rows) == 0:
                total = int((dataset.domain == dataset.domains.index(name)).sum())
                raise InputError(
                    f"the {kind} part of domain '{name}' is empty (it has {total} rows in all): add rows, or leave the "
                    "domain out."
                )
    if not any(name in splits.val for name in splits.train):
        raise InputError(
            f"no row of '{dataset.name}' is left to choose a model by: add rows, or a split column with val."
        )
    _check_groups(dataset, splits)
    if allow_unseen:
        return
    seen = np.unique(dataset.y[np.concatenate(list(splits.train.values()))])
    for name, rows in splits.test.items():
        unseen = np.setdiff1d(dataset.y[rows], seen)
        if len(unseen):
            names = listed([dataset.classes[c] for c in unseen])
            raise InputError(
                f"class {names} of domain '{name}' is tested, but no source domain has it in its training part: add "
                "training rows, or remove the class."
            )


def _check_groups(dataset: Dataset, splits: Splits) -> None:
    if dataset.group is None:
        return
    trained = np.concatenate(list(splits.train.values()))
    for kind, parts in (("validation", splits.val), ("test", splits.test)):
        for name, rows in parts.items():
            both = rows[np.isin(dataset.group[rows], dataset.group[trained])]
            if len(both):
                row = trained[dataset.group[trained] == dataset.group[both[0]]][0]
                raise InputError(
                    f"row {both[0]} is in the {kind} part of domain '{name}' and row {row}, of the same group, in a "
                    "training part: give all rows of a group the same split."
                )


def _by_domain(dataset: Dataset, held: set[str], seed: int) -> np.ndarray:
    part = np.full(len(dataset), "train", dtype="<U5")
    for position, name in enumerate(dataset.domains):
        rows = np.flatnonzero(dataset.domain == position)
        out, rest = domainbed_split(len(rows), HOLDOUT, seed_hash(seed, position))
        if len(out) == 0 and len(rest) > 1:  # DomainBed gives up on domains of fewer than five rows
            out, rest = rest[:1], rest[1:]
        part[rows[out]] = "val"
        if name in held:
            part[rows[rest]] = "test"
    return part


def _from_column(dataset: Dataset, held: set[str], seed: int) -> np.ndarray:
    assert dataset.split is not None
    part = dataset.split.copy()
    for position, name in enumerate(dataset.domains):
        here = dataset.domain == position
        if name in held and not (here & (part == "test")).any():
            part[here] = "test"
        elif name not in held and not (here & (part == "val")).any():
            rows = np.flatnonzero(here & (part == "train"))
            if dataset.group is not None:
                continue
            out, _ = domainbed_split(len(rows), HOLDOUT, seed_hash(seed, position))
            part[rows[out]] = "val"
    sources = np.isin(dataset.domain, [k for k, name in enumerate(dataset.domains) if name not in held])
    if dataset.group is not None and not (sources & (part == "val")).any():
        rows = np.flatnonzero(sources & (part == "train"))
        part[rows] = divide_groups(dataset.group[rows], dataset.y[rows], seed, (HOLDOUT, 0.0))
    return part


def divide_groups(group: np.ndarray, y: np.ndarray, seed: int, shares: tuple[float, float]) -> np.ndarray:
    """Whole groups to val and test by their shares, the same in every class; the rest to train.

    A group counts for the class that most of its rows have. group, y: (n,). -> (n,) of 'train', 'val', 'test'.

    >>> part = divide_groups(np.arange(10).repeat(2), np.zeros(20, int), 0, (0.2, 0.3))
    >>> [int((part == name).sum()) for name in ("train", "val", "test")]
    [10, 4, 6]
    """
    groups, inverse = np.unique(group, return_inverse=True)
    votes = np.zeros((len(groups), int(y.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(votes, (inverse, y), 1)
    main_class = votes.argmax(axis=1)
    of_group = np.full(len(groups), "train", dtype="<U5")
    for c in np.unique(main_class):
        members = np.flatnonzero(main_class == c)
        members = np.random.default_rng([seed, int(c), 0x67]).permutation(members)
        val, test = (round(share * len(members)) for share in shares)
        of_group[members[:test]] = "test"
        of_group[members[test : test + val]] = "val"
    return of_group[inverse]


def mdlt_rule(
    y: np.ndarray, domain: np.ndarray, seed: int, held_out: tuple[int, int] = (20, 10), share: float = 1.0
) -> np.ndarray:
    """Of each (domain, class) pair up to test + val rows are held out, their share (rounded down) for val.

    held_out: (test, val). With ``share`` 1 this is the published rule of MDLT: a pair with fewer rows than that has no
    training rows at all ("zero shot"). A smaller share leaves at least 1 - share of every pair to train on.

    >>> part = mdlt_rule(np.zeros(20, int), np.zeros(20, int), seed=0, held_out=(30, 15))
    >>> [int((part == name).sum()) for name in ("train", "val", "test")]
    [0, 6, 14]
    """
    part = np.full(len(y), "train", dtype="<U5")
    for d, c in np.unique(np.stack([domain, y], axis=1), axis=0):
        rows = np.flatnonzero((domain == d) & (y == c))
        rows = np.random.default_rng([seed, int(d), int(c), 0x6D]).permutation(rows)
        held = min(sum(held_out), int(share * len(rows)))
        val = held * held_out[1] // sum(held_out)
        part[rows[:val]] = "val"
        part[rows[val:held]] = "test"
    return part


def seed_hash(*args: Any) -> int:
    """DomainBed's seed from any values.

    >>> seed_hash(0, 0)
    894182419
    """
    return int(hashlib.md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31


def domainbed_split(n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """DomainBed's split of n rows: (out, in), the first int(n * fraction) of a shuffle and the rest, in its order."""
    order = list(range(n))
    np.random.RandomState(seed).shuffle(order)
    held = int(n * fraction)
    return np.array(order[:held], dtype=np.int64), np.array(order[held:], dtype=np.int64)
