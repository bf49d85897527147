"""One registry: the name of an algorithm -> a frozen entry. A duplicate raises.

``descriptions`` reads the same from the files' decorators, without importing them: torch takes seconds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rcalign.errors import InputError, unknown

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
    averages: the weight averaging that belongs to it ("beta", "ema", "polynomial", "swa", "swad"), or None.
    averages_when: the hyperparameter that turns that averaging on (None: always).
    images_only: needs image input and a convolutional backbone with stages.
    erm_when: hyperparameters with which a step equals plain training on the mean over domains of the mean loss.
    recipe_part: a first stage that is no method of its own; left out of listings of methods.
    adapts: it uses unlabelled rows of the domains it is tested on, where batches have them.
    adapts_when: the hyperparameter that must be above zero for that (None: always).
    row_losses: its loss is a mean over the rows of a batch, so that the pieces of one may be descended one by one.
    cross_entropy: its loss has a cross-entropy with class labels, which may be smoothed.
    """

    min_domains: int = 1
    needs_counts: bool = False
    batch_dependent: bool = False
    balanced_sampling: bool = False
    stage_one: str | None = None
    averages: str | None = None
    averages_when: str | None = None
    images_only: bool = False
    erm_when: tuple[tuple[str, object], ...] | None = None
    recipe_part: bool = False
    adapts: bool = False
    adapts_when: str | None = None
    alignment: tuple[tuple[str, str], ...] = ()

    def averaging(self, hparams: Mapping[str, Any]) -> str | None:
        """The weight averaging of a run with these hyperparameters, unless another is asked for.

        >>> Traits(averages="swad").averaging({})
        'swad'
        >>> Traits(averages="swad", averages_when="flat").averaging({"flat": False})
        """
        on = self.averages_when is None or hparams[self.averages_when]
        return self.averages if on else None

    def alignment_value(self, role: str, hparams: Mapping[str, Any], default: float) -> float:
        """The value of the hyperparameter that has a role in the alignment; the default if none has.

        >>> Traits(alignment=(("weight", "alpha"),)).alignment_value("weight", {"alpha": 0.3}, 1.0)
        0.3
        """
        field = dict(self.alignment).get(role)
        return default if field is None else float(hparams[field])

    row_losses: bool = False
    cross_entropy: bool = True


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is said of an algorithm where it is registered.

    defined_in: file and class in ``algorithms/``, of a description that was read without importing the class.
    """

    name: str
    summary: str
    paper: str
    family: str
    traits: Traits = Traits()
    defined_in: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class RegisteredAlgorithm(Description):
    """A description with the class that it is of."""

    algorithm: type[Algorithm]


_entries: dict[str, RegisteredAlgorithm] = {}


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
        _entries[_key(name)] = RegisteredAlgorithm(
            name=name, summary=summary, paper=paper, family=family, traits=traits, algorithm=algorithm
        )
        return algorithm

    return add


def get(name: str) -> RegisteredAlgorithm:
    """The entry of a name; case, hyphens and underscores do not matter, and "+" may be written "plus".

    >>> import rcalign.algorithms
    >>> get("rc_align").name
    'RC-Align'
    """
    return _found(name, _entries)


def names(parts: bool = False) -> list[str]:
    """All names in order of registration; with ``parts`` also the first stages that are no method of their own."""
    return [entry.name for entry in _entries.values() if parts or not entry.traits.recipe_part]


def check_adapts(name: str, traits: Traits, hparams: Mapping[str, Any]) -> None:
    """Raises an ``InputError`` for an algorithm that does not use unlabelled rows with these hyperparameters.

    >>> check_adapts("mine", Traits(adapts=True, adapts_when="pull"), {"pull": 0.5})
    >>> check_adapts("mine", Traits(), {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: mine does not use unlabelled rows, which `protocol=adapt` is for: ...
    """
    if not traits.adapts:
        known = ", ".join(other.name for other in descriptions() if other.traits.adapts)
        raise InputError(
            f"{name} does not use unlabelled rows, which `protocol=adapt` is for: take one of {known}, or "
            "`protocol=lodo`, which with the same `unlabelled_share` tests on the same rows."
        )
    if traits.adapts_when is not None and not hparams[traits.adapts_when]:
        raise InputError(
            f"{name} uses unlabelled rows only where the hyperparameter {traits.adapts_when} is above 0: set it, for "
            "example to 1, or use another protocol than adapt."
        )


def description(name: str) -> Description:
    """What is said of an algorithm of this package, or of one that is registered; nothing is imported.

    >>> description("rc-align").traits.min_domains
    2
    """
    return _found(name, {_key(found.name): found for found in descriptions()})


def descriptions() -> list[Description]:
    """Descriptions of all algorithms of this package, and of others that are registered; nothing is imported."""
    return list({_key(found.name): found for found in (*_read_descriptions(), *_entries.values())}.values())


@functools.cache
def _read_descriptions() -> tuple[Description, ...]:
    """The arguments of the decorators ``register`` in the files of ``algorithms/``: literals, or names of literals."""
    found = []
    for file in sorted((Path(__file__).parent / "algorithms").glob("*.py")):
        constants: dict[str, ast.expr] = {}
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
            if not isinstance(node, ast.ClassDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "register":
                    values = {word.arg: _literal(word.value, constants) for word in mark.keywords if word.arg}
                    name = ast.literal_eval(mark.args[0])
                    found.append(Description(name=name, **values, defined_in=(file.stem, node.name)))
    return tuple(found)


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    if isinstance(node, ast.Name):
        node = constants[node.id]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Traits":
        return Traits(**{word.arg: _literal(word.value, constants) for word in node.keywords if word.arg})
    return ast.literal_eval(node)


D = TypeVar("D", bound=Description)


def _found(name: str, known: dict[str, D]) -> D:
    if _key(name) not in known:
        methods = [found.name for found in known.values() if not found.traits.recipe_part]
        raise unknown("algorithm", name, methods, "See 'rcalign algorithms'.")
    return known[_key(name)]
