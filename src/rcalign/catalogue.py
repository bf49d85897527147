"""What there is to choose from, said without importing torch, which takes seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata, resources
from typing import Any

from rcalign import registry, spaces
from rcalign.extensions import import_modules
from rcalign.hparams_reader import read_hparams
from rcalign.registry import Description

GROUP = "rcalign.algorithms"  # of entry points


def list_algorithms(imports: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Name, family, needs, cost (step time relative to plain training), summary and paper of each, baselines first."""
    _import_others(imports)
    methods = [found for found in registry.descriptions() if not found.traits.recipe_part]
    costs = _costs()
    ordered = sorted(methods, key=lambda found: (found.family != "baseline", found.family, found.name))
    return [_row(found, costs) for found in ordered]


def describe_algorithm(name: str, imports: Sequence[str] = ()) -> dict[str, Any]:
    """The same of one, with its hyperparameters: field -> default, meaning, choices, search space."""
    about = find_algorithm(name, imports)
    hparams = _hparams_of(about)
    start = hparams()
    fields = {
        field: {
            "default": getattr(start, field),
            "meaning": note.doc,
            "choices": list(note.choices) if note.choices else None,
            "search": None if note.space is None else str(note.space),
        }
        for field, note in spaces.fields_of(hparams).items()
    }
    return {**_row(about, _costs()), "hparams": fields}


def _hparams_of(about: Description) -> type:
    if about.defined_in is not None:
        return read_hparams(*about.defined_in)
    return registry.get(about.name).algorithm.Hparams


def find_algorithm(name: str, imports: Sequence[str] = ()) -> Description:
    """The description of an algorithm; an ``InputError`` with the nearest name if there is none.

    >>> find_algorithm("rc_align").name
    'RC-Align'
    """
    _import_others(imports)
    return registry.description(name)


def _import_others(imports: Sequence[str]) -> None:
    """What is not in this package must be imported to be known."""
    import_modules(imports)
    if _installed_elsewhere():
        import rcalign.algorithms  # noqa: F401  (imports them)


@cache
def _installed_elsewhere() -> bool:
    """Whether another package that is installed brings algorithms; looking takes 30 ms."""
    return bool(metadata.entry_points(group=GROUP))


def _costs() -> dict[str, float]:
    return json.loads((resources.files("rcalign") / "algorithms" / "costs.json").read_text())


def _row(about: Description, costs: dict[str, float]) -> dict[str, Any]:
    return {
        "name": about.name,
        "family": about.family,
        "needs": _needs(about),
        "cost": costs.get(about.name),
        "summary": about.summary,
        "paper": about.paper,
    }


def _needs(about: Description) -> str:
    traits = about.traits
    needs = [f"{traits.min_domains} domains"] if traits.min_domains > 1 else []
    needs += ["class counts"] if traits.needs_counts else []
    needs += ["images"] if traits.images_only else []
    needs += [f"first {traits.stage_one}"] if traits.stage_one else []
    needs += ["test batches"] if traits.batch_dependent else []
    return ", ".join(needs) or "–"
