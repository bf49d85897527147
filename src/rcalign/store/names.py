"""Short names of data sets, for tables, messages and folders."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

FILES = (".npz", ".csv", ".tsv", ".parquet")


@lru_cache(maxsize=4096)  # asked for each of fifty thousand runs, of a few data sets
def short_data_name(data: str) -> str:
    """A data set's name without where it lies: of a path its last part, of a name all but its ``root``.

    >>> short_data_name("/data/PACS/"), short_data_name("rows.npz"), short_data_name("PACS:root=/data/bench")
    ('PACS', 'rows', 'PACS')
    >>> short_data_name("emoji-mlt:imbalance=20.5,root=/d"), short_data_name("/d/v1.2"), short_data_name("a/t.csv?y=c")
    ('emoji-mlt:imbalance=20.5', 'v1.2', 't')
    """
    if re.fullmatch(r"[\w-]+:.*", data):
        return re.sub(r"(?<=[:,])root=[^,]*,?", "", data).rstrip(":,")
    path = Path(data.partition("?")[0])  # columns of a table follow the mark
    return path.stem if path.suffix in FILES else path.name


def file_name(*words: str) -> str:
    """Words as the name of a file or folder, of which systems allow 255 bytes.

    >>> file_name("rows", "BoDA_r,c", "a b")
    'rows-BoDA_r_c-a_b'
    """
    name = "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)
    return name.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")


@lru_cache(maxsize=4096)  # asked for each of half a million paths, of a few hundred folders
def name_key(name: str) -> str:
    """A name without case and punctuation: names of the same key are the same.

    >>> name_key("BoDA_r,c") == name_key("boda-rc")
    True
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())
