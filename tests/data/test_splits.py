"""Splits: recorded ones of DomainBed and MDLT, and the properties that every split must have."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcalign.data import Arrays, Dataset, Splits, split
from rcalign.data.source import from_names
from rcalign.data.splits import divide_groups, domainbed_split, mdlt_rule, seed_hash
from rcalign.errors import InputError


def data_of(y, domain, split_column=None, group=None) -> Dataset:
    x = np.zeros((len(y), 1), np.float32)
    return from_names(
        "toy",
        Arrays(x),
        [f"c{c}" for c in y],
        [f"d{d}" for d in domain],
        fingerprint="",
        split=split_column,
        group=group,
    )


def grid(domains: int = 3, classes: int = 4, each: int = 10, **more) -> Dataset:
    y = np.tile(np.arange(classes).repeat(each), domains)
    return data_of(y, np.arange(domains).repeat(classes * each), **more)


def parts_of(splits: Splits) -> list[np.ndarray]:
    return [rows for part in (splits.train, splits.val, splits.test) for rows in part.values()]


def assert_sound(data: Dataset, splits: Splits) -> None:
    """Disjoint, in range, each part in its own domain, in the order of the domains."""
    rows = np.concatenate(parts_of(splits))
    assert len(np.unique(rows)) == len(rows) and rows.dtype == np.int64
    for part in (splits.train, splits.val, splits.test):
        assert list(part) == [name for name in data.domains if name in part]
        for name, found in part.items():
            assert (data.domain[found] == data.domains.index(name)).all()


# --- recorded ----------------------------------------------------------------------------------------------------


def test_seed_hash_as_recorded(reference):
    recorded = json.loads((reference / "parity/protocol/seed_hash.json").read_text())
    for case in recorded["values"]:
        assert seed_hash(*case["args"]) == case["value"]


def test_domainbed_splits_as_recorded(reference):
    recorded = json.loads((reference / "parity/protocol/splits.json").read_text())
    assert recorded["splits"]
    for case in recorded["splits"]:
        assert seed_hash(case["trial_seed"], case["env"]) == case["seed"]
        out, rest = domainbed_split(case["n"], case["holdout_fraction"], case["seed"])
        assert out.tolist() == case["out"] and rest.tolist() == case["in"]


def test_lodo_is_domainbeds_split_to_the_row(reference):
    recorded = json.loads((reference / "parity/protocol/splits.json").read_text())
    case = next(c for c in recorded["splits"] if (c["n"], c["trial_seed"], c["env"]) == (23, 0, 1))
    data = data_of([0] * 46, [0] * 23 + [1] * 23)
    held = split(data, "lodo", ["d1"], 0)
    assert held.test["d1"].tolist() == sorted(23 + i for i in case["in"])
    assert held.val["d1"].tolist() == sorted(23 + i for i in case["out"])
    source = split(data, "lodo", ["d0"], 0)
    assert source.train["d1"].tolist() == held.test["d1"].tolist()


@pytest.mark.parametrize(
    ("name", "held_out", "totals"),
    [
        ("VLCS", (30, 15), (9872, 285, 572)),
        ("PACS", (50, 25), (7891, 700, 1400)),
        ("OfficeHome", (10, 5), (11688, 1300, 2600)),
        ("TerraIncognita", (20, 10), (23269, 353, 708)),
    ],
)
def test_the_mdlt_rule_gives_the_published_counts(reference, name, held_out, totals):
    with open(reference / "mdlt-splits" / f"{name}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    published = Counter((row["env"], int(row["label"]), row["split"]) for row in rows)
    envs = sorted({row["env"] for row in rows})
    y = np.array([int(row["label"]) for row in rows])
    domain = np.array([envs.index(row["env"]) for row in rows])
    part = mdlt_rule(y, domain, seed=0, held_out=held_out)
    ours = Counter(zip([envs[d] for d in domain], y.tolist(), part.tolist(), strict=True))
    assert ours == published
    assert tuple(int((part == kind).sum()) for kind in ("train", "val", "test")) == totals


# --- lodo --------------------------------------------------------------------------------------------------------


def test_lodo_shares():
    data = grid()
    parts = split(data, "lodo", ["d1"], 7)
    assert_sound(data, parts)
    assert {name: len(rows) for name, rows in parts.train.items()} == {"d0": 32, "d2": 32}
    assert {name: len(rows) for name, rows in parts.val.items()} == {"d0": 8, "d1": 8, "d2": 8}
    assert {name: len(rows) for name, rows in parts.test.items()} == {"d1": 32}
    assert parts.sources == ("d0", "d2")


def test_the_seed_decides_and_held_out_domains_do_not_move_others():
    data = grid()
    first, again, other = (split(data, "lodo", ["d1"], seed) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(parts_of(first), parts_of(again), strict=True))
    assert any((a != b).any() for a, b in zip(parts_of(first), parts_of(other), strict=True))
    assert (split(data, "lodo", ["d2"], 0).train["d0"] == first.train["d0"]).all()


def test_a_domain_of_few_rows_still_has_a_row_to_choose_by():
    data = data_of([0] * 3 + [0] * 30, [0] * 3 + [1] * 30)
    parts = split(data, "lodo", ["d1"], 0)
    assert len(parts.val["d0"]) == 1 and len(parts.train["d0"]) == 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 5), st.integers(12, 60))
def test_groups_are_never_divided(seed, domains, groups):
    rng = np.random.default_rng(seed)
    n = groups * domains
    group, domain = np.tile(np.arange(groups), domains), np.arange(domains).repeat(groups)
    data = data_of(np.tile(rng.permutation(np.arange(groups) % 3), domains), domain, group=group)
    parts = split(data, "lodo", ["d0"], seed, allow_unseen=True)
    assert_sound(data, parts)
    sides = [set(data.group[np.concatenate(list(part.values()))]) for part in (parts.train, parts.val, parts.test)]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert len(np.concatenate(parts_of(parts))) < n  # the held-out domain's training groups are left alone


def test_groups_are_divided_by_class_in_the_stated_shares():
    part = divide_groups(np.arange(1000), np.arange(1000) % 2, 3, (0.15, 0.30))
    for c in range(2):
        of_class = part[np.arange(1000) % 2 == c]
        assert [int((of_class == kind).sum()) for kind in ("train", "val", "test")] == [275, 75, 150]


def test_groups_of_mixed_classes_follow_the_majority():
    group = np.arange(50).repeat(3)
    y = np.tile([0, 1, 1], 50)
    part = divide_groups(group, y, 0, (0.2, 0.2))
    assert all(len(set(part[group == g])) == 1 for g in range(50))


def test_a_split_column_is_used():
    column = np.tile(["train", "train", "val", "test"], 30)
    data = data_of([0, 1] * 60, np.arange(3).repeat(40), split_column=column)
    parts = split(data, "lodo", ["d2"], 0)
    assert_sound(data, parts)
    assert (data.split[parts.train["d0"]] == "train").all() and len(parts.train["d0"]) == 20
    assert (data.split[parts.val["d0"]] == "val").all() and "d0" not in parts.test
    assert (data.split[parts.test["d2"]] == "test").all() and len(parts.test["d2"]) == 10


def test_a_held_out_domain_without_test_rows_is_tested_whole():
    column = ["train", "val"] * 20
    data = data_of([0] * 40, [0] * 20 + [1] * 20, split_column=column)
    parts = split(data, "lodo", ["d1"], 0)
    assert parts.test["d1"].tolist() == list(range(20, 40)) and "d1" not in parts.val


def test_without_val_rows_a_fifth_of_the_training_rows_is_lent():
    data = data_of([0, 1] * 30, [0] * 30 + [1] * 30, split_column=["train"] * 30 + ["test"] * 30)
    parts = split(data, "lodo", ["d1"], 0)
    assert (len(parts.train["d0"]), len(parts.val["d0"]), len(parts.test["d1"])) == (24, 6, 30)
    grouped = data_of(
        [0, 1] * 30, [0] * 30 + [1] * 30, split_column=["train"] * 30 + ["test"] * 30, group=np.arange(60) // 2
    )
    parts = split(grouped, "lodo", ["d1"], 0)
    assert_sound(grouped, parts)
    assert not set(grouped.group[parts.train["d0"]]) & set(grouped.group[parts.val["d0"]])
    assert len(parts.val["d0"]) == 6


# --- mdlt --------------------------------------------------------------------------------------------------------


def test_mdlt_trains_and_tests_every_domain():
    data = grid(each=100)
    parts = split(data, "mdlt", [], 0)
    assert_sound(data, parts)
    for name in data.domains:
        assert (data.counts(parts.test[name])[data.domains.index(name)] == 20).all()
        assert (data.counts(parts.val[name])[data.domains.index(name)] == 10).all()
        assert (data.counts(parts.train[name])[data.domains.index(name)] == 70).all()


def test_mdlt_leaves_rare_pairs_something_to_train_on_unless_told_otherwise():
    data = grid(each=12)
    assert len(split(data, "mdlt", [], 0).train["d0"]) == 4 * 6
    with pytest.raises(InputError, match="training part of domain 'd0' is empty"):
        split(data, "mdlt", [], 0, held_out_share=1.0)


def test_mdlt_with_a_split_column_and_with_groups():
    data = grid(split_column=np.tile(["train", "train", "train", "val", "test"], 24))
    parts = split(data, "mdlt", (), 0)
    assert all((data.split[rows] == "test").all() for rows in parts.test.values())
    grouped = grid(group=np.tile(np.arange(40), 3))
    parts = split(grouped, "mdlt", (), 0)
    assert_sound(grouped, parts)
    trained = {g for rows in parts.train.values() for g in grouped.group[rows]}
    assert not trained & {g for rows in parts.test.values() for g in grouped.group[rows]}


# --- errors ------------------------------------------------------------------------------------------------------


def refused(*words: str, **call) -> None:
    with pytest.raises(InputError) as caught:
        split(**call)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_unknown_names():
    refused("unknown domain 'd9'", "Known: d0", dataset=grid(), protocol="lodo", test_domains=["d9"], seed=0)
    refused("unknown protocol", dataset=grid(), protocol="loda", test_domains=["d0"], seed=0)


def test_no_source_domain_left():
    data = grid(domains=2)
    refused("at least one must be left", dataset=data, protocol="lodo", test_domains=["d0", "d1"], seed=0)
    refused("at least one must be left", dataset=grid(domains=1), protocol="lodo", test_domains=["d0"], seed=0)


def test_mdlt_has_no_test_domain():
    refused("mdlt", "'d0'", dataset=grid(), protocol="mdlt", test_domains=["d0"], seed=0)


def test_a_class_that_training_never_sees():
    data = data_of([0] * 40 + [1] * 20, [0] * 20 + [1] * 40)
    refused("'c1'", "'d1'", "no source domain", dataset=data, protocol="lodo", test_domains=["d1"], seed=0)
    assert "d1" in split(data, "lodo", ["d1"], 0, allow_unseen=True).test
    three = data_of([0] * 40 + [1] * 40, [0] * 20 + [1] * 40 + [2] * 20)  # d2 has class 1: seen by some source
    assert split(three, "lodo", ["d1"], 0)


def test_empty_parts():
    column = ["val"] * 20 + ["test"] * 20
    data = data_of([0] * 40, [0] * 20 + [1] * 20, split_column=column)
    refused("training part of domain 'd0' is empty", dataset=data, protocol="lodo", test_domains=["d1"], seed=0)


def test_groups_across_the_split_column_are_refused():
    column = ["train", "val"] * 10 + ["test"] * 20
    data = data_of([0] * 40, [0] * 20 + [1] * 20, split_column=column, group=np.tile(np.arange(20), 2))
    refused("same group", "training part", dataset=data, protocol="lodo", test_domains=["d1"], seed=0)
