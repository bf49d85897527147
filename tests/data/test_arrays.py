"""Arrays from .npz files, good and bad."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign.data import Arrays, ImageArray, load, open_images
from rcalign.data.sources.arrays import from_arrays, unlabelled_arrays
from rcalign.errors import InputError


def write(folder: Path, **changes: Any) -> Path:
    arrays = {"x": np.arange(12.0).reshape(4, 3), "y": np.array([0, 1, 0, 1]), "domain": np.array([2, 10, 2, 10])}
    arrays.update(changes)
    np.savez(folder / "data.npz", **{key: value for key, value in arrays.items() if value is not None})
    return folder / "data.npz"


def test_rows(tmp_path):
    data = load(write(tmp_path, split=np.array(["train", "val", "test", "train"]), group=np.array([7, 7, 8, 9])))
    assert isinstance(data.content, Arrays) and data.content.x.dtype == np.float32
    assert data.domains == ("2", "10") and data.classes == ("0", "1")
    assert data.domain.tolist() == [0, 1, 0, 1]
    assert data.split.tolist() == ["train", "val", "test", "train"] and data.group.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([3, -1, 3, -1]), ("-1", "3")),
        (np.array([0.1, 0.9, 0.2, 0.9], np.float32), ("0.1", "0.2", "0.9")),
        (np.array([1.0, 2.0, 1.0, 2.0]), ("1", "2")),
        (np.array(["env10", "env2", "env10", "env2"]), ("env2", "env10")),
        (np.array([b"a", b"b", b"a", b"b"]), ("a", "b")),
        (np.array([True, False, True, False]), ("0", "1")),
    ],
)
def test_domains_by_their_decimal_text(tmp_path, values, names):
    assert load(write(tmp_path, domain=values)).domains == names


def test_series_and_images(tmp_path):
    assert load(write(tmp_path, x=np.zeros((4, 2, 9)))).content.x.shape == (4, 2, 9)
    x = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    data = load(write(tmp_path, x=x))
    assert isinstance(data.content, ImageArray) and data.content.native_size == 6
    assert (open_images(data, 6).take([2, 0]).numpy() == x[[2, 0]]).all()
    assert open_images(data, 9).take([1]).shape == (1, 9, 9, 3)
    grey = load(write(tmp_path, x=x[..., :1]))
    assert grey.content.x.shape == (4, 6, 6, 3) and (grey.content.x == x[..., :1]).all()


def test_labels_with_gaps_and_as_text(tmp_path):
    data = load(write(tmp_path, y=np.array([10, 2, 2, 10])))
    assert data.classes == ("2", "10") and data.y.tolist() == [1, 0, 0, 1]
    assert load(write(tmp_path, y=np.array(["b", "a", "b", "a"]))).classes == ("a", "b")
    assert load(write(tmp_path, y=np.array([1.0, 0.0, 1.0, 0.0]))).classes == ("0", "1")


def test_the_fingerprint_covers_every_array(tmp_path):
    prints = {
        load(write(tmp_path, **change)).fingerprint
        for change in (
            {},
            {"x": np.arange(12.0).reshape(4, 3) + 1},
            {"y": np.array([1, 0, 0, 1])},
            {"domain": np.array([2, 2, 10, 10])},
            {"group": np.arange(4)},
            {"split": np.array(["train"] * 4)},
        )
    }
    assert len(prints) == 6
    assert load(write(tmp_path)).fingerprint == load(write(tmp_path)).fingerprint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"domain": None}, ("lacks the array domain", "found x, y")),
        ({"y": np.array([0, 1, -1, 1])}, ("y in", "-1", "row 2", "out of range")),
        ({"y": np.array([0, 1, np.nan, 1])}, ("y in", "NaN", "row 2")),
        ({"y": np.array([0, 1, 0.5, 1])}, ("0.5", "row 2", "whole numbers")),
        ({"y": np.zeros(3, int)}, ("y in", "(3,)", "4 rows")),
        ({"y": np.zeros((4, 2), int)}, ("y in", "(4, 2)")),
        ({"y": np.array(["a", "", "a", "b"])}, ("y in", "empty at row 1")),
        ({"y": np.array(["Dog", "dog", "Dog", "dog"])}, ("'Dog'", "'dog'")),
        ({"domain": np.array([1, np.inf, 1, 2])}, ("domain in", "infinite", "row 1")),
        ({"x": np.array([[1.0], [np.nan], [2.0], [np.inf]])}, ("NaN", "2 rows", "row 1")),
        ({"x": np.full((4, 2), 1e300)}, ("too large", "row 0")),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0), "domain": np.zeros(0)}, ("no rows",)),
        ({"x": np.zeros(4)}, ("shape (4,)", "rows (n, f)")),
        ({"x": np.zeros((4, 0))}, ("shape (4, 0)",)),
        ({"x": np.zeros((4, 8, 8, 3))}, ("uint8", "(n, height, width, 3)")),
        ({"x": np.zeros((4, 3, 8, 8), np.uint8)}, ("(4, 3, 8, 8)", "(n, height, width, 3)")),
        ({"x": np.array([["a"], ["b"], ["c"], ["d"]])}, ("numbers are expected",)),
        ({"split": np.array(["train", "dev", "test", "val"])}, ("'dev'", "train, val or test")),
    ],
)
def test_one_sentence_for_each_fault(tmp_path, changes, words):
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, **changes))
    for word in words:
        assert word in str(caught.value)


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def test_nothing_is_unpickled(tmp_path):
    sprung = tmp_path / "sprung"
    traps = np.array([Trap(sprung)] * 4, dtype=object)
    with pytest.raises(InputError, match="Python objects"):
        load(write(tmp_path, y=traps))
    assert not sprung.exists()
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(InputError, match=r"raw\.npz"):
        load(tmp_path / "raw.npz")
    assert not sprung.exists()


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"PK\x03\x04 cut"])
def test_files_that_are_no_archives(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.npz"):
        load(tmp_path / "bad.npz")


@pytest.mark.parametrize(("name", "said"), [("text", "no archive"), ("one", "one array")])
def test_what_is_called_npz_and_is_something_else(tmp_path, name, said):
    if name == "one":
        with open(tmp_path / "other.npz", "wb") as file:
            np.save(file, np.zeros(3))
    else:
        (tmp_path / "other.npz").write_text("x,y,domain\n1,2,3\n")
    with pytest.raises(InputError, match=said):
        load(tmp_path / "other.npz")


def test_grey_images_are_not_taken_for_series():
    rows = np.zeros(4, int)
    with pytest.raises(InputError, match=r"give images as \(4, 16, 16, 1\)"):
        from_arrays({"x": np.zeros((4, 16, 16), np.uint8), "y": rows, "domain": rows})
    grey = from_arrays({"x": np.full((4, 16, 16, 1), 7, np.uint8), "y": rows, "domain": rows})
    assert grey.content.x.shape == (4, 16, 16, 3) and (grey.content.x == 7).all()
    assert from_arrays({"x": np.zeros((4, 16, 16)), "y": rows, "domain": rows}).content.x.shape == (4, 16, 16)


def test_an_empty_name_is_not_the_folder_here():
    for text in ("", " "):
        with pytest.raises(InputError, match="empty"):
            load(text)


def test_a_truncated_archive(tmp_path):
    file = write(tmp_path)
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(InputError, match="readable"):
        load(file)


def test_unlabelled(tmp_path):
    data = unlabelled_arrays(write(tmp_path, y=None, domain=None))
    assert len(data) == 4 and data.content.x.shape == (4, 3)
    with pytest.raises(InputError, match="lacks the array x"):
        unlabelled_arrays(write(tmp_path, x=None))
