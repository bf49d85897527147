"""A data set of the Hugging Face hub, or a folder in its form: ``hf://OWNER/NAME?image=...&label=...&domain=...``.

Read through the library ``datasets``, which downloads, resumes and caches. Images are written out once, byte for byte,
so that everything else works on files, as it does elsewhere. No code that comes with a data set is run.

After the name, as in an address: ``image``, ``label``, ``domain``: names of columns, where they are called otherwise.
``split``: one of its splits; by default all of them are joined. ``config``: one of its configurations.
``hf:///data/mine`` is a folder on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.data.benchmarks.parquet import DOMAIN, IMAGE, LABEL, suffix_of
from rcalign.data.cache import cache_disk_errors, cache_root, process_lock, remember
from rcalign.data.source import Dataset, check_spelling
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError, unknown
from rcalign.store.json_files import read_json

PREFIX = "hf://"
INSTALL = 'pip install "rcalign[hub]"'
OPTIONS = ("image", "label", "domain", "split", "config")


@dataclass(frozen=True)
class Address:
    """name: OWNER/NAME or a folder. columns: what they are called, None to look for the usual names."""

    name: str
    image: str | None = None
    label: str | None = None
    domain: str | None = None
    split: str | None = None
    config: str | None = None


def is_address(text: str) -> bool:
    return text.startswith(PREFIX)


def parse_address(text: str) -> Address:
    """The parts of an address of a data set on the Hub.

    >>> parse_address("hf://flwrlabs/pacs?domain=style&split=train")
    Address(name='flwrlabs/pacs', image=None, label=None, domain='style', split='train', config=None)
    """
    name, _, query = text.removeprefix(PREFIX).partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    for key in options:
        if key not in OPTIONS:
            raise unknown(f"option of '{text}'", key, OPTIONS)
    if not name.startswith("/") and name.count("/") != 1:
        raise InputError(f"'{text}' names no data set: expected hf://OWNER/NAME, or hf:///FOLDER on this machine.")
    return Address(name, **options)


def load(text: str, *, skip_bad: bool = False, progress: bool = False) -> Dataset:
    """The data set at an address."""
    address = parse_address(text)
    table = _table(address)
    names = table.column_names
    image = _column(names, address.image, IMAGE, "image", address)
    label = _column(names, address.label, LABEL, "label", address)
    domain = _column(names, address.domain, DOMAIN, "domain", address)
    labels, domains = _names(table, label), _names(table, domain)
    check_spelling(zip(domains, labels, strict=True))
    folder, files = _written(table, image, address, progress)
    return dataset_of_files(
        address.name.rstrip("/").rpartition("/")[2],
        folder,
        files,
        labels,
        domains,
        skip_bad=skip_bad,
        progress=progress,
    )


def _table(address: Address) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(f"{PREFIX}{address.name} needs a package that is not installed: {INSTALL}") from None
    datasets.logging.set_verbosity_error()
    try:
        found = datasets.load_dataset(address.name, name=address.config, split=address.split)
    except Exception as error:  # the library and the hub's client raise many kinds
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"{PREFIX}{address.name} cannot be loaded ({first}): check the name, the split and the configuration, and "
            "whether the hub can be reached; what is here can be given as hf:///FOLDER."
        ) from None
    if isinstance(found, dict):
        found = datasets.concatenate_datasets(list(found.values()))
    return found


def _column(names: Sequence[str], given: str | None, usual: Sequence[str], what: str, address: Address) -> str:
    if given is not None:
        if given not in names:
            raise unknown(f"column of {PREFIX}{address.name}", given, names)
        return given
    for name in names:
        if name.lower() in usual:
            return name
    raise InputError(
        f"{PREFIX}{address.name} has the columns {', '.join(names)}, none of which is called {' or '.join(usual)}: "
        f"name the {what} column with ?{what}=COLUMN."
    )


def _names(table: Any, column: str) -> list[str]:
    """The value of each row by its name, where the data set has names for its numbers."""
    feature = table.features[column]
    values = table[column]
    if hasattr(feature, "int2str"):
        return [feature.int2str(value) for value in values]
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
            raise InputError(f"row {row} has the {column} {value!r}, but a name or a whole number is expected.")
    return [str(value) for value in values]


def _written(table: Any, image: str, address: Address, progress: bool) -> tuple[Path, list[Path]]:
    """Every image as a file in the cache, in the order of the rows."""
    import datasets

    if not isinstance(table.features[image], datasets.Image):
        raise InputError(f"the column '{image}' of {PREFIX}{address.name} is {table.features[image]}, not an image.")
    key = hashlib.sha256(json.dumps([address.name, image, getattr(table, "_fingerprint", "")]).encode()).hexdigest()
    folder = cache_root() / "hub" / key[:32]
    with process_lock(folder.with_suffix(".lock"), "Another process writes these images: waiting for it."):
        known = read_json(folder / "files.json")
        if known is None:
            growing = folder.with_suffix(".partial")
            shutil.rmtree(growing, ignore_errors=True)
            with cache_disk_errors(growing):
                growing.mkdir(parents=True)
                known = _write(table.select_columns([image]).cast_column(image, datasets.Image(decode=False)), growing)
            remember(growing / "files.json", known)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(growing, folder)
    return folder, [folder / name for name in known]


def _write(table: Any, folder: Path) -> list[str]:
    names = []
    for row, found in enumerate(table):
        value = next(iter(found.values()))
        content = (value or {}).get("bytes")
        if content is None and (value or {}).get("path"):
            content = Path(value["path"]).read_bytes()
        if content is None:
            raise InputError(f"row {row} has no image: remove it.")
        name = f"{row:07d}{suffix_of(content)}"
        (folder / name).write_bytes(content)
        os.utime(folder / name, (0, 0))  # the time is part of the data's fingerprint: the same whenever written
        names.append(name)
    return names
