"""From what a user names, a path or a name, to a data set: the kind of file decides which source reads it."""

from __future__ import annotations

import os
from pathlib import Path

from rcalign.data import sources
from rcalign.data.source import Dataset, sample_of, without_sample
from rcalign.errors import InputError, unknown


def load(data: str | os.PathLike[str], *, skip_bad: bool = False, progress: bool = False) -> Dataset:
    """A folder ``domain/class/image``, a CSV manifest, a table, an ``.npz`` file, a registered name (``emoji``) or an
    address of the Hugging Face hub (``hf://OWNER/NAME``).

    A name may carry parameters: ``emoji-mlt:imbalance=20,order=3``. A name goes before a path; ``./emoji`` is the path.
    With ``?sample=1000`` after it (``&sample=1000`` behind the columns of a table) only so many rows are taken, of each
    domain and class its share.
    skip_bad: leave out files that are not whole images and list them in ``notes`` (each file is decoded once to find
    out). Without it, a file that is no image at all is an error here, and one that is cut short is an error at the
    latest when the cache is built.
    """
    text = os.fspath(data)
    if not text.strip():
        raise InputError("the name of the data is empty: give a folder, a file or the name of a data set.")
    whole, count = without_sample(text)
    if count is not None and not os.path.exists(text) and sources.table.divided(whole)[1] is None:
        return sample_of(load(whole, skip_bad=skip_bad, progress=progress), count)
    if isinstance(data, str) and sources.is_name(text):
        try:
            return sources.load(text, skip_bad=skip_bad, progress=progress)
        except InputError as error:
            if not os.path.isdir(text):
                raise
            raise InputError(f"{error} The folder of that name here is './{text}'.") from None
    if isinstance(data, str) and sources.hub.is_address(text):
        return sources.hub.load(text, skip_bad=skip_bad, progress=progress)
    file, roles = sources.table.divided(text)
    path = Path(file)
    if not path.exists():
        if isinstance(data, str) and sources.looks_like_name(text):
            raise unknown(
                "data set", text, sources.source_names(), "A path must exist: no file or folder has that name here."
            )
        raise InputError(
            f"'{path}' does not exist: give a folder, a .csv manifest, a .npz file or the name of a data set."
        )
    if path.is_dir():
        return sources.folder.load(path, skip_bad=skip_bad, progress=progress)
    if roles is not None or sources.table.is_table(path):
        return sources.table.load(path, roles, progress=progress)
    if path.suffix.lower() == ".csv":
        return sources.manifest.load(path, skip_bad=skip_bad, progress=progress)
    if path.suffix.lower() == ".npz":
        return sources.arrays.load(path)
    raise InputError(
        f"'{path}' is a file of an unknown kind: expected a folder domain/class/image, a .csv manifest or a .npz file."
    )
