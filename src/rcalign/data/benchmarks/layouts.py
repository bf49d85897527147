"""Which image belongs to which domain and class, read off its path. Pure: names in, names out.

Accepted below any folders: ``domain/class/image`` and ``domain/part/class/image`` with a part such as train or test, in
any spelling of the names that differs by case, spaces, hyphens and underscores only, or that the facts list.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.picture import SUFFIXES
from rcalign.data.source import listed
from rcalign.store.names import name_key

PARTS = ("train", "crossval", "val", "test", "full", "all", "images")
# an archive with parts repeats images in "full"; tried in this order until the number of images is the known one
PART_CHOICES = (("train", "crossval", "val", "test"), ("full", "test"), ("full",), ("all",), ("images",), PARTS)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an image goes."""

    domain: str
    label: str
    name: str


@dataclass(frozen=True)
class Layout:
    """spots: path -> where it goes. left_out: one sentence for each kind of image that has no place."""

    spots: Mapping[str, Spot]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    top: str
    domain: str
    part: str
    label: str
    name: str


def names_of(benchmark: Benchmark) -> tuple[dict[str, str], dict[str, str]]:
    """Spelling without case and punctuation -> our name, of domains and of classes."""
    domains = {name_key(name): name for name in benchmark.domains}
    classes = {name_key(name): name for name in benchmark.classes}
    for spelling, name in benchmark.other_names.items():
        (domains if name in benchmark.domains else classes).setdefault(name_key(spelling), name)
    return domains, classes


def place(benchmark: Benchmark, paths: Iterable[str]) -> Layout:
    """Finds the tree that holds each domain, and where its images go.

    >>> from rcalign.data.benchmarks import facts
    >>> found = place(facts.get_benchmark("PACS"), ["PACS/kfold/art painting/dog/1.jpg", "PACS/kfold/readme.txt"])
    >>> found.spots
    {'PACS/kfold/art painting/dog/1.jpg': Spot(domain='art_painting', label='dog', name='1.jpg')}
    """
    candidates, strangers = _candidates(benchmark, paths)
    chosen = _best_trees(candidates)
    spots: dict[str, Spot] = {}
    for domain in benchmark.domains:
        found = _best_parts(benchmark, domain, [c for c in candidates if chosen.get(c.domain) == c.top])
        taken: set[tuple[str, str]] = set()
        for candidate in found:
            name = candidate.name
            if (candidate.label, name) in taken:  # parts may number their images alike
                name = f"{candidate.part}_{name}"
            taken.add((candidate.label, name))
            spots[candidate.path] = Spot(domain, candidate.label, name)
    other = Counter(c.top for c in candidates if c.path not in spots)
    left_out = [f"{n:,} images in '{top or '.'}': these domains are taken from elsewhere" for top, n in other.items()]
    if strangers and benchmark.part_of is None:
        left_out.append(f"{strangers.total():,} images in {listed(list(strangers))}: not a class of {benchmark.name}")
    return Layout(spots, tuple(left_out))


def _candidates(benchmark: Benchmark, paths: Iterable[str]) -> tuple[list[_Candidate], Counter[str]]:
    """Images that lie in a domain and a class; and how many lie in a domain, but in a folder of no known class."""
    domains, classes = names_of(benchmark)
    found: list[_Candidate] = []
    strangers: Counter[str] = Counter()
    for path in paths:
        pieces = path.split("/")
        if len(pieces) < 3 or "." + pieces[-1].rpartition(".")[2].lower() not in SUFFIXES:
            continue
        where = len(pieces) - 3
        part = ""
        if name_key(pieces[where]) not in domains and name_key(pieces[where]) in PARTS and where > 0:
            part = name_key(pieces[where])
            where -= 1
        domain = domains.get(name_key(pieces[where]))
        if domain is None:
            continue
        folder = pieces[-2]
        if name_key(folder) in classes:
            label = classes[name_key(folder)]
        elif folder.isdecimal() and int(folder) < len(benchmark.classes):  # numbered as in the published order
            label = benchmark.classes[int(folder)]
        else:
            strangers["/".join(pieces[:-1])] += 1
            continue
        found.append(_Candidate(path, "/".join(pieces[:where]), domain, part, label, pieces[-1]))
    return found, strangers


def _best_trees(candidates: Sequence[_Candidate]) -> dict[str, str]:
    """domain -> the folder above it: the one with most domains, then with most images, then the shortest."""
    images = Counter((c.top, c.domain) for c in candidates)
    domains_in = Counter(top for top, _ in images)
    best: dict[str, str] = {}
    for top, domain in sorted(images, key=lambda pair: (-domains_in[pair[0]], -images[pair], len(pair[0]), pair)):
        best.setdefault(domain, top)
    return best


def _best_parts(benchmark: Benchmark, domain: str, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The candidates of a domain, each image once, in the order of their paths."""
    by_part: dict[str, list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.domain == domain:
            by_part[candidate.part].append(candidate)
    known = {edition.domains[domain] for edition in benchmark.editions if edition.domains is not None}
    choices = [[c for part in choice for c in by_part.get(part, ())] for choice in (("",), *PART_CHOICES)]
    choices = [choice for choice in choices if choice] or [[]]
    exact = [choice for choice in choices if len(choice) in known]
    return sorted((exact or choices)[0], key=lambda candidate: candidate.path)
