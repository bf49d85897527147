"""An ``.npz`` file: ``x, y, domain[, split][, group]``.

x: rows (n, f), series (n, c, t), or images (n, height, width, 3 or 1) uint8. Numbers in y or domain become names by
their decimal text. Nothing in the file is ever unpickled.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from rcalign.data.source import (
    SPLITS,
    Arrays,
    Dataset,
    ImageArray,
    check_spelling,
    fingerprint,
    from_names,
    natural_key,
)
from rcalign.errors import InputError

REQUIRED = ("x", "y", "domain")
OPTIONAL = ("split", "group")


def load(file: str | os.PathLike[str]) -> Dataset:
    """The data set of an ``.npz`` file."""
    file = Path(os.path.abspath(file))
    return from_arrays(_read(file), name=file.stem, where=f"'{file}'")


def unlabelled_arrays(file: str | os.PathLike[str]) -> Dataset:
    """The x of an ``.npz`` file, in one class and one domain without meaning."""
    file = Path(os.path.abspath(file))
    read = _read(file, required=("x",))
    rows = np.zeros(len(read["x"]) if read["x"].ndim else 0, dtype=np.int64)
    return from_arrays({**read, "y": rows, "domain": rows}, name=file.stem, where=f"'{file}'")


def from_arrays(arrays: dict[str, np.ndarray], *, name: str = "arrays", where: str = "the data") -> Dataset:
    """The data set of arrays in memory, checked.

    >>> data = from_arrays({"x": np.zeros((2, 3)), "y": np.array([4, 0]), "domain": np.array([0.5, 10])})
    >>> data.classes, data.domains, data.y.tolist(), data.content.x.dtype
    (('0', '4'), ('0.5', '10'), [1, 0], dtype('float32'))
    """
    _check_names(arrays, REQUIRED, where)
    n = len(arrays["x"]) if arrays["x"].ndim else 0
    if n == 0:
        raise InputError(f"{where} has no rows: x of shape {arrays['x'].shape} was found.")
    for key in (*REQUIRED[1:], *OPTIONAL):
        if key in arrays and arrays[key].shape != (n,):
            raise InputError(f"{key} in {where} has shape {arrays[key].shape}, but x has {n} rows: ({n},) is expected.")
    labels, classes = _names(arrays["y"], f"y in {where}", label=True)
    domains, order = _names(arrays["domain"], f"domain in {where}", label=False)
    if arrays["y"].dtype.kind in "US":
        check_spelling(zip(domains, labels, strict=True))
    split = None
    if "split" in arrays:
        split, _ = _names(arrays["split"], f"split in {where}", label=False)
        wrong = sorted(set(split) - set(SPLITS))
        if wrong:
            raise InputError(f"split in {where} has '{wrong[0]}', but train, val or test is expected.")
    content = _content(arrays["x"], where)
    parts = [content.x.tobytes(), str(content.x.shape).encode()]
    parts += [
        f"{key} {arrays[key].dtype}".encode() + arrays[key].tobytes()
        for key in (*REQUIRED[1:], *OPTIONAL)
        if key in arrays
    ]
    return from_names(
        name,
        content,
        labels,
        domains,
        fingerprint=fingerprint(parts),
        split=split,
        group=arrays.get("group"),
        class_order=classes,
        domain_order=order,
    )


def _check_names(found: Collection[str], required: Sequence[str], where: str) -> None:
    missing = [key for key in required if key not in found]
    if missing:
        extra = " and perhaps split and group" if required == REQUIRED else ""
        raise InputError(
            f"{where} lacks the array {', '.join(missing)}: found {', '.join(sorted(found)) or 'nothing'}, expected "
            f"{', '.join(required)}{extra}."
        )


def _read(file: Path, required: Sequence[str] = REQUIRED) -> dict[str, np.ndarray]:
    try:
        with open(file, "rb") as opened:
            start = opened.read(6)
        if not start.startswith(b"PK"):  # numpy would take anything else for a pickle
            one = start == b"\x93NUMPY"
            what = "one array, as numpy.save writes it" if one else "no archive of arrays, whatever its name says"
            raise InputError(f"'{file}' is {what}: write x, y and domain with numpy.savez.")
        with np.load(file, allow_pickle=False) as archive:
            _check_names(archive.files, required, f"'{file}'")
            found = {key: archive[key] for key in (*REQUIRED, *OPTIONAL) if key in archive.files}
        for key, value in found.items():
            if not isinstance(value, np.ndarray):  # numpy hands over what is no array as it is
                raise ValueError(f"{key} is no array")
        return found
    except InputError:
        raise
    except ValueError as error:
        if "pickle" in str(error):
            raise InputError(
                f"'{file}' holds Python objects, which are never loaded: save plain numbers and strings "
                "(dtype=object is not one of them)."
            ) from None
        raise InputError(f"'{file}' is not a readable .npz file ({error}): write it with numpy.savez.") from None
    except (zipfile.BadZipFile, EOFError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"'{file}' is not a readable .npz file ({error}): write it with numpy.savez.") from None
    except OSError as error:
        raise InputError(f"'{file}' cannot be read ({error.strerror or error}): check the file.") from None


def _content(x: np.ndarray, where: str) -> Arrays | ImageArray:
    if x.dtype.kind not in "fiub":
        raise InputError(f"x in {where} is of type {x.dtype}, but numbers are expected.")
    if x.ndim == 4:
        if x.dtype != np.uint8 or x.shape[3] not in (1, 3):
            raise InputError(
                f"x in {where} has shape {x.shape} and type {x.dtype}, but images are expected as uint8 of shape "
                "(n, height, width, 3)."
            )
        return ImageArray(np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:3], 3))))
    if x.ndim == 3 and x.dtype == np.uint8:
        n, height, width = x.shape
        raise InputError(
            f"x in {where} is uint8 of shape {x.shape}, which may be grey images or series: give images as "
            f"({n}, {height}, {width}, 1), series (n, c, t) as floats."
        )
    if x.ndim not in (2, 3) or 0 in x.shape:
        raise InputError(
            f"x in {where} has shape {x.shape}, but rows (n, f), series (n, c, t) or images (n, height, width, 3) are "
            "expected."
        )
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, dtype=np.float32)
    finite = np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise InputError(
            f"x in {where} has NaN, infinite or too large values in {len(rows)} rows, the first is row {rows[0]}: "
            "remove or replace them."
        )
    return Arrays(values)


def _names(values: np.ndarray, where: str, *, label: bool) -> tuple[list[str], list[str]]:
    """The name of each row's value, and all names in order: numbers by value, text in natural order."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.dtype.kind == "U":
        texts = [str(value).strip() for value in values]
        if "" in texts:
            raise InputError(f"{where} is empty at row {texts.index('')}: every row needs a name.")
        return texts, sorted(set(texts), key=natural_key)
    if values.dtype.kind not in "fiub":
        raise InputError(f"{where} is of type {values.dtype}, but numbers or strings are expected.")
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if not np.isfinite(values).all():
        raise InputError(f"{where} is NaN or infinite at row {int(np.flatnonzero(~np.isfinite(values))[0])}.")
    if label:
        wrong = np.flatnonzero((values < 0) | (values != np.floor(values)))
        if len(wrong):
            raise InputError(
                f"{where} is {values[wrong[0]]} at row {wrong[0]}, out of range: labels are names or whole "
                "numbers from 0."
            )
    kinds, inverse = np.unique(values, return_inverse=True)
    names = [_decimal(value) for value in kinds]
    return [names[i] for i in inverse], names


def _decimal(value: np.generic) -> str:
    if np.issubdtype(value.dtype, np.integer):
        return str(int(value))  # type: ignore[call-overload]
    return np.format_float_positional(value, trim="-")  # type: ignore[arg-type]
