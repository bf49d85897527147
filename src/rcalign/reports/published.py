"""The figures that the RC-Align paper prints, with the protocol they belong to.

``published.csv`` holds all 1,800 figures of the paper's ten detailed tables, in per cent. Most rows of those tables are
quoted from the papers of the methods themselves, so a difference to a rerun is no error on either side by itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rcalign.store.names import name_key


@dataclass(frozen=True)
class PublishedProtocol:
    """What a rerun must share with the published figures to be comparable."""

    protocol: str
    presets: tuple[str, ...]
    steps: tuple[int, ...]
    rule: str
    doc: str
    setting: str = "ResNet-50, 224 x 224"


PROTOCOLS = {
    "lodo": PublishedProtocol(
        "lodo",
        ("domainbed", "rc-align"),
        (5000, 5001),
        "training-domain",
        "leave one domain out as in DomainBed, ResNet-50 pretrained on ImageNet, 5,000 steps, training-domain "
        "validation, three seeds",
    ),
    "mdlt": PublishedProtocol(
        "mdlt",
        ("mdlt", "rc-align"),
        (5000, 5001, 15000, 15001),
        "mdlt",
        "multi-domain long-tailed as in BoDA, ResNet-50 pretrained on ImageNet, 5,000 steps (DomainNet 15,000), chosen "
        "by mean validation accuracy, three seeds",
    ),
}


@dataclass(frozen=True)
class PublishedFigure:
    """One printed figure, in per cent. column: a domain's letter or word, Avg, Worst, Many, Medium, Few or Zero."""

    protocol: str
    dataset: str
    algorithm: str
    column: str
    mean: float
    stderr: float | None
    table: str


@cache
def figures() -> tuple[PublishedFigure, ...]:
    """All figures.

    >>> len(figures()), sorted({figure.protocol for figure in figures()})
    (1800, ['lodo', 'mdlt'])
    """
    with (resources.files("rcalign.reports") / "published.csv").open() as file:
        return tuple(
            PublishedFigure(
                row["protocol"],
                row["dataset"],
                row["algorithm"],
                row["column"],
                float(row["mean"]),
                float(row["stderr"]) if row["stderr"] else None,
                row["table"],
            )
            for row in csv.DictReader(file)
        )


def table_of(data: str, protocol: str) -> tuple[PublishedFigure, ...]:
    """The figures of a data set under a protocol; none if it was not published.

    >>> {figure.dataset for figure in table_of("terra_incognita", "mdlt")}
    {'TerraInc-MLT'}
    >>> table_of("emoji", "lodo")
    ()
    """
    return tuple(
        figure
        for figure in figures()
        if figure.protocol == protocol and _data_key(figure.dataset) == _data_key(data.partition(":")[0])
    )


def column_of(name: str, columns: Sequence[str]) -> str | None:
    """Which printed column a domain is: the same name, the only one that it begins with, or the same number.

    >>> column_of("art_painting", ["A", "C", "P", "S"]), column_of("location_38", ["L100", "L38"])
    ('A', 'L38')
    >>> column_of("quickdraw", ["Quick", "Real"]), column_of("web", ["A", "C"])
    ('Quick', None)
    """
    exact = [column for column in columns if name_key(column) == name_key(name)]
    numbered = [c for c in columns if re.findall(r"\d+", c) and re.findall(r"\d+", c) == re.findall(r"\d+", name)]
    begun = [column for column in columns if name_key(name).startswith(name_key(column))]
    for found in (exact, numbered, begun):
        if len(found) == 1:
            return found[0]
    return None


def _data_key(name: str) -> str:
    short = re.sub(r"mlt$", "", name_key(name))
    return {"terrainc": "terraincognita", "terra": "terraincognita"}.get(short, short)
