"""Splits of the multi-domain long-tailed versions: the published files, or the rule that made them.

A published file has the columns env, label, path and split; path is ``domain/class/image``. The rule holds out up to
(test + val) images of each (domain, class) pair, a third of them (rounded down) for val. It shuffles with Python's own
generator, seeded once, over pairs in order. In the order of the published files it gives the published splits to the
row; that order is the one in which their author's disk listed the images, so a split made elsewhere differs in rows,
not in counts. Ours goes by names, the same on every machine.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.benchmarks.layouts import names_of
from rcalign.data.source import SPLITS
from rcalign.errors import InputError
from rcalign.store.names import name_key

COLUMNS = ("env", "label", "path", "split")
SEED = 666  # the authors' own
SHOTS = ("many", "medium", "few", "zero")


def read_split_file(benchmark: Benchmark, file: Path) -> dict[str, str]:
    """A split file: path of an image, in our spelling of domain and class -> its part."""
    domains, classes = names_of(benchmark)
    found: dict[str, str] = {}
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            if not set(COLUMNS) <= set(reader.fieldnames or ()):
                raise InputError(
                    f"'{file}' has the columns {', '.join(reader.fieldnames or ()) or 'none'}, but a split file has "
                    f"{', '.join(COLUMNS)}."
                )
            for row in reader:
                pieces = (row["path"] or "").split("/")
                domain = domains.get(name_key(pieces[0]))
                label = classes.get(name_key(pieces[1])) if len(pieces) == 3 else None
                if domain is None or label is None or pieces[-1] in ("", ".", ".."):
                    raise InputError(
                        f"line {reader.line_num} of '{file}' has the path '{row['path']}', which is no "
                        f"domain/class/image of {benchmark.name}: give the split file of this data set."
                    )
                if row["split"] not in SPLITS:
                    raise InputError(
                        f"line {reader.line_num} of '{file}' has the split '{row['split']}', but train, val or test is "
                        "expected."
                    )
                found[f"{domain}/{label}/{pieces[-1]}"] = row["split"]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"'{file}' is not a readable split file ({error}): download it again.") from None
    except OSError as error:
        raise InputError(f"'{file}' cannot be read ({error.strerror}): check the file.") from None
    if not found:
        raise InputError(f"'{file}' lists no images: download it again.")
    return found


def by_rule(domain: Sequence[str], label: Sequence[str], held_out: tuple[int, int], seed: int = SEED) -> np.ndarray:
    """The published rule. domain, label: of each row, rows of a pair in a fixed order. -> (n,) of train, val, test.

    Domains, and classes within each, are gone through in the order of their first row.

    >>> part = by_rule(["a"] * 20, ["x"] * 20, held_out=(30, 15))
    >>> [int((part == name).sum()) for name in SPLITS]
    [0, 6, 14]
    """
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, pair in enumerate(zip(domain, label, strict=True)):
        rows[pair].append(row)
    part = np.full(len(domain), "train", dtype="<U5")
    generator = random.Random(seed)
    for d in dict.fromkeys(domain):
        for c in dict.fromkeys(label):
            here = rows.get((d, c), [])
            generator.shuffle(here)
            held = min(len(here), sum(held_out))
            part[here[: held // 3]] = "val"
            part[here[held // 3 : held]] = "test"
    return part


def shot_pairs(counts: np.ndarray, shots: tuple[int, int]) -> tuple[int, int, int, int]:
    """Pairs with many, medium, few and zero training rows. counts: (K, C) training rows; shots: the two limits.

    >>> shot_pairs(np.array([[101, 100, 21], [20, 1, 0]]), (100, 20))
    (1, 2, 2, 1)
    """
    many, few = shots
    zero = int((counts == 0).sum())
    most, least = int((counts > many).sum()), int(((counts > 0) & (counts <= few)).sum())
    return most, counts.size - most - least - zero, least, zero
