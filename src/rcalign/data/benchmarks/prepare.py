"""From what people have to what is trained on: ``root/folder/domain/class/image``.

A domain appears in its place when it is whole; until then it grows in a hidden folder beside it, and the same command
goes on where an interrupted one stopped. Domains that are in place are left alone.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rcalign.data.benchmarks import camera_traps, layouts, mdlt, parquet
from rcalign.data.benchmarks.archives import Entry, Folder, Source, Tar, is_archive, open_source, write_bytes
from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.benchmarks.layouts import Spot
from rcalign.data.benchmarks.place import check_room, data_root, disk_errors, is_stand_in, locked
from rcalign.data.source import listed
from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.store.names import name_key

ANNOTATION_ARCHIVE = 512 * 2**20  # a larger tar holds the images; it is not read through to look for annotations


@dataclass(frozen=True)
class _Count:
    """What a bar is told: that so many more images are to come, and that one is done."""

    expect: Callable[[int], None] = lambda number: None
    done: Callable[[], None] = lambda: None


def prepare(
    benchmark: Benchmark,
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    drop: str | os.PathLike[str] | None = None,
    keep: Sequence[str | os.PathLike[str]] = (),
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Puts a data set into the data root; returns what was done, as plain values.

    sources: archives, folders (also DomainBed's whole data_dir, or a folder of archives), parquet files or folders,
    camera-trap annotations, an MDLT split file. drop: a list of files ``domain/class/image`` to leave out. keep: lists
    of the only files to use, each perhaps followed by a number. replace: prepare domains anew that are in place.
    """
    place = data_root(root) / benchmark.folder
    given = _sort(benchmark, [Path(source).expanduser().absolute() for source in sources])
    for file in given.split_files:
        mdlt.read_split_file(benchmark, file)  # a wrong file is refused before anything is done
    notes: list[str] = []
    images: dict[str, int] = {}
    if given.trees or given.tables:
        with locked(place.with_name(f".{place.name}.lock"), f"Another process prepares {benchmark.name}: waiting."):
            chosen = _Choice(
                benchmark,
                place,
                set() if drop is None else _listed([drop]),
                _listed(keep) if keep else None,
                replace,
            )
            with _bar(f"Preparing {benchmark.name}", progress) as count:
                notes += _fill(benchmark, given, chosen, count)
            images = _install(chosen, place)
        notes += chosen.notes()
    elif given.annotations:
        raise InputError("annotations were given, but no images: name the images' archive or folder in `sources` too.")
    for file in given.split_files:
        with disk_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / f"{benchmark.name}.csv", file.read_bytes())
    return {
        "name": benchmark.name,
        "folder": str(place),
        "images": images,
        "split_file": bool(given.split_files),
        "notes": notes,
    }


# --- what was handed over ----------------------------------------------------------------------------------------


@dataclass
class _Given:
    """What was handed over, by kind. annotations: name and content."""

    trees: list[Source] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    annotations: list[tuple[str, bytes]] = field(default_factory=list)
    split_files: list[Path] = field(default_factory=list)


def _sort(benchmark: Benchmark, paths: Sequence[Path]) -> _Given:
    given = _Given()
    if not paths:
        raise InputError(f"nothing was given to prepare {benchmark.name} from: name a folder or archive in `sources`.")
    for path in paths:
        if not path.exists():
            raise InputError(f"'{path}' does not exist: give the archive or folder of {benchmark.name} with `sources`.")
        if path.is_dir():
            _sort_folder(benchmark, path, given)
        elif is_archive(path):
            _add_tree(benchmark, open_source(path), given)
        elif path.suffix.lower() == ".parquet":
            given.tables.append(path)
        elif path.suffix.lower() == ".csv":
            given.split_files.append(path)
        elif path.suffix.lower() == ".json" and benchmark.annotated:
            given.annotations.append((path.name, path.read_bytes()))
        else:
            raise InputError(
                f"'{path}' is of no kind that {benchmark.name} is made from: expected a folder, an archive (.zip, "
                ".tar, .tar.gz, .tgz), .parquet files"
                + (", a .json of camera-trap annotations" if benchmark.annotated else "")
                + " or a .csv of MDLT splits."
            )
    return given


def _sort_folder(benchmark: Benchmark, path: Path, given: _Given) -> None:
    inside = sorted(path.iterdir())
    domains, _ = layouts.names_of(benchmark)
    own = [item for item in inside if item.is_dir() and item.name in (benchmark.folder, benchmark.name)]
    if any(item.is_dir() and name_key(item.name) in domains for item in inside):
        _add_tree(benchmark, open_source(path), given)
    elif own:  # DomainBed's data_dir: what else it holds need not be read
        _sort_folder(benchmark, own[0], given)
    elif tables := parquet.files_in(path):
        given.tables += tables
    elif archives := [item for item in inside if item.is_file() and is_archive(item)]:
        for archive in archives:
            _add_tree(benchmark, open_source(archive), given)
    else:
        _add_tree(benchmark, open_source(path), given)
    if (path / f"{benchmark.name}.csv").is_file():
        given.split_files.append(path / f"{benchmark.name}.csv")


def _add_tree(benchmark: Benchmark, tree: Source, given: _Given) -> None:
    """A source of images, of annotations, or of both."""
    if benchmark.annotated and not (isinstance(tree, Tar) and tree.path.stat().st_size > ANNOTATION_ARCHIVE):
        entries = list(tree.entries())
        texts = [entry for entry in entries if entry.name.lower().endswith(".json")]
        given.annotations += [(entry.name, tree.read(entry.path)) for entry in texts]
        if texts and len(texts) == len(entries):
            return
    given.trees.append(tree)


def _listed(files: Sequence[str | os.PathLike[str]]) -> set[str]:
    """The paths ``domain/class/image`` in text files, one on each line, perhaps followed by a number."""
    found: set[str] = set()
    for file in files:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the list '{file}' cannot be read ({error}): expected text, a path on each line."
            ) from None
        for number, line in enumerate(lines, 1):
            path, space, last = line.strip().rpartition(" ")
            path = path.strip() if space and last.isdecimal() else line.strip()
            if path and path.count("/") < 2:
                raise InputError(f"line {number} of '{file}' is '{path}', but a path domain/class/image is expected.")
            if path:
                found.add("/".join(path.split("/")[-3:]))
    return found


# --- files into place --------------------------------------------------------------------------------------------


class _Choice:
    """Decides which images are wanted, where each goes, and remembers what it decided."""

    def __init__(
        self, benchmark: Benchmark, place: Path, dropped: set[str], kept: set[str] | None, replace: bool
    ) -> None:
        if is_stand_in(place) and not replace:
            raise InputError(
                f"'{place}' is a drawn stand-in: remove it, or put the data set in its place with `replace`, or use "
                "another folder with `root`."
            )
        self.growing = place.with_name(f".{place.name}.growing")
        self.targets: set[Path] = set()
        self.have = set() if replace else {name for name in benchmark.domains if (place / name).is_dir()}
        if len(self.have) == len(benchmark.domains):
            raise InputError(
                f"'{place}' has all domains of {benchmark.name} already: look at it with 'rcalign data verify "
                f"{benchmark.name}', or prepare it anew with `replace`."
            )
        self._benchmark, self._dropped, self._kept = benchmark, dropped, kept
        self._counts: Counter[str] = Counter()
        self._missed = set(kept or ())

    def target(self, spot: Spot) -> Path | None:
        path = f"{spot.domain}/{spot.label}/{spot.name}"
        self._missed.discard(path)
        if spot.domain in self.have:
            self._counts["in place"] += 1
        elif path in self._dropped:
            self._counts["dropped"] += 1
        elif self._kept is not None and path not in self._kept:
            self._counts["not listed"] += 1
        else:
            target = self.growing / spot.domain / spot.label / spot.name
            self.targets.add(target)
            return target
        return None

    def notes(self) -> list[str]:
        found = []
        if self._counts["in place"]:
            found.append(f"left alone, since in place: {', '.join(sorted(self.have))} (`replace` prepares them anew)")
        if self._dropped:
            found.append(f"{self._counts['dropped']:,} of the {len(self._dropped):,} files to drop were there")
        if self._kept is not None:
            found.append(f"{self._counts['not listed']:,} images left out: not in the lists")
        if self._missed:
            found.append(f"{len(self._missed):,} listed files were not found, such as '{min(self._missed)}'")
        return found


def _fill(benchmark: Benchmark, given: _Given, chosen: _Choice, count: _Count) -> list[str]:
    """Writes every wanted image below ``chosen.growing``. -> notes."""
    notes: list[str] = []
    if given.annotations:
        notes += _fill_annotated(benchmark, given, chosen, count)
    else:
        notes += _fill_trees(benchmark, given.trees, chosen, count)
    count.expect(parquet.count_rows(given.tables))
    for spot, content in parquet.rows(benchmark, given.tables):
        target = chosen.target(spot)
        if target is not None:
            write_bytes(content, target)
        count.done()
    if not chosen.targets:
        classes = (
            f"{', '.join(benchmark.classes[:3])}, ..." if len(benchmark.classes) > 10 else ", ".join(benchmark.classes)
        )
        left_out = f" ({'; '.join([*notes, *chosen.notes()])})" if notes or chosen.notes() else ""
        names = listed([str(tree.path) for tree in given.trees] + [str(table) for table in given.tables])
        raise InputError(
            f"{names} has no image to add to {benchmark.name}{left_out}: expected are folders domain/class/image with "
            f"the domains {', '.join(benchmark.domains)} and the classes {classes}."
        )
    return notes


def _fill_trees(benchmark: Benchmark, trees: Sequence[Source], chosen: _Choice, count: _Count) -> list[str]:
    """By folders: all of them are listed before the first is copied, so that it is known how much there is to do."""
    notes, wanted = [], []
    for tree in trees:
        entries = list(tree.entries())
        layout = layouts.place(benchmark, (entry.path for entry in entries))
        targets = {path: chosen.target(spot) for path, spot in layout.spots.items()}
        targets = {path: target for path, target in targets.items() if target is not None}
        if not isinstance(tree, Folder):
            sizes = sum(entry.size for entry in entries if entry.path in targets)
            check_room(chosen.growing, sizes, f"unpacking '{tree.path.name}'")
        wanted.append(targets)
        notes += [f"left out of '{tree.path.name}': {sentence}" for sentence in layout.left_out]
    count.expect(sum(map(len, wanted)))
    for tree, targets in zip(trees, wanted, strict=True):
        for _ in tree.copy(lambda entry, found=targets: [found[entry.path]] if entry.path in found else []):  # type: ignore[misc]
            count.done()
    return notes


def _fill_annotated(benchmark: Benchmark, given: _Given, chosen: _Choice, count: _Count) -> list[str]:
    """By annotations: one pass over each archive, whatever its size, since the names are known before."""
    wanted = camera_traps.spots(benchmark, given.annotations)
    found: set[str] = set()

    def places(entry: Entry) -> Sequence[Path]:
        targets = (chosen.target(spot) for spot in wanted.get(entry.name, ()))
        return [target for target in targets if target is not None]

    count.expect(len(wanted))
    for tree in given.trees:
        for entry in tree.copy(places):
            found.add(entry.name)
            count.done()
    missing = sorted(wanted.keys() - found)
    return [f"{len(missing):,} annotated images were not found, such as '{missing[0]}'"] if missing and found else []


def _install(chosen: _Choice, place: Path) -> dict[str, int]:
    """Moves whole domains into place. -> images of each."""
    images: dict[str, int] = {}
    with disk_errors(place):
        for folder, _, files in os.walk(chosen.growing):
            for name in files:  # of an interrupted run with other choices
                if Path(folder) / name not in chosen.targets:
                    os.unlink(Path(folder) / name)
        if is_stand_in(place):
            shutil.rmtree(place)
        place.mkdir(parents=True, exist_ok=True)
        for domain in sorted({target.parent.parent.name for target in chosen.targets}):
            images[domain] = sum(target.parent.parent.name == domain for target in chosen.targets)
            old = chosen.growing / f".{domain}.old"
            if (place / domain).exists():
                os.rename(place / domain, old)
            os.rename(chosen.growing / domain, place / domain)
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(chosen.growing, ignore_errors=True)
    return images


@contextmanager
def _bar(text: str, show: bool) -> Iterator[_Count]:
    """A bar on the error stream: images done, those to do as soon as the sources are listed, and the time left."""
    if not show:
        yield _Count()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("images"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=None)
        expected: list[int] = []

        def expect(number: int) -> None:
            expected.append(number)
            bar.update(task, total=sum(expected) or None)

        yield _Count(expect, lambda: bar.advance(task))
