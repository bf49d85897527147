"""The facts agree with each other, with the published split files and with the protocol's numbers."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from rcalign.data.benchmarks import facts
from rcalign.data.benchmarks.layouts import names_of
from rcalign.data.sources import source_names

PUBLISHED = {"PACS": 9991, "VLCS": 10729, "OfficeHome": 15588, "TerraIncognita": 24330, "DomainNet": 586575}


@pytest.mark.parametrize("benchmark", facts.benchmarks().values(), ids=lambda b: b.name)
def test_facts_are_consistent(benchmark: facts.Benchmark) -> None:
    assert list(benchmark.domains) == sorted(benchmark.domains)  # DomainBed's order
    assert list(benchmark.classes) == sorted(benchmark.classes)
    domains, classes = names_of(benchmark)
    assert set(domains.values()) == set(benchmark.domains)
    assert len(classes) == len(benchmark.classes)  # no two classes differ by punctuation alone
    for edition in benchmark.editions:
        if edition.domains is not None:
            assert sum(edition.domains.values()) == edition.rows
            assert set(edition.domains) == set(benchmark.domains)
        if edition.pairs is not None:
            assert {d: sum(n) for d, n in edition.pairs.items()} == edition.domains
            assert {len(n) for n in edition.pairs.values()} == {len(benchmark.classes)}
    known = {edition.rows for edition in benchmark.editions}
    for split in benchmark.split_counts:
        assert split.train + split.val + split.test in known
        assert split.shots is None or sum(split.shots) == len(benchmark.domains) * len(benchmark.classes)
    assert set(benchmark.suffix) <= set(benchmark.domains)


def test_numbers_of_images() -> None:
    assert {name: facts.get_benchmark(name).editions[0].rows for name in PUBLISHED} == PUBLISHED
    assert facts.get_benchmark("TerraIncognita").editions[1].rows == 24788
    paper = facts.get_benchmark("DomainNet126").split_counts[0]
    assert (paper.train, paper.val, paper.test) == (97995, 8132, 16377)


def test_held_out_numbers_follow_from_the_counts() -> None:
    """Where images of every pair are known, the rule gives the known sizes of the split."""
    for benchmark in facts.benchmarks().values():
        if benchmark.mlt_name is None:
            continue
        pairs = benchmark.editions[0].pairs
        if pairs is None:
            continue
        held = [min(n, sum(benchmark.held_out)) for counts in pairs.values() for n in counts]
        val = sum(n // 3 for n in held)
        sizes = (benchmark.editions[0].rows - sum(held), val, sum(held) - val)
        assert sizes in [(split.train, split.val, split.test) for split in benchmark.split_counts], benchmark.name


@pytest.mark.parametrize("name", ["PACS", "VLCS", "OfficeHome", "TerraIncognita"])
def test_counts_and_classes_are_those_of_the_split_file(name: str, reference: Path) -> None:
    benchmark = facts.get_benchmark(name)
    with open(reference / "mdlt-splits" / f"{name}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    counted = Counter((row["env"], row["path"].split("/")[1]) for row in rows)
    pairs = benchmark.editions[0].pairs
    assert pairs is not None
    for domain in benchmark.domains:
        assert [counted[domain, label] for label in benchmark.classes] == list(pairs[domain])
    assert {(int(row["label"]), row["path"].split("/")[1]) for row in rows} == set(enumerate(benchmark.classes))


def test_the_page_says_what_the_facts_say() -> None:
    page = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text(encoding="utf-8")
    for benchmark in facts.benchmarks().values():
        numbers = [edition.rows for edition in benchmark.editions]
        numbers += [n for edition in benchmark.editions[:1] for n in (edition.domains or {}).values()]
        numbers = [n for n in numbers if benchmark.name != "TerraIncognita" or n > 20_000]
        for split in benchmark.split_counts:
            numbers += [split.train, split.val, split.test]
            assert split.shots is None or " / ".join(map(str, split.shots)) in page
        assert [n for n in numbers if f"{n:,}" not in page] == [], benchmark.name
        for text in (
            benchmark.name,
            benchmark.mlt_name or benchmark.name,
            benchmark.page,
            f"{benchmark.held_out[0]}, {benchmark.held_out[1]}",
        ):
            assert str(text) in page


def test_every_name_can_be_given_as_data() -> None:
    wanted = {*facts.benchmarks(), "ColoredMNIST", "RotatedMNIST"}
    wanted |= {benchmark.mlt_name for benchmark in facts.benchmarks().values() if benchmark.mlt_name is not None}
    assert {"PACS-MLT", "TerraInc-MLT", "DomainNet126-MLT"} <= wanted
    assert wanted <= set(source_names())
