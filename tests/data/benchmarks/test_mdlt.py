"""The published MDLT splits are read and made."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from rcalign.data.benchmarks import facts, mdlt
from rcalign.errors import InputError

NAMES = ["PACS", "VLCS", "OfficeHome", "TerraIncognita"]


def table(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.parametrize("name", NAMES)
def test_published_file(name: str, reference: Path) -> None:
    """Sizes and shot pairs of the protocol come out."""
    benchmark = facts.get_benchmark(name)
    found = mdlt.read_split_file(benchmark, reference / "mdlt-splits" / f"{name}.csv")
    sizes = [sum(part == wanted for part in found.values()) for wanted in ("train", "val", "test")]
    counts = np.zeros((len(benchmark.domains), len(benchmark.classes)), dtype=int)
    for path, part in found.items():
        domain, label, _ = path.split("/")
        counts[benchmark.domains.index(domain), benchmark.classes.index(label)] += part == "train"
    known = benchmark.split_counts[0]
    assert sizes == [known.train, known.val, known.test]
    assert mdlt.shot_pairs(counts, benchmark.shots) == known.shots


@pytest.mark.parametrize("name", NAMES)
def test_rule_makes_the_published_split_to_the_row(name: str, reference: Path) -> None:
    """In the order of the published file, the rule gives every row the published part."""
    rows = table(reference / "mdlt-splits" / f"{name}.csv")
    part = mdlt.by_rule(
        [row["env"] for row in rows], [row["label"] for row in rows], facts.get_benchmark(name).held_out
    )
    assert part.tolist() == [row["split"] for row in rows]


def test_rule_leaves_rare_pairs_nothing_to_train_on() -> None:
    domain, label = ["a"] * 7 + ["b"] * 100, ["x"] * 107
    part = mdlt.by_rule(domain, label, (10, 5))
    assert [(part[:7] == name).sum() for name in ("train", "val", "test")] == [0, 2, 5]
    assert [(part[7:] == name).sum() for name in ("train", "val", "test")] == [85, 5, 10]
    assert (part == mdlt.by_rule(domain, label, (10, 5))).all()
    assert (part != mdlt.by_rule(domain, label, (10, 5), seed=1)).any()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,split\nart_painting/dog/a.jpg,train\n", "has the columns path, split"),
        ("env,label,path,split\n", "lists no images"),
        ("env,label,path,split\na,0,art_painting/cow/a.jpg,train\n", "line 2"),
        ("env,label,path,split\na,0,art_painting/dog/a.jpg,dev\n", "has the split 'dev'"),
        ("env,label,path,split\na,0,../../x,train\n", "'../../x'"),
        ("\xff", "not a readable split file"),
    ],
)
def test_wrong_files(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "PACS.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=said):
        mdlt.read_split_file(facts.get_benchmark("PACS"), file)
