"""Stand-ins have the layout and the names of the data set, and something to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcalign.data import load, split
from rcalign.data.benchmarks import contents, facts, sample
from rcalign.data.cache import decode
from rcalign.errors import InputError

SMALL = ["PACS", "VLCS", "OfficeHome", "TerraIncognita"]


@pytest.mark.parametrize("name", SMALL)
def test_layout_and_names(name: str, own_root: Path) -> None:
    benchmark = facts.get_benchmark(name)
    made = sample.sample(benchmark, own_root, each=1, size=8)
    data = load(name)
    assert made["images"] == len(data) == len(benchmark.domains) * len(benchmark.classes)
    assert (data.counts() == 1).all()
    suffixes = {path.parent.parent.name: path.suffix for path in data.content.paths}
    assert suffixes == {domain: benchmark.suffix.get(domain, ".jpg") for domain in benchmark.domains}
    assert not contents.verify(benchmark)["complete"]


@pytest.mark.parametrize("name", ["PACS", "TerraIncognita"])
def test_long_tailed(name: str, own_root: Path) -> None:
    benchmark = facts.get_benchmark(name)
    sample.sample(benchmark, own_root, each=4, size=8, long_tailed=True)
    data = load(str(benchmark.mlt_name))
    parts = split(data, "mdlt", [], 0)
    counts = data.counts(np.concatenate(list(parts.train.values())))
    assert counts.min() == 1 and counts.max() == 4
    assert len({tuple(row) for row in counts}) == len(benchmark.domains)  # other head classes in each domain


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        sample.sample(facts.get_benchmark("VLCS"), tmp_path / folder, each=1, size=16, seed=seed)
    a, b, c = ((tmp_path / name / "VLCS/SUN09/dog/pic_001.jpg").read_bytes() for name in "abc")
    assert a == b != c


def test_classes_look_alike_within_and_different_between() -> None:
    """The mean colour of the inner part is nearer to that of the own class than to another's, in a coloured domain."""
    rng = np.random.default_rng(0)

    def colour(label: int) -> np.ndarray:
        picture = np.asarray(sample.draw_picture(1, label, 7, 32, rng), dtype=float)
        return picture[14:18, 14:18].mean((0, 1))

    first, second = ([colour(label) for label in range(7)] for _ in range(2))
    nearest = [int(np.argmin([np.linalg.norm(a - b) for b in first])) for a in second]
    assert nearest == list(range(7))


def test_nothing_is_replaced(own_root: Path) -> None:
    sample.sample(facts.get_benchmark("PACS"), own_root, each=1, size=8)
    with pytest.raises(InputError, match="exists already"):
        sample.sample(facts.get_benchmark("PACS"), own_root)
    with pytest.raises(InputError, match="`each` is 0"):
        sample.sample(facts.get_benchmark("VLCS"), own_root, each=0)
    assert not (own_root / "VLCS").exists()


def test_images_have_their_size(own_root: Path) -> None:
    sample.sample(facts.get_benchmark("PACS"), own_root, each=1, size=24)
    assert decode(own_root / "PACS/sketch/dog/pic_001.png", None).shape == (24, 24, 3)
