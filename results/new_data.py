"""Small data sets that nothing here was developed on, from their original files to ``.npz``.

The files are the user's own copies (UCI Machine Learning Repository; MNIST; the zip code digits of "The Elements of
Statistical Learning"; the R package Ecdat), one folder each below the folder given: ``python -m results.new_data
ORIGINALS``; names after it choose some of them.

gas       batchN.dat of the gas sensor array drift data: six gases, months of measurement as domains
spam      YoutubeNN-*.csv of the YouTube spam collection: comments on five videos, sentence embeddings
reviews   *_labelled.txt of the sentiment labelled sentences: three web sites, sentence embeddings
digits    t10k-*-ubyte.gz (MNIST), zip.test (USPS) and scikit-learn's own, all as 8 x 8 grey values
students  student-mat.csv and student-por.csv: pass or fail by school and subject, without the earlier grades
airlines  Tweets.csv of the Twitter US airline sentiment: tweets on six airlines, sentence embeddings
incomes   adult.data of the census income data: above 50,000 a year or not, by kind of employer
hotels    hotel_bookings.csv of the hotel booking demand data: cancelled or not, by the guest's country
unions    Males.csv of Ecdat: member of a union or not, by industry
patients  OFP.csv of Ecdat: self-rated health of elderly patients, by region
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Callable, Collection, Sequence
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
    return _numbers(table), y, domain


def airlines(folder: Path) -> Rows:
    with (folder / "Tweets.csv").open(newline="", encoding="utf-8", errors="replace") as rows:
        found = _sample(list(csv.DictReader(rows)), "airline", None, 1000)
    texts = [re.sub(r"@\w+", "@airline", row["text"]) for row in found]  # the tweet names its airline
    return _embedded(texts), [row["airline_sentiment"] for row in found], [row["airline"] for row in found]


def incomes(folder: Path) -> Rows:
    names = ["age", "employer", "weight", "education", "years", "marital", "occupation", "relationship", "race", "sex"]
    names += ["gain", "loss", "hours", "country", "income"]
    lines = (line.strip().rstrip(".") for line in (folder / "adult.data").read_text().splitlines())
    table = [dict(zip(names, re.split(r",\s*", line), strict=True)) for line in lines if line]
    kinds = ("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov")
    table = _sample(table, "employer", kinds, 1500)
    y = ["low" if row.pop("income") in ("<=50K", "YES") else "high" for row in table]  # one copy asks "at most 50K?"
    domain = [row.pop("employer") for row in table]
    return _numbers([{k: v for k, v in row.items() if k not in ("weight", "country")} for row in table]), y, domain


def hotels(folder: Path) -> Rows:
    with (folder / "hotel_bookings.csv").open(newline="") as rows:
        table = _sample(list(csv.DictReader(rows)), "country", ("PRT", "ESP", "GBR", "FRA", "DEU", "IRL"), 1500)
    y = ["cancelled" if row.pop("is_canceled") == "1" else "kept" for row in table]
    domain = [row.pop("country") for row in table]
    told = ("reservation_status", "reservation_status_date", "assigned_room_type", "agent", "company")  # or too many
    return _numbers([{k: v for k, v in row.items() if k not in told} for row in table]), y, domain


def unions(folder: Path) -> Rows:
    with (folder / "Males.csv").open(newline="") as rows:
        kinds = ("Trade", "Manufacturing", "Construction", "Transportation", "Professional_and_Related Service")
        table = _sample(list(csv.DictReader(rows)), "industry", kinds, 1500)
    y = [row.pop("union") for row in table]
    domain = [row.pop("industry") for row in table]
    return _numbers([{k: v for k, v in row.items() if k not in ("", "nr")} for row in table]), y, domain


def patients(folder: Path) -> Rows:
    with (folder / "OFP.csv").open(newline="") as rows:
        table = _sample(list(csv.DictReader(rows)), "region", None, 1500)
    y = [row.pop("hlth") for row in table]
    domain = [row.pop("region") for row in table]
    return _numbers([{k: v for k, v in row.items() if k} for row in table]), y, domain


def _sample(table: list[dict[str, str]], column: str, kinds: Sequence[str] | None, most: int) -> list[dict[str, str]]:
    """At most so many rows of each kind in a column, always the same ones; other kinds are left out (None: none is)."""
    order = np.random.default_rng(0).permutation(len(table))
    found: dict[str, list[int]] = {}
    for place in order.tolist():
        kind = table[place][column]
        if (kinds is None or kind in kinds) and len(found.setdefault(kind, [])) < most:
            found[kind].append(place)
    return [table[place] for places in found.values() for place in sorted(places)]


def _numbers(table: list[dict[str, str]]) -> np.ndarray:
    """(n, d): a column that holds numbers only as it is, any other as one column for each of its values."""
    columns = []
    for name in table[0]:
        values = [row[name] for row in table]
        try:
            columns.append(np.array([float(value) for value in values]))
        except ValueError:
            columns += [np.array([value == kind for value in values], dtype=float) for kind in sorted(set(values))]
    return np.stack(columns, axis=1)


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
    "airlines": airlines,
    "incomes": incomes,
    "hotels": hotels,
    "unions": unions,
    "patients": patients,
}


def main(originals: Path, wanted: Collection[str] = ()) -> None:
    out = default_data_root() / "new"
    out.mkdir(parents=True, exist_ok=True)
    for name, read in DATA.items():
        if wanted and name not in wanted:
            continue
        x, y, domain = read(originals / name)
        np.savez(out / f"{name}.npz", x=x.astype(np.float32), y=np.array(y), domain=np.array(domain))
        for place in sorted(set(domain)):
            labels = [label for label, where in zip(y, domain, strict=True) if where == place]
            print(name, place, len(labels), {kind: labels.count(kind) for kind in sorted(set(labels))})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
