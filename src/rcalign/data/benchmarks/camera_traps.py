"""TerraIncognita from the Caltech camera-trap images and their annotation files.

An image belongs to the location where it was taken and to each of the ten categories that it is annotated with; one
with two of them is in both, as in DomainBed. Several annotation files (train, cis_test, ...) count together.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.benchmarks.layouts import Spot
from rcalign.errors import InputError


def spots(benchmark: Benchmark, annotations: Iterable[tuple[str, bytes]]) -> dict[str, list[Spot]]:
    """Name of an image file -> where it goes. annotations: name and content of each annotation file.

    >>> from rcalign.data.benchmarks import facts
    >>> text = b'''{"images": [{"id": "a", "file_name": "a.jpg", "location": 38}],
    ... "annotations": [{"image_id": "a", "category_id": 6}], "categories": [{"id": 6, "name": "bobcat"}]}'''
    >>> spots(facts.get_benchmark("TerraIncognita"), [("cct.json", text)])
    {'a.jpg': [Spot(domain='location_38', label='bobcat', name='a.jpg')]}
    """
    images: dict[Any, tuple[str, str]] = {}  # id -> file, domain
    labels: dict[Any, set[str]] = defaultdict(set)
    for name, content in annotations:
        tables = _tables(name, content)
        category = {item["id"]: item["name"] for item in tables["categories"]}
        for item in tables["images"]:
            domain = f"location_{item.get('location')}"
            if domain in benchmark.domains:
                images[item["id"]] = (item["file_name"].rpartition("/")[2], domain)
        for item in tables["annotations"]:
            label = category.get(item["category_id"])
            if label in benchmark.classes:
                labels[item["image_id"]].add(label)
    found: dict[str, list[Spot]] = {}
    for identity, (file, domain) in images.items():
        here = [Spot(domain, label, file) for label in benchmark.classes if label in labels.get(identity, ())]
        if here:
            found[file] = here
    if not found:
        raise InputError(
            f"the annotations have no image of {benchmark.name} (locations 38, 43, 46 and 100, ten categories): give "
            "those of the Caltech Camera Traps."
        )
    return found


def _tables(name: str, content: bytes) -> dict[str, list[dict[str, Any]]]:
    try:
        tables = json.loads(content)
        kinds = [type(tables[key]) for key in ("images", "annotations", "categories")]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{name}' is not a camera-trap annotation file ({type(error).__name__}: {error}): expected JSON with "
            "images, annotations and categories."
        ) from None
    if kinds != [list] * 3:
        raise InputError(f"'{name}' is not a camera-trap annotation file: its tables are not lists.")
    return tables
