"""Five small data sets that nothing here was developed on, from their original files to ``.npz``.

The files are the user's own copies (UCI Machine Learning Repository; MNIST; the zip code digits of "The Elements of
Statistical Learning"), one folder each below the folder given: ``python -m results.new_data ORIGINALS``.

gas       batchN.dat of the gas sensor array drift data: six gases, months of measurement as domains
spam      YoutubeNN-*.csv of the YouTube spam collection: comments on five videos, sentence embeddings
reviews   *_labelled.txt of the sentiment labelled sentences: three web sites, sentence embeddings
digits    t10k-*-ubyte.gz (MNIST), zip.test (USPS) and scikit-learn's own, all as 8 x 8 grey values
students  student-mat.csv and student-por.csv: pass or fail by school and subject, without the earlier grades
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rcalign.store.places import default_data_root

Rows = tuple[np.ndarray, list[str], list[str]]  # features (n, d), class of each row, domain of each row


def gas(folder: Path) -> Rows:
    x, y, domain = [], [], []
    for file in sorted(folder.glob("batch*.dat")):
        for line in file.read_text().splitlines():
            gas_name, _, *values = re.split(r"[,; ]+", line.strip())  # the second field is the concentration
            x.append([float(value.split(":")[-1]) for value in values])
            y.append(gas_name)
            domain.append(file.stem)
    found = np.array(x)
    return np.sign(found) * np.log1p(np.abs(found)), y, domain  # resistances span five orders of magnitude


def spam(folder: Path) -> Rows:
    texts, y, domain = [], [], []
    for file in sorted(folder.glob("Youtube*.csv")):
        with file.open(newline="", encoding="utf-8-sig") as rows:
            for row in csv.DictReader(line for line in rows if line.strip()):
                texts.append(row["CONTENT"])
                y.append("spam" if row["CLASS"].strip() == "1" else "comment")
                domain.append(file.stem.split("-")[1])
    return _embedded(texts), y, domain


def reviews(folder: Path) -> Rows:
    texts, y, domain = [], [], []
    for file in sorted(folder.glob("*_labelled.txt")):
        for text, label in re.findall(r"([^\t]+)\t([01])(?:\r\n|\r|\n|$)", file.read_text(errors="replace")):
            texts.append(text.strip())
            y.append("positive" if label == "1" else "negative")
            domain.append(file.stem.split("_")[0])
    return _embedded(texts), y, domain


def digits(folder: Path) -> Rows:
    from sklearn.datasets import load_digits

    small = load_digits()
    with (
        gzip.open(folder / "t10k-images-idx3-ubyte.gz") as images,
        gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as labels,
    ):
        mnist = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 28, 28) / 255.0
        mnist_y = np.frombuffer(labels.read(), np.uint8, offset=8)
    usps = np.loadtxt(folder / "zip.test", skiprows=2)
    usps_x = (usps[:, :-1].reshape(-1, 16, 16) + 1) / 2
    parts = {
        "mnist": (_shrunk(mnist[:, 2:26, 2:26], 3), mnist_y),
        "usps": (_shrunk(usps_x, 2), usps[:, -1].astype(int) - 1),  # this file counts classes from 1
        "optdigits": (small.images / 16.0, small.target),
    }
    x = np.concatenate([images.reshape(-1, 64) for images, _ in parts.values()])
    y = [str(label) for _, labels in parts.values() for label in labels]
    return x, y, [name for name, (_, labels) in parts.items() for _ in labels]


def students(folder: Path) -> Rows:
    table, y, domain = [], [], []
    for subject in ("mat", "por"):
        with (folder / f"student-{subject}.csv").open(newline="") as rows:
            first = rows.readline()
            rows.seek(0)
            for row in csv.DictReader(rows, delimiter=";" if ";" in first else ","):
                y.append("pass" if int(row.pop("G3")) >= 10 else "fail")
                domain.append(f"{row.pop('school')}-{subject}")
                table.append({name: value for name, value in row.items() if name not in ("G1", "G2")})
    columns = []
    for name in table[0]:
        values = [row[name] for row in table]
        if all(value.lstrip("-").isdigit() for value in values):
            columns.append(np.array(values, dtype=float))
        else:
            columns += [np.array([value == kind for value in values], dtype=float) for kind in sorted(set(values))]
    return np.stack(columns, axis=1), y, domain


def _shrunk(images: np.ndarray, by: int) -> np.ndarray:
    """(n, 8 by, 8 by) -> (n, 8, 8): the mean of each square."""
    return images.reshape(len(images), 8, by, 8, by).mean((2, 4))


def _embedded(texts: list[str]) -> np.ndarray:
    from rcalign.data import sentences

    return sentences.embed(texts, sentences.find_encoder(None))


DATA: dict[str, Callable[[Path], Rows]] = {
    "gas": gas,
    "spam": spam,
    "reviews": reviews,
    "digits": digits,
    "students": students,
}


def main(originals: Path) -> None:
    out = default_data_root() / "new"
    out.mkdir(parents=True, exist_ok=True)
    for name, read in DATA.items():
        x, y, domain = read(originals / name)
        np.savez(out / f"{name}.npz", x=x.astype(np.float32), y=np.array(y), domain=np.array(domain))
        for place in sorted(set(domain)):
            labels = [label for label, where in zip(y, domain, strict=True) if where == place]
            print(name, place, len(labels), {kind: labels.count(kind) for kind in sorted(set(labels))})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
