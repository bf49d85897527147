"""One registry: the name of an algorithm -> a frozen entry. A duplicate raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rcalign.errors import unknown

if TYPE_CHECKING:
    from rcalign.algorithms.base import Algorithm

A = TypeVar("A", bound="type[Algorithm]")


@dataclass(frozen=True)
class Traits:
    """What is special about an algorithm; the contract suite and the training loop read these, never a name.

    min_domains: the least number of source domains it can train on.
    needs_counts: it uses the training counts of (domain, class) pairs.
    batch_dependent: a prediction depends on the other rows of its batch (test-batch adaptation).
    balanced_sampling: its batches are drawn class-balanced within each domain.
    stage_one: the algorithm whose run must come first and whose features it starts from.
    averages: the weight averaging it always uses ("ema", "swa", "swad"), or None.
    images_only: needs image input and a convolutional backbone with stages.
    erm_when: hyperparameters with which a step equals plain training on the mean over domains of the mean loss.
    recipe_part: a first stage that is no method of its own; left out of listings of methods.
    """

    min_domains: int = 1
    needs_counts: bool = False
    batch_dependent: bool = False
    balanced_sampling: bool = False
    stage_one: str | None = None
    averages: str | None = None
    images_only: bool = False
    erm_when: tuple[tuple[str, object], ...] | None = None
    recipe_part: bool = False


@dataclass(frozen=True)
class Entry:
    """One registered algorithm."""

    name: str
    algorithm: type[Algorithm]
    summary: str
    paper: str
    family: str
    traits: Traits


_entries: dict[str, Entry] = {}


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower().replace("+", "plus") if letter.isalnum())


def register(
    name: str,
    *,
    summary: str,
    paper: str,
    family: str,
    traits: Traits = Traits(),  # noqa: B008  (frozen)
) -> Callable[[A], A]:
    """Class decorator: puts an algorithm into the registry under its published name."""

    def add(algorithm: A) -> A:
        if _key(name) in _entries:
            raise ValueError(f"algorithm '{name}' is registered twice")
        algorithm.name = name
        algorithm.traits = traits
        _entries[_key(name)] = Entry(name, algorithm, summary, paper, family, traits)
        return algorithm

    return add


def get(name: str) -> Entry:
    """The entry of a name; case, hyphens and underscores do not matter, and "+" may be written "plus".

    >>> import rcalign.algorithms
    >>> get("rc_align").name
    'RC-Align'
    """
    entry = _entries.get(_key(name))
    if entry is None:
        raise unknown("algorithm", name, names(), "See 'rcalign algorithms'.")
    return entry


def names(parts: bool = False) -> list[str]:
    """All names in order of registration; with ``parts`` also the first stages that are no method of their own."""
    return [entry.name for entry in _entries.values() if parts or not entry.traits.recipe_part]
