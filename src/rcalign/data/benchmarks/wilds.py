"""Camelyon17 and FMoW of WILDS (Koh et al., ICML 2021), from the official archives and their tables; no other package.

Each has two names. ``Camelyon17`` and ``FMoW`` carry the official parts, for ``protocol=wilds``: the training domains,
their in-distribution validation rows, which are evaluated beside it, the out-of-distribution validation domains, by
which a model is chosen, and the test domains. ``WILDSCamelyon`` and ``WILDSFMoW`` are DomainBed's: every row, with the
hospital or the region as domain, to leave domains out of.

FMoW shifts in time: the official domains are the regions up to 2012 (training), 2013 to 2015 (validation) and from 2016
on (test). The benchmark's own figure is the accuracy of the worst region, for which it leaves the region "Other" out;
so that region neither chooses nor is tested here, and the worst test domain is that figure. In-distribution test rows
are left out.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.benchmarks.archives import Entry, is_archive, open_source
from rcalign.data.benchmarks.facts import class_names
from rcalign.data.benchmarks.place import compared, data_root, disk_errors, is_stand_in, locked, stand_in_note
from rcalign.data.source import Dataset, listed
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError

PAGE = "https://wilds.stanford.edu/datasets/"
PARTS = ("train", "id_val", "val", "test")
REGIONS = ("Asia", "Europe", "Africa", "Americas", "Oceania", "Other")
OTHER = "Other"


@dataclass(frozen=True)
class Row:
    """An image. part: one of ``PARTS``, "id_test", or "" for rows that are not used. group: hospital or region."""

    path: str
    label: str
    group: str
    part: str


@dataclass(frozen=True)
class WildsSet:
    """folder: below the data root, as the ``wilds`` package names it. tables: the files beside the images. image: what
    the path of an image ends with. rows: reads the tables. expected: published rows of each part."""

    name: str
    plain_name: str
    folder: str
    summary: str
    tables: tuple[str, ...]
    image: str
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    rows: Callable[[Path], Iterator[Row]]
    expected: dict[str, int]
    licence: str


def _table(file: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"'{file}' lacks the column {', '.join(missing)}: get it again from {PAGE}.")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"'{file}' cannot be read as a table ({error}): get it again from {PAGE}.") from None


def _camelyon_rows(folder: Path) -> Iterator[Row]:
    columns = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
    for row in _table(folder / "metadata.csv", columns):
        patient, node = row["patient"].zfill(3), row["node"]
        name = f"patient_{patient}_node_{node}"
        part = {"1": "val", "2": "test"}.get(row["center"]) or ("id_val" if row["split"] == "1" else "train")
        yield Row(
            f"patches/{name}/patch_{name}_x_{row['x_coord']}_y_{row['y_coord']}.png",
            "tumor" if row["tumor"] == "1" else "normal",
            f"hospital_{row['center']}",
            part,
        )


def _fmow_rows(folder: Path) -> Iterator[Row]:
    region_of = {
        row["alpha-3"]: row["region"] for row in _table(folder / "country_code_mapping.csv", ("alpha-3", "region"))
    }
    columns = ("split", "category", "country_code", "timestamp")
    for number, row in enumerate(_table(folder / "rgb_metadata.csv", columns)):
        region = region_of.get(row["country_code"], OTHER) or OTHER
        try:
            year = int(row["timestamp"][:4])
        except ValueError:
            raise InputError(
                f"row {number} of '{folder / 'rgb_metadata.csv'}' has the time '{row['timestamp']}', but a date such "
                "as 2016-01-31T... is expected."
            ) from None
        part = ""
        if row["split"] == "train":
            part = "train" if year < 2013 else ""
        elif row["split"] == "val":
            part = "id_val" if year < 2013 else "val" if year < 2016 else ""
        elif row["split"] == "test":
            part = "id_test" if year < 2013 else "test" if year >= 2016 else ""
        if row["split"] != "seq":  # sequestered: not part of the published set
            yield Row(f"images/rgb_img_{number}.png", row["category"], region, part)


SETS = (
    WildsSet(
        "Camelyon17",
        "WILDSCamelyon",
        "camelyon17_v1.0",
        "tumour or not in patches of slides of five hospitals, with WILDS's official parts",
        ("metadata.csv",),
        r"patches/patient_\d+_node_\d+/patch_patient_\d+_node_\d+_x_\d+_y_\d+\.png",
        ("normal", "tumor"),
        tuple(f"hospital_{n}" for n in range(5)),
        _camelyon_rows,
        {"train": 302_436, "id_val": 33_560, "val": 34_904, "test": 85_054},
        "CC0",
    ),
    WildsSet(
        "FMoW",
        "WILDSFMoW",
        "fmow_v1.1",
        "62 uses of land seen by satellites, six regions, later years tested, with WILDS's official parts",
        ("rgb_metadata.csv", "country_code_mapping.csv"),
        r"images/rgb_img_\d+\.png",
        class_names("FMoW"),
        REGIONS,
        _fmow_rows,
        {"train": 76_863, "id_val": 11_483, "val": 19_915, "test": 22_108},
        "FMoW Challenge Public License",
    ),
)


def get_wilds(name: str) -> WildsSet:
    """The set of one of its two names."""
    return next(item for item in SETS if name in (item.name, item.plain_name))


def load(
    name: str,
    root: str | None = None,
    *,
    partial: bool = False,
    skip_bad: bool = False,
    progress: bool = False,
) -> Dataset:
    """The rows in the data root; under the official name with their parts. partial: also if images are missing."""
    item = get_wilds(name)
    folder = _there(item, root)
    rows = list(item.rows(folder))
    official = name == item.name
    notes = [stand_in_note(folder, name)] if is_stand_in(folder) else []
    if official:
        kept = [row for row in rows if row.part in PARTS and not (row.part in ("val", "test") and row.group == OTHER)]
        if len(kept) < len(rows):
            notes.append(f"{len(rows) - len(kept):,} rows left out: in-distribution test, unused years, region {OTHER}")
        rows = kept
    here = _images(folder)
    lost = [row.path for row in rows if row.path not in here]
    if lost and not partial:
        raise InputError(
            f"{len(lost):,} images of {name} are not in '{folder}', such as '{lost[0]}': see 'rcalign data verify "
            f"{name}', or go on without them with {name}:partial=true."
        )
    rows = [row for row in rows if row.path in here]
    domains = [_domain(item, row) if official else row.group for row in rows]
    present = set(domains)
    order = [*item.groups, *(f"{group}{mark}" for mark in MARKS.values() if mark for group in item.groups)]
    return dataset_of_files(
        name,
        folder,
        [folder / row.path for row in rows],
        [row.label for row in rows],
        domains,
        split=["val" if row.part == "id_val" else row.part for row in rows] if official else None,
        notes=notes,
        class_order=item.classes,
        domain_order=[domain for domain in order if domain in present],
        skip_bad=skip_bad,
        progress=progress,
    )


MARKS = {"train": "", "id_val": "", "val": " 2013-2015", "test": " 2016-2017"}  # FMoW: a region in other years


def _domain(item: WildsSet, row: Row) -> str:
    return row.group if item.name == "Camelyon17" else row.group + MARKS[row.part]


def _there(item: WildsSet, root: str | os.PathLike[str] | None) -> Path:
    folder = data_root(root) / item.folder
    if not all((folder / table).is_file() for table in item.tables):
        raise InputError(
            f"{item.name} is not in the data root, no '{item.tables[0]}' in '{folder}': get the official archive from "
            f"{PAGE} and run 'rcalign data prepare {item.name} --from ARCHIVE', or set RCALIGN_DATA if it is elsewhere."
        )
    return folder


def _images(folder: Path) -> set[str]:
    """The paths of all images below a folder."""
    found: set[str] = set()
    for top, _, files in os.walk(folder):
        inside = os.path.relpath(top, folder)
        found.update(f"{inside}/{name}" for name in files if name.endswith(".png"))
    return found


def prepare(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Puts the tables and images of the official archive, or of a folder with its content, into the data root."""
    item = get_wilds(name)
    folder = data_root(root) / item.folder
    with locked(folder.with_name(f".{item.folder}.lock"), f"Another process prepares {name}: waiting."):
        if folder.exists() and not replace:
            raise InputError(f"'{folder}' is there already: prepare it anew with `replace`.")
        # kept if interrupted: files that are whole are not copied again
        growing = folder.with_name(f".{item.folder}.growing")
        with disk_errors(folder):
            growing.mkdir(parents=True, exist_ok=True)
        image = re.compile(rf"(?:^|/)({item.image})$")

        def places(entry: Entry) -> list[Path]:
            if entry.name in item.tables:
                return [growing / entry.name]
            found = image.search(entry.path)
            return [growing / found[1]] if found else []

        for source in (Path(path).expanduser().absolute() for path in sources):
            if not source.is_dir() and not (source.is_file() and is_archive(source)):
                raise InputError(f"'{source}' is no folder and no archive: give the official archive, from {PAGE}.")
            for _ in open_source(source).copy(places):
                pass
        absent = [table for table in item.tables if not (growing / table).is_file()]
        if absent:
            shutil.rmtree(growing, ignore_errors=True)
            raise InputError(f"{name} is not whole: {', '.join(absent)} not found; get the archive from {PAGE}.")
        counts = Counter(row.group for row in item.rows(growing))
        with disk_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(growing, folder)
    images = {group: counts[group] for group in item.groups if counts[group]}
    return {"name": name, "folder": str(folder), "images": images, "notes": []}


def verify(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Compares the rows of each official part with the published counts, and looks whether every image is there."""
    item = get_wilds(name)
    folder = _there(item, root)
    rows = list(item.rows(folder))
    parts = Counter(row.part for row in rows)
    problems = [
        f"part {part} has {parts[part]:,} rows, {expected:,} expected"
        for part, expected in item.expected.items()
        if parts[part] != expected
    ]
    here = _images(folder)
    lost = [row.path for row in rows if row.path not in here]
    if lost:
        problems.append(f"{len(lost):,} images are missing: {listed(lost)}")
    domains = Counter(row.group for row in rows if row.path in here)
    expected = {f"part {part}": rows for part, rows in item.expected.items()}
    return compared(name, folder, {group: domains[group] for group in item.groups}, expected, problems)


def drawn(name: str, growing: Path, each: int, seed: int) -> int:
    """Writes a stand-in: ``each`` images of every class in every official domain. -> how many."""
    from rcalign.data.benchmarks.sample import draw_picture

    item = get_wilds(name)
    lines: list[str] = []
    paths: list[tuple[str, int, int]] = []
    for k in range(len(item.groups)):
        for c, label in enumerate(item.classes):
            for part in PARTS if item.name == "FMoW" else _camelyon_parts(k):
                for _ in range(each):
                    lines.append(_line(item, k, label, part, len(lines)))
                    paths.append((_path(item, k, len(lines) - 1), k, c))
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
    if item.name == "FMoW":
        header = "split,category,country_code,timestamp"
        codes = "".join(f"{_code(k)},{region}\n" for k, region in enumerate(REGIONS) if region != OTHER)
        (growing / item.tables[1]).write_text(f"alpha-3,region\n{codes}")
    (growing / item.tables[0]).write_text("\n".join([header, *lines]) + "\n")
    for number, (path, k, c) in enumerate(paths):
        file = growing / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draw_picture(k, c, len(item.classes), 32, np.random.default_rng([seed, number])).save(file)
    return len(paths)


def _camelyon_parts(hospital: int) -> tuple[str, ...]:
    return {1: ("val",), 2: ("test",)}.get(hospital, ("train", "id_val"))


def _code(region: int) -> str:
    return f"R0{region}"


def _path(item: WildsSet, group: int, number: int) -> str:
    if item.name == "FMoW":
        return f"images/rgb_img_{number}.png"
    patient = f"patient_{group:03d}_node_0"
    return f"patches/{patient}/patch_{patient}_x_{number}_y_0.png"


def _line(item: WildsSet, group: int, label: str, part: str, number: int) -> str:
    if item.name == "FMoW":
        year = {"train": 2010, "id_val": 2011, "val": 2014, "test": 2016}[part]
        return f"{part.removeprefix('id_')},{label},{_code(group)},{year}-05-01T00:00:00Z"
    return f"{number},{group:03d},0,{number},0,{int(label == 'tumor')},{group},{group},{int(part == 'id_val')}"
