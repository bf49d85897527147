"""What lies in a data root: a benchmark as a data set, or what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data import cache
from rcalign.data.benchmarks import mdlt
from rcalign.data.benchmarks.facts import Benchmark, Edition
from rcalign.data.benchmarks.place import data_root, is_stand_in, stand_in_note
from rcalign.data.picture import SUFFIXES
from rcalign.data.source import SPLITS, Dataset, listed
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError

SHOWN = 20  # problems that are spelled out


@dataclass(frozen=True, eq=False)
class Contents:
    """The images of a benchmark, in DomainBed's order: by domain, class and file name, each by its characters.

    names: ``domain/class/image`` of each. domain, label: their positions. strangers: folders of no known class.
    """

    folder: Path
    names: tuple[str, ...]
    domain: np.ndarray
    label: np.ndarray
    missing: tuple[str, ...]
    strangers: tuple[str, ...]

    def counts(self, benchmark: Benchmark, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """(K, C): the images of each pair, of all rows or of some."""
        table = np.zeros((len(benchmark.domains), len(benchmark.classes)), dtype=np.int64)
        np.add.at(table, (self.domain[rows], self.label[rows]), 1)
        return table


def read_contents(benchmark: Benchmark, root: str | os.PathLike[str] | None = None) -> Contents:
    """Lists the images of a benchmark; an error if its folder is not there."""
    folder = data_root(root) / benchmark.folder
    if not folder.is_dir():
        raise _absent(benchmark, folder)
    names: list[str] = []
    pairs: list[tuple[int, int]] = []
    missing: list[str] = []
    strangers: list[str] = []
    for k, domain in enumerate(benchmark.domains):
        if not (folder / domain).is_dir():
            missing.append(domain)
            continue
        inside = {name for name, is_folder in _entries(folder / domain) if is_folder}
        strangers += [f"{domain}/{name}" for name in sorted(inside.difference(benchmark.classes))]
        for c, label in enumerate(benchmark.classes):
            if label in inside:
                files = sorted(
                    name
                    for name, is_folder in _entries(folder / domain / label)
                    if not is_folder and os.path.splitext(name)[1].lower() in SUFFIXES
                )
                names += [f"{domain}/{label}/{name}" for name in files]
                pairs += [(k, c)] * len(files)
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Contents(folder, tuple(names), table[:, 0], table[:, 1], tuple(missing), tuple(strangers))


def load(
    benchmark: Benchmark,
    root: str | os.PathLike[str] | None = None,
    *,
    partial: bool = False,
    skip_bad: bool = False,
    progress: bool = False,
) -> Dataset:
    """The data set in the data root. partial: also if its counts are those of no known edition."""
    contents = read_contents(benchmark, root)
    notes = _accepted(benchmark, contents, partial)
    rows = np.arange(len(contents.names))
    return _dataset(benchmark, benchmark.name, contents, rows, None, notes, skip_bad, progress)


def load_mlt(
    benchmark: Benchmark,
    root: str | os.PathLike[str] | None = None,
    split_file: str | os.PathLike[str] | None = None,
    *,
    partial: bool = False,
    skip_bad: bool = False,
    progress: bool = False,
) -> Dataset:
    """The long-tailed version: the images of the split file, with its parts; or all images, split by the rule."""
    assert benchmark.mlt_name is not None
    contents = read_contents(benchmark, root)
    rows, part, notes, lost = _parts(benchmark, contents, split_file)
    if lost and not partial:
        raise InputError(
            f"{len(lost):,} images of the split file of {benchmark.mlt_name} are not in '{contents.folder}', such as "
            f"'{lost[0]}': see 'rcalign data verify {benchmark.mlt_name}', or go on without them with "
            f"{benchmark.mlt_name}:partial=true."
        )
    if len(rows) == len(contents.names) or is_stand_in(contents.folder):
        notes += _accepted(benchmark, contents, partial)
    data = _dataset(benchmark, benchmark.mlt_name, contents, rows, part, notes, skip_bad, progress)
    return replace(data, shots=benchmark.shots)


def verify(
    benchmark: Benchmark,
    root: str | os.PathLike[str] | None = None,
    split_file: str | os.PathLike[str] | None = None,
    *,
    long_tailed: bool = False,
    decode: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Compares a data set with what is known of it. decode: also decode every image. -> plain values.

    ``complete`` is whether there is nothing to complain of; ``problems`` are the complaints, one sentence each.
    """
    contents = read_contents(benchmark, root)
    counts = contents.counts(benchmark)
    edition = benchmark.edition_of(counts)
    drawn = ["it is a drawn stand-in, not the data set"] if is_stand_in(contents.folder) else []
    problems = [] if edition is not None else differences(benchmark, contents)
    notes = []
    if edition is not None and benchmark.editions and edition is not benchmark.editions[0]:
        notes.append(f"the counts are those of '{edition.name}'; most use '{benchmark.editions[0].name}'")
    report: dict[str, Any] = {
        "name": benchmark.mlt_name if long_tailed else benchmark.name,
        "folder": str(contents.folder),
        "images": len(contents.names),
        "domains": dict(zip(benchmark.domains, counts.sum(1).tolist(), strict=True)),
        "expected": {known.name: known.rows for known in benchmark.editions},
        "edition": None if edition is None else edition.name,
    }
    if long_tailed:
        split, more = _verify_split(benchmark, contents, split_file)
        report["split"] = split
        # a split file says itself which images it needs
        problems = more if split["file"] is not None else [*problems, *more]
    if decode:
        problems += _broken(contents, progress)
    problems = [*drawn, *problems]
    return {**report, "complete": not problems, "problems": problems, "notes": notes}


def differences(benchmark: Benchmark, contents: Contents) -> list[str]:
    """How the counts differ from the nearest known edition, one sentence each."""
    counts = contents.counts(benchmark)
    if not benchmark.editions:
        return _gaps(benchmark, contents, counts)
    nearest = min(benchmark.editions, key=lambda edition: _distance(benchmark, edition, counts))
    found = [f"domain '{name}' is missing{_of(nearest, name)}" for name in contents.missing]
    found += [f"folder '{name}' is not a class of {benchmark.name}" for name in contents.strangers]
    before = len(found)
    for k, domain in enumerate(benchmark.domains):
        if domain in contents.missing:
            continue
        if nearest.pairs is not None:
            found += [
                f"{domain}/{label} has {have:,} images, {wanted:,} expected"
                for label, have, wanted in zip(
                    benchmark.classes, counts[k].tolist(), nearest.pairs[domain], strict=True
                )
                if have != wanted
            ]
        elif nearest.domains is not None and counts[k].sum() != nearest.domains[domain]:
            found.append(f"{domain} has {counts[k].sum():,} images, {nearest.domains[domain]:,} expected")
            empty = [label for label, n in zip(benchmark.classes, counts[k], strict=True) if n == 0]
            found += [f"{domain} has no image of {listed(empty)}"] if empty else []
    if len(found) == before and not contents.missing:
        found.append(f"there are {counts.sum():,} images, {nearest.rows:,} expected")
    if len(found) > SHOWN:
        found = [*found[:SHOWN], f"and {len(found) - SHOWN} more differences"]
    return found


def _gaps(benchmark: Benchmark, contents: Contents, counts: np.ndarray) -> list[str]:
    """What is wrong with a data set whose counts are not published: only what is not there at all."""
    found = [f"domain '{name}' is missing" for name in contents.missing]
    found += [f"folder '{name}' is not a class of {benchmark.name}" for name in contents.strangers]
    for k, domain in enumerate(benchmark.domains):
        empty = [label for label, n in zip(benchmark.classes, counts[k], strict=True) if n == 0]
        found += [f"{domain} has no image of {listed(empty)}"] if empty and domain not in contents.missing else []
    return found


def _distance(benchmark: Benchmark, edition: Edition, counts: np.ndarray) -> int:
    if edition.domains is None:
        return abs(edition.rows - int(counts.sum())) + 1  # tells less: only if it is nearer
    wanted = [edition.domains[name] for name in benchmark.domains]
    return int(np.abs(counts.sum(1) - wanted).sum())


def _of(edition: Edition, domain: str) -> str:
    return "" if edition.domains is None else f" ({edition.domains[domain]:,} images)"


def _accepted(benchmark: Benchmark, contents: Contents, partial: bool) -> list[str]:
    """Notes on what the data set is; an error if it is nothing known and nobody said that this is all right."""
    edition = benchmark.edition_of(contents.counts(benchmark))
    if is_stand_in(contents.folder):
        return [stand_in_note(contents.folder, benchmark.name)]
    if edition is not None:
        return [f"edition: {edition.name}"] if len(benchmark.editions) > 1 else []
    found = differences(benchmark, contents)
    if contents.strangers or contents.missing or not partial:
        more = f" (and {len(found) - 1} more differences)" if len(found) > 1 else ""
        go_on = "" if contents.strangers or contents.missing else f", or go on with {benchmark.name}:partial=true"
        raise InputError(
            f"'{contents.folder}' is not the whole of {benchmark.name}: {found[0]}{more}; see 'rcalign data verify "
            f"{benchmark.name}'{go_on}."
        )
    return [f"not the whole of {benchmark.name}: {sentence}" for sentence in found]


def _parts(
    benchmark: Benchmark, contents: Contents, split_file: str | os.PathLike[str] | None
) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """Rows that are used, the part of each, notes, and images of the split file that are not there."""
    file = split_path(benchmark, contents.folder, split_file)
    if file is None:
        domain = [benchmark.domains[k] for k in contents.domain]
        label = [benchmark.classes[c] for c in contents.label]
        part = mdlt.by_rule(domain, label, benchmark.held_out)
        note = (
            f"split by the published rule with its seed {mdlt.SEED}, rows in the order of their names, since there is "
            f"no split file '{benchmark.name}.csv' in '{contents.folder}'"
        )
        return np.arange(len(part)), part, [note], []
    wanted = mdlt.read_split_file(benchmark, file)
    rows = np.array([row for row, name in enumerate(contents.names) if name in wanted], dtype=np.int64)
    part = np.array([wanted[contents.names[row]] for row in rows], dtype="<U5")
    lost = sorted(wanted.keys() - {contents.names[row] for row in rows})
    notes = [f"split of the file '{file}'"]
    if len(rows) < len(contents.names):
        notes.append(f"{len(contents.names) - len(rows):,} images left out: not in the split file")
    if lost:
        notes.append(f"{len(lost):,} images of the split file are not there, such as '{lost[0]}'")
    return rows, part, notes, lost


def split_path(benchmark: Benchmark, folder: Path, given: str | os.PathLike[str] | None) -> Path | None:
    """The split file that was given, or that lies with the images, where its authors want it; else None."""
    if given:
        path = Path(given).expanduser().absolute()
        if not path.is_file():
            raise InputError(f"there is no split file '{path}': give a .csv with {', '.join(mdlt.COLUMNS)}.")
        return path
    path = folder / f"{benchmark.name}.csv"
    return path if path.is_file() else None


def _verify_split(
    benchmark: Benchmark, contents: Contents, split_file: str | os.PathLike[str] | None
) -> tuple[dict[str, Any], list[str]]:
    rows, part, _, lost = _parts(benchmark, contents, split_file)
    file = split_path(benchmark, contents.folder, split_file)
    sizes = {name: int((part == name).sum()) for name in SPLITS}
    shots = mdlt.shot_pairs(contents.counts(benchmark, rows[part == "train"]), benchmark.shots)
    known = next(
        (
            counts
            for counts in benchmark.split_counts
            if (counts.train, counts.val, counts.test) == tuple(sizes.values()) and counts.shots in (None, shots)
        ),
        None,
    )
    problems = [f"{len(lost):,} images of the split file are missing: {listed(lost)}"] if lost else []
    if known is None and not lost:
        expected = " or ".join(
            f"{counts.train:,} / {counts.val:,} / {counts.test:,} ({counts.name})" for counts in benchmark.split_counts
        )
        have = " / ".join(f"{n:,}" for n in sizes.values())
        problems.append(f"the split has {have} train, val and test rows, expected {expected}")
    split = {
        "file": None if file is None else str(file),
        **sizes,
        "shots": dict(zip(mdlt.SHOTS, shots, strict=True)),
        "edition": None if known is None else known.name,
        "expected": {counts.name: [counts.train, counts.val, counts.test] for counts in benchmark.split_counts},
    }
    return split, problems


def _broken(contents: Contents, progress: bool) -> list[str]:
    """One sentence for each file that is not a whole image."""

    def why(name: str) -> str | None:
        try:
            cache.decode(contents.folder / name, 32)
        except cache.BadImage as found:
            return f"'{name}' is not a whole image: {found}"
        return None

    found = cache.in_threads(why, contents.names, "Decoding images", progress)
    bad = [sentence for sentence in found if sentence is not None]
    return [*bad[:SHOWN], *([f"and {len(bad) - SHOWN} more such files"] if len(bad) > SHOWN else [])]


def _dataset(
    benchmark: Benchmark,
    name: str,
    contents: Contents,
    rows: np.ndarray,
    part: np.ndarray | None,
    notes: Sequence[str],
    skip_bad: bool,
    progress: bool,
) -> Dataset:
    return dataset_of_files(
        name,
        contents.folder,
        [contents.folder / contents.names[row] for row in rows],
        [benchmark.classes[c] for c in contents.label[rows]],
        [benchmark.domains[k] for k in contents.domain[rows]],
        split=None if part is None else part.tolist(),
        notes=notes,
        class_order=benchmark.classes,
        domain_order=benchmark.domains,
        skip_bad=skip_bad,
        progress=progress,
    )


def _absent(benchmark: Benchmark, folder: Path) -> InputError:
    name = benchmark.name
    larger = folder.parent / "domain_net"
    if benchmark.part_of is not None and larger.is_dir():
        get = f"make it with 'rcalign data prepare {name} --from {larger}' and --keep LIST for each of its lists"
    else:
        get = f"get it with 'rcalign data fetch {name}', or 'rcalign data prepare {name} --from PATH' if you have it"
    return InputError(
        f"{name} is not in the data root, no folder '{folder}': {get}, set RCALIGN_DATA if it is elsewhere, or "
        f"try things with 'rcalign data sample {name} --out DIR'."
    )


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Name of each entry that is not hidden, and whether it is a folder."""
    try:
        with os.scandir(folder) as found:
            return [(entry.name, entry.is_dir()) for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be read ({error.strerror}): check its permissions.") from None
