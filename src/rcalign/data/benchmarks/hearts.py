"""``hearts``: 920 patients of four hospitals (UCI "Heart Disease", the processed tables), one hospital a domain.

The hospitals differ in whom they examined (disease in 36 to 93 % of patients) and in what they measured: Switzerland
has no cholesterol, Hungary and Long Beach hardly any of the last three columns. A patient's numbers are a function of
that patient alone, with centres and scales that are fixed here and not fitted, so that no held-out hospital takes part
in preparing the others:

- a number is (value - centre) / scale, see ``NUMBERS``; where it is missing it is 0, the centre;
- a category is one column for each of its values, see ``CATEGORIES``; where it is missing all of them are 0;
- missing is '?', -9 (the raw tables' mark), and 0 for blood pressure and cholesterol, which no living patient has;
- ``hearts:flags=true`` adds a column for each number that is 1 where the number was missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.benchmarks.archives import is_archive, open_source
from rcalign.data.benchmarks.facts import Offer, Remote
from rcalign.data.benchmarks.place import compared, data_root, disk_errors, is_stand_in, new_folder, stand_in_note
from rcalign.data.source import Arrays, Dataset, fingerprint, from_names
from rcalign.errors import InputError, unknown
from rcalign.files import write_whole

NAME = FOLDER = "hearts"
SUMMARY = "heart disease or not, of the patients of four hospitals (numbers)"
# licence: CC BY 4.0
PAGE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
OFFER = Offer((Remote("heart+disease.zip", ("https://archive.ics.uci.edu/static/public/45/heart+disease.zip",)),))
# patients, and those with disease: the class distribution in the authors' heart-disease.names
PATIENTS = {"cleveland": (303, 139), "hungarian": (294, 106), "switzerland": (123, 115), "va": (200, 149)}
CLASSES = ("healthy", "disease")
SEVERITIES = ("0", "1", "2", "3", "4")

COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
NUMBERS = {  # centre and scale: round figures of middle-aged patients, not statistics of these tables
    "age": (50.0, 10.0),
    "trestbps": (130.0, 20.0),
    "chol": (230.0, 50.0),
    "thalach": (140.0, 25.0),
    "oldpeak": (1.0, 1.0),
    "ca": (1.0, 1.0),
}
CATEGORIES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
NEVER_ZERO = ("trestbps", "chol")


def file_of(hospital: str) -> str:
    return f"processed.{hospital}.data"


def load(root: str | None = None, *, label: str = "disease", flags: bool = False) -> Dataset:
    """The patients in the data root. label: 'disease' (num > 0) or 'severity' (num, 0 to 4)."""
    if label not in ("disease", "severity"):
        raise unknown("label of hearts", label, ["disease", "severity"])
    folder = data_root(root) / FOLDER
    missing = [hospital for hospital in PATIENTS if not (folder / file_of(hospital)).is_file()]
    if missing:
        raise InputError(
            f"hearts is not in the data root, no '{file_of(missing[0])}' in '{folder}': get it with 'rcalign data "
            f"fetch hearts', or put the four files {', '.join(map(file_of, PATIENTS))} of {PAGE} into a folder and run "
            "'rcalign data prepare hearts --from FOLDER'."
        )
    notes = [stand_in_note(folder, NAME)] if is_stand_in(folder) else []
    tables = {hospital: read_patients(folder / file_of(hospital)) for hospital in PATIENTS}
    values = np.concatenate(list(tables.values()))
    num = values[:, -1].astype(int)
    labels = [SEVERITIES[n] if label == "severity" else CLASSES[min(n, 1)] for n in num.tolist()]
    domains = [hospital for hospital, table in tables.items() for _ in table]
    x = features(values[:, :-1], flags=flags)
    if label == "severity" and len({*num[np.array(domains) == "hungarian"]}) <= 2:
        notes.append("the Hungarian table says only whether there is disease (0 or 1), not how severe it is")
    gone = np.isnan(_without_impossible(values[:, :-1])).mean(axis=0)
    notes += [
        f"{column} is missing for {share:.0%} of the patients and stands at the centre of its scale"
        if column in NUMBERS
        else f"{column} is missing for {share:.0%} of the patients and is none of its categories"
        for column, share in zip(COLUMNS, gone, strict=False)
        if share >= 0.05
    ]
    classes = SEVERITIES if label == "severity" else CLASSES
    parts = [x.tobytes(), str(x.shape).encode(), *(f"{a} {b}".encode() for a, b in zip(labels, domains, strict=True))]
    return from_names(
        NAME,
        Arrays(x),
        labels,
        domains,
        fingerprint=fingerprint(parts),
        notes=notes,
        class_order=classes,
        domain_order=tuple(PATIENTS),
    )


def read_patients(file: Path, origin: str = "") -> np.ndarray:
    """(n, 14) float64 of one processed table, separated by commas or spaces; missing values are NaN. origin: where the
    file came from, for errors about a copy."""
    shown = origin or f"'{file}'"
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown} cannot be read as a table ({error}): get it again from {PAGE}.") from None
    rows = [_row(line, f"line {number} of {shown}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{shown} is empty: expected {len(COLUMNS)} numbers on each line; get it from {PAGE}.")
    return np.array(rows)


def _row(line: str, where: str) -> list[float]:
    pieces = line.replace(",", " ").split()
    if len(pieces) != len(COLUMNS):
        raise InputError(
            f"{where} has {len(pieces)} values, but {len(COLUMNS)} are expected ({', '.join(COLUMNS)}): get the file "
            f"again from {PAGE}."
        )
    values = []
    for column, piece in zip(COLUMNS, pieces, strict=True):
        try:
            value = float("nan") if piece == "?" else float(piece)
        except ValueError:
            raise InputError(f"{where} has {column} '{piece}', but a number or ? is expected.") from None
        value = float("nan") if value == -9 else value
        known = CATEGORIES.get(column, (0, 1, 2, 3, 4) if column == "num" else None)
        if known is not None and value not in known and not (np.isnan(value) and column != "num"):
            raise InputError(
                f"{where} has {column} {piece}, but one of {', '.join(map(str, known))} is expected: the table was "
                f"changed; get it again from {PAGE}."
            )
        values.append(value)
    return values


def features(values: np.ndarray, *, flags: bool = False) -> np.ndarray:
    """(n, 25), or (n, 31) with flags, float32: the network's input of patients (n, 13) with NaN for what is missing.

    The order of the columns is that of the tables, a category taking as many as it has values; flags come last.

    >>> patient = np.array([[60, 1, 4, 150, 0, np.nan, 0, 115, 1, 2.0, 2, np.nan, 7]])
    >>> features(patient).shape, features(patient)[0, :7].tolist()
    ((1, 25), [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0])
    """
    values = _without_impossible(values)
    columns, missing = [], []
    for column, value in zip(COLUMNS, values.T, strict=False):
        if column in NUMBERS:
            centre, scale = NUMBERS[column]
            columns.append(np.nan_to_num((value - centre) / scale, nan=0.0)[:, None])
            missing.append(np.isnan(value)[:, None])
        else:
            columns.append(value[:, None] == np.array(CATEGORIES[column]))
    return np.concatenate([*columns, *(missing if flags else [])], axis=1, dtype=np.float32)


def _without_impossible(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)  # a copy
    for column in NEVER_ZERO:
        at = COLUMNS.index(column)
        values[values[:, at] == 0, at] = np.nan
    return values


# --- on disk -----------------------------------------------------------------------------------------------------


def prepare(
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Copies the four tables into the data root, after they were read. sources: folders, archives or the files."""
    folder = data_root(root) / FOLDER
    with new_folder(folder, "hearts", replace=replace) as growing:
        origins: dict[str, str] = {}
        # single files last, so that a table given by itself goes before one of the same hospital in a folder
        for source in sorted(map(Path, sources), key=lambda path: path.is_file() and not is_archive(path)):
            origins |= _collect(source.expanduser().absolute(), growing)
        absent = [file_of(hospital) for hospital in PATIENTS if not (growing / file_of(hospital)).is_file()]
        if absent:
            raise InputError(f"hearts is not whole: {', '.join(absent)} not found; it is published at {PAGE}.")
        patients = {
            hospital: len(read_patients(growing / file_of(hospital), origins[file_of(hospital)]))
            for hospital in PATIENTS
        }
    return {"name": NAME, "folder": str(folder), "images": patients, "unit": "patients", "notes": []}


def _collect(source: Path, growing: Path) -> dict[str, str]:
    """Copies the tables of a source. -> where each came from, by its name."""
    wanted = {file_of(hospital) for hospital in PATIENTS}
    if source.is_dir() or (source.is_file() and is_archive(source)):
        copied = open_source(source).copy(lambda entry: [growing / entry.name] if entry.name in wanted else [])
        return {entry.name: f"'{entry.path}' in '{source}'" for entry in copied}
    named = [name for name in wanted if source.name.startswith(name)]
    if not source.is_file() or not named:
        raise InputError(
            f"'{source}' is no folder, archive or table of hearts: expected {', '.join(map(file_of, PATIENTS))}."
        )
    with disk_errors(growing):
        (growing / named[0]).unlink(missing_ok=True)  # it may be a link to a file of the user's
        shutil.copy2(source, growing / named[0])
    return {named[0]: f"'{source}'"}


def verify(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Compares the patients of each hospital, and how many of them are ill, with the published counts."""
    folder = data_root(root) / FOLDER
    problems = []
    found: dict[str, int] = {}
    for hospital, (patients, ill) in PATIENTS.items():
        if not (folder / file_of(hospital)).is_file():
            problems.append(f"there is no '{folder / file_of(hospital)}'")
            continue
        num = read_patients(folder / file_of(hospital))[:, -1]
        found[hospital] = len(num)
        if (len(num), int((num > 0).sum())) != (patients, ill):
            problems.append(
                f"{hospital} has {len(num)} patients, {int((num > 0).sum())} of them ill, {patients} and {ill} expected"
            )
    expected = {"as published": sum(patients for patients, _ in PATIENTS.values())}
    return {**compared(NAME, folder, found, expected, problems), "unit": "patients"}


def drawn(growing: Path, each: int, seed: int) -> int:
    """Writes tables of invented patients, ``each`` of every (hospital, class) pair. -> how many."""
    for k, hospital in enumerate(PATIENTS):
        rng = np.random.default_rng([seed, 0x68, k])
        lines = [",".join(_patient(ill, k, rng)) for ill in (False, True) for _ in range(each)]
        write_whole(growing / file_of(hospital), "".join(f"{line}\n" for line in lines).encode())
    return 2 * each * len(PATIENTS)


def _patient(ill: bool, hospital: int, rng: np.random.Generator) -> Iterator[str]:
    for column in COLUMNS[:-1]:
        if column in NUMBERS:
            centre, scale = NUMBERS[column]
            towards = -1 if column == "thalach" else 1  # a sick heart does not beat as fast
            value = centre + scale * (rng.normal() + (towards if ill else -towards) * 0.6 + 0.2 * hospital)
            yield f"{max(value, 0 if column in ('oldpeak', 'ca') else 1):.1f}"
        elif column == "thal" and hospital and rng.random() < 0.8:
            yield "?"
        else:
            known = CATEGORIES[column]
            yield str(known[min(int(rng.integers(len(known))) + ill * (column == "cp"), len(known) - 1)])
    yield str(int(ill))
