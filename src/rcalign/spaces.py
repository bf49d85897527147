"""Hyperparameters: the default, the search space and the meaning of a field stand together, on the field.

An algorithm's hyperparameters are one frozen dataclass. A field is annotated with a ``Field``::

    penalty_weight: Annotated[float, Field("weight of the penalty", LogUniform(0.1, 10))] = 1.0

A draw is seeded by (seed, field name), so a new field moves no other. Published protocols that use another default or
another range for a field say so by the name of their preset (``At``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rcalign.errors import InputError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high]."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"U({self.low:g}, {self.high:g})"

    def sample(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """The exponential of a uniform draw from [log low, log high]; with ``integer`` floored to a whole number."""

    low: float
    high: float
    integer: bool = False

    def __str__(self) -> str:
        text = f"10^U({math.log10(self.low):.3g}, {math.log10(self.high):.3g})"
        return f"floor {text}" if self.integer else text

    def sample(self, rng: np.random.Generator) -> float | int:
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return math.floor(value) if self.integer else float(value)


@dataclass(frozen=True)
class Choice:
    """One of the given values, each as likely as the next."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.values)) + "}"

    def sample(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class IntUniform:
    """A whole number from low to high, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{{{self.low}, ..., {self.high}}}"

    def sample(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))


@dataclass(frozen=True)
class OneMinus:
    """1 - x, x from another space: for values that crowd below one, such as 1 - 10^U(-5, -2)."""

    space: LogUniform | Uniform

    def __str__(self) -> str:
        return f"1 - {self.space}"

    def sample(self, rng: np.random.Generator) -> float:
        return 1.0 - self.space.sample(rng)


KEEP: Any = object()  # a preset that leaves the default as it is
Space = Uniform | LogUniform | Choice | IntUniform | OneMinus


@dataclass(frozen=True)
class At:
    """What a preset changes about a field: its default, its space, or both."""

    default: Any = KEEP
    space: Space | None = None


@dataclass(frozen=True)
class Field:
    """The meaning of a hyperparameter, the space it is searched in (None: not searched), its limits, its presets.

    added_later: sweeps were made before it existed; at the default that it came with it is left out of a run's id, so
    that they go on. first_default: that default, if it has changed since.
    """

    doc: str
    space: Space | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    presets: Mapping[str, At] = dataclasses.field(default_factory=dict)
    added_later: bool = False
    first_default: Any = KEEP

    def space_in(self, preset: str) -> Space | None:
        at = self.presets.get(preset)
        return at.space if at is not None and at.space is not None else self.space


def fields_of(hparams: type | Any) -> dict[str, Field]:
    """Field name -> Field, in the order of declaration. Takes the dataclass or an instance."""
    return dict(_fields(hparams if isinstance(hparams, type) else type(hparams)))


@functools.cache  # reading annotations takes a millisecond, a sweep makes thousands of draws
def _fields(cls: type) -> Mapping[str, Field]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found: dict[str, Field] = {}
    for item in dataclasses.fields(cls):
        notes = [note for note in getattr(hints[item.name], "__metadata__", ()) if isinstance(note, Field)]
        assert len(notes) == 1, f"{cls.__qualname__}.{item.name} needs exactly one Field annotation"
        found[item.name] = notes[0]
    return found


@functools.cache
def _plain_types(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def defaults(cls: type[T], preset: str = "default", **changes: Any) -> T:
    """The hyperparameters of a preset, with some of them changed.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example:
    ...     rate: typing.Annotated[float, Field("step size", LogUniform(1e-4, 1e-2), minimum=0)] = 1e-3
    >>> defaults(Example), draw(Example, seed=0), draw(Example, seed=7).rate == draw(Example, seed=7).rate
    (Example(rate=0.001), Example(rate=0.001), True)
    """
    values: dict[str, Any] = {}
    for name, note in fields_of(cls).items():
        at = note.presets.get(preset)
        if at is not None and at.default is not KEEP:
            values[name] = at.default
    return build_hparams(cls, {**values, **changes})


def draw(cls: type[T], preset: str = "default", seed: int = 0, **changes: Any) -> T:
    """Random hyperparameters. Draw 0 is the default. ``changes`` are kept fixed."""
    if seed == 0:
        return defaults(cls, preset, **changes)
    start = dataclasses.asdict(defaults(cls, preset))  # type: ignore[call-overload]
    for name, note in fields_of(cls).items():
        space = note.space_in(preset)
        if space is not None:
            start[name] = sample_value(space, seed, name)
    return build_hparams(cls, {**start, **changes})


def sample_value(space: Space, seed: int, name: str) -> Any:
    """The value of one field in draw ``seed``."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return space.sample(np.random.default_rng(int.from_bytes(digest[:16], "little")))


def build_hparams(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass from plain values (numbers, strings of a command line, JSON), checked field by field."""
    notes, types = fields_of(cls), _plain_types(cls)  # type: ignore[arg-type]
    for name in values:
        if name not in notes:
            raise unknown("hyperparameter", name, notes)
    checked = {name: _checked(name, value, types[name], notes[name]) for name, value in values.items()}
    return cls(**checked)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``["a=1", "b=x"]`` as a dict: the form of ``--set`` on the command line.

    >>> assignments(["temperature=0.5"])
    {'temperature': '0.5'}
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"'{text}' is not of the form field=value: write for example learning_rate=1e-4.")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def _checked(name: str, value: Any, kind: Any, note: Field) -> Any:
    wanted = getattr(kind, "__name__", str(kind))
    try:
        value = _converted(value, kind)
    except (TypeError, ValueError, OverflowError):  # overflow: infinity is no whole number
        raise InputError(f"hyperparameter '{name}' is {value!r}, but a value of type {wanted} is expected.") from None
    if note.choices is not None and value not in note.choices:
        options = ", ".join(repr(choice) for choice in note.choices)
        raise InputError(f"hyperparameter '{name}' is {value!r}, but must be one of {options}.")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InputError(f"hyperparameter '{name}' is {value}, but must be a finite number.")
        if note.minimum is not None and value < note.minimum:
            raise InputError(f"hyperparameter '{name}' is {value}, but must be at least {note.minimum}.")
        if note.maximum is not None and value > note.maximum:
            raise InputError(f"hyperparameter '{name}' is {value}, but must be at most {note.maximum}.")
    return value


def _converted(value: Any, kind: Any) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in ("true", "yes", "on", "1"):
            return True
        if text in ("false", "no", "off", "0"):
            return False
        raise ValueError(value)
    if kind is int:
        number = float(value)
        if number != int(number):
            raise ValueError(value)
        return int(number)
    if kind is float:
        return float(value)
    if kind is str:
        return str(value)
    return value
