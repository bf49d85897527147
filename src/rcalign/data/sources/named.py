"""The registry of data sets that have a name."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rcalign.data.source import Dataset
from rcalign.errors import InputError, unknown
from rcalign.store.names import name_key

F = TypeVar("F", bound=Callable[..., Dataset])
FROM_CALLER = ("skip_bad", "progress")


@dataclass(frozen=True)
class NamedSource:
    """A registered data set. parameters: name -> (type, default)."""

    name: str
    summary: str
    function: Callable[..., Dataset]
    parameters: dict[str, tuple[type, Any]]


_entries: dict[str, NamedSource] = {}


def register_source(name: str, *, summary: str) -> Callable[[F], F]:
    """Function decorator: puts a data set into the registry. A duplicate raises."""

    def add(function: F) -> F:
        if name_key(name) in _entries:
            raise ValueError(f"data set '{name}' is registered twice")
        hints = typing.get_type_hints(function)
        parameters = {
            key: (hints[key], item.default)
            for key, item in inspect.signature(function).parameters.items()
            if key not in FROM_CALLER
        }
        _entries[name_key(name)] = NamedSource(name, summary, function, parameters)
        return function

    return add


def source_names() -> list[str]:
    return [entry.name for entry in _entries.values()]


def entries() -> list[NamedSource]:
    return list(_entries.values())


def is_name(text: str) -> bool:
    """Whether the text is a registered name, with or without parameters; case, '-' and '_' do not matter.

    >>> import rcalign.data.sources
    >>> is_name("emoji"), is_name("Emoji_MLT:order=1"), is_name("./emoji")
    (True, True, False)
    """
    return looks_like_name(text) and name_key(text.partition(":")[0]) in _entries


def looks_like_name(text: str) -> bool:
    """Whether the text was meant as a name, not as a path.

    >>> looks_like_name("emojy"), looks_like_name("data/pacs"), looks_like_name("rows.npz")
    (True, False, False)
    """
    return re.fullmatch(r"[\w-]+(:.*)?", text) is not None


def load(text: str, *, skip_bad: bool = False, progress: bool = False) -> Dataset:
    """The data set of a name with its parameters, e.g. ``emoji-mlt:imbalance=20,order=3``."""
    name, _, tail = text.partition(":")
    source = _entries.get(name_key(name))
    if source is None:
        raise unknown("data set", name, source_names())
    accepted = inspect.signature(source.function).parameters
    caller = {key: value for key, value in zip(FROM_CALLER, (skip_bad, progress), strict=True) if key in accepted}
    return source.function(**_parameters(source, tail), **caller)


def _parameters(source: NamedSource, tail: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for piece in filter(None, (piece.strip() for piece in tail.split(","))):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise InputError(f"'{piece}' after '{source.name}:' is not of the form parameter=value.")
        if key not in source.parameters:
            raise unknown(f"parameter of data set '{source.name}'", key, source.parameters)
        kind = source.parameters[key][0]
        try:
            values[key] = _truth(value) if kind is bool else kind(value)
        except ValueError:
            raise InputError(
                f"parameter '{key}' of data set '{source.name}' is '{value}', but a value of type {kind.__name__} is "
                "expected."
            ) from None
    return values


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError
    return text.lower() in ("true", "yes", "1")
