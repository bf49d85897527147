"""Reading a sweep file (TOML): every key is checked, and a wrong one is named with the nearest right one."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rcalign.catalogue import find_algorithm
from rcalign.errors import InputError, in_words_of, unknown
from rcalign.extensions import import_modules
from rcalign.spaces import Choice, IntUniform, LogUniform, Space, Uniform
from rcalign.sweeps.plan import DOMAINBED, SEED_RULES, TUNE_THEN_REPEAT, EarlyStopping, Searched, Sweep
from rcalign.training.options import checked_option, described, in_plans

_TABLES = ("hparams", "search", "variants", "override", "domains", "early_stopping")
_KEYS = (
    "name",
    "data",
    "algorithms",
    "test_domains",
    "pairs",
    "seed_rule",
    "draws",
    "seeds",
    "search_seeds",
    *in_plans(),
    *_TABLES,
)
_OVERRIDE_KEYS = ("data", "algorithm", "test_domains", "pairs", "hparams", "search", *in_plans())
_VARIANT_KEYS = ("algorithm", "hparams", "search", *in_plans())


def recipes() -> dict[str, Path]:
    """The published protocols that ship with the package: name -> sweep file."""
    folder = Path(str(resources.files("rcalign") / "recipes"))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def find_plan(plan: str | Path) -> Path:
    """The file of a path, or of the name of a recipe."""
    path = Path(plan)
    if path.is_file():
        return path
    if str(plan) in recipes():
        return recipes()[str(plan)]
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"there is no sweep file '{path}': give a .toml file, or a recipe: {', '.join(recipes())}.")
    raise unknown("recipe", str(plan), recipes(), "A sweep file of your own is given by its path.")


def read_plan(plan: str | Path) -> Sweep:
    """A sweep file, whose paths are relative to it, or a recipe by its name, whose paths are relative to here."""
    file = find_plan(plan)
    try:
        values = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' is not valid TOML ({error}): correct that line.") from None
    return parse_plan(values, file.stem, file.resolve().parent if Path(plan).is_file() else Path.cwd())


def parse_plan(values: Mapping[str, Any], name: str = "sweep", base: Path | str = ".") -> Sweep:
    """A sweep from the values of its file.

    >>> sweep = parse_plan({"data": "rows.npz", "algorithms": ["erm"], "draws": 3, "seeds": 2, "preset": "arrays"})
    >>> sweep.algorithms, sweep.seeds
    (('ERM',), (0, 1))
    """
    _only(values, _KEYS, "key of the sweep file")
    if "imports" in values:
        import_modules(_names(values, "imports"))
    variants = {label: _variant(label, given) for label, given in _table(values, "variants").items()}
    algorithms = tuple(
        given if given in variants else find_algorithm(given).name for given in _names(values, "algorithms")
    )
    data = _names(values, "data")
    for what, listed in (("data", data), ("algorithms", algorithms)):
        twice = [item for item in listed if listed.count(item) > 1]
        if twice:
            raise InputError(f"'{twice[0]}' is listed twice in {what}: list it once.")
    unused = [label for label in variants if label not in algorithms]
    if unused:
        raise InputError(f"the variant '{unused[0]}' is not used: add it to algorithms, or take it out.")
    known = {*algorithms, *(variant["algorithm"] for variant in variants.values())}
    overrides = values.get("override", [])
    if not isinstance(overrides, list):
        raise InputError("override is a table, but a list of them is expected: write [[override]].")
    rule = values.get("seed_rule", DOMAINBED)
    if rule not in SEED_RULES:
        raise unknown("seed_rule", str(rule), SEED_RULES)
    if "search_seeds" in values and rule == DOMAINBED:
        raise InputError(f'search_seeds belong to seed_rule "{TUNE_THEN_REPEAT}": name that rule, or leave them out.')
    return Sweep(
        name=_typed("name", values.get("name", name), str),
        base=Path(base),
        data=data,
        algorithms=algorithms,
        seed_rule=rule,
        draws=_count("draws", values.get("draws", 1)),
        seeds=_seeds("seeds", values.get("seeds", 1)),
        search_seeds=_seeds("search_seeds", values.get("search_seeds", 1)),
        settings=_settings({key: values[key] for key in values if key in _OVERRIDE_KEYS and key != "data"}),
        variants=variants,
        overrides=tuple(_override(given, data, known) for given in overrides),
        domains={key: tuple(_names(_table(values, "domains"), key)) for key in _table(values, "domains")},
        early_stopping=_early_stopping(values),
    )


def _only(values: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    known = list(known)
    for key in values:
        if key not in known:
            raise unknown(what, key, known)


def _typed(key: str, value: Any, kind: type) -> Any:
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not right:
        words = {int: "a whole number", str: "a text in quotes", bool: "true or false", dict: "a table"}
        raise InputError(f"{key} is {value!r} in the sweep file, but {words[kind]} is expected.")
    return value


def _table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _typed(key, values.get(key, {}), dict)


def _names(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts, or one text."""
    given = values.get(key)
    if given is None:
        raise InputError(f'{key} is missing from the sweep file: write for example {key} = ["..."].')
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise InputError(f"{key} is {given!r} in the sweep file, but a list of texts is expected.")
    if not listed:
        raise InputError(f"{key} is empty, so there is nothing to run: name at least one.")
    return tuple(listed)


def _count(key: str, value: Any) -> int:
    if _typed(key, value, int) < 1:
        raise InputError(f"{key} is {value}, so there is nothing to run: at least 1 is expected.")
    return value


def _seeds(key: str, value: Any) -> tuple[int, ...]:
    """``3`` is 0, 1, 2; a list is itself."""
    if not isinstance(value, list):
        return tuple(range(_count(key, value)))
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
        raise InputError(f"{key} is {value!r} in the sweep file, but a list of whole numbers from 0 is expected.")
    if not value:
        raise InputError(f"{key} is empty, so there is nothing to run: name at least one.")
    return tuple(dict.fromkeys(value))


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options, hyperparameters, search spaces and test domains, each checked as far as it can be on its own."""
    found = dict(values)
    for key, value in values.items():
        if key in in_plans():
            found[key] = _option(key, value)
    if "hparams" in values:
        _table(values, "hparams")
    if "search" in values:
        found["search"] = {name: _searched(name, given) for name, given in _table(values, "search").items()}
    if "pairs" in values:
        _typed("pairs", values["pairs"], bool)
    if "test_domains" in values:
        found["test_domains"] = _test_domains(values["test_domains"])
    return found


def _option(key: str, value: Any) -> Any:
    """The value of an option, as JSON keeps it."""
    several = described()[key].kind is tuple
    given = list(_names({key: value}, key)) if several else _typed(key, value, described()[key].kind)
    try:
        return list(checked_option(key, given)) if several else checked_option(key, given)
    except InputError as error:
        raise InputError(in_words_of(str(error), str)) from None


def _test_domains(given: Any) -> str | list[tuple[str, ...]]:
    """ "each", or the sets to hold out, one after another: ["a", "b"] is two runs, [["a", "b"]] one."""
    if given == "each":
        return "each"
    if isinstance(given, str):
        raise InputError(f"test_domains is '{given}', but \"each\" or a list of domains is expected.")
    found: list[tuple[str, ...]] = []
    for item in given if isinstance(given, list) else [None]:
        held_out = [item] if isinstance(item, str) else item
        if not isinstance(held_out, list) or not held_out or not all(isinstance(name, str) for name in held_out):
            raise InputError(f'test_domains is {given!r}, but "each" or a list of domains is expected.')
        found.append(tuple(held_out))
    if not found:
        raise InputError('test_domains is empty, so there is nothing to run: name one, or write "each".')
    return found


def _searched(name: str, given: Any) -> Searched:
    kinds: dict[str, Callable[..., Space]] = {
        "uniform": Uniform,
        "log_uniform": LogUniform,
        "int_uniform": IntUniform,
        "choice": Choice,
    }
    values = dict(_typed(f"search.{name}", given, dict))
    integer, default = values.pop("integer", False), values.pop("default", None)
    if len(values) != 1 or next(iter(values)) not in kinds:
        raise InputError(
            f"search.{name} is {given!r}, but one of {', '.join(kinds)} is expected, e.g. {{ log_uniform = [1e-5, "
            "1e-3] }."
        )
    ((kind, numbers),) = values.items()
    if not isinstance(numbers, list) or (kind != "choice" and not _interval(numbers, kind)):
        raise InputError(f"search.{name} is {given!r}, but {kind} takes two numbers, the smaller first.")
    if integer and kind != "log_uniform":
        raise InputError(f"search.{name} has integer = true, which only log_uniform knows: use int_uniform.")
    return Searched(LogUniform(numbers[0], numbers[1], integer) if integer else kinds[kind](*numbers), default)


def _interval(numbers: Sequence[Any], kind: str) -> bool:
    if len(numbers) != 2 or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        return False
    return numbers[0] <= numbers[1] and (kind != "log_uniform" or numbers[0] > 0)


def _variant(label: str, given: Any) -> dict[str, Any]:
    values = _typed(f"variants.{label}", given, dict)
    _only(values, _VARIANT_KEYS, f"key of the variant '{label}'")
    if "algorithm" not in values:
        raise InputError(f"the variant '{label}' names no algorithm: write algorithm = \"...\".")
    try:
        taken = find_algorithm(label).name
    except InputError:
        taken = None
    entry = find_algorithm(_typed("algorithm", values["algorithm"], str))
    if taken is not None and not label == taken == entry.name:  # its own name: that algorithm with other settings
        raise InputError(f"the variant '{label}' has the name of an algorithm: give it another.")
    return {**_settings(values), "algorithm": entry.name}


def _override(given: Any, data: Sequence[str], algorithms: Iterable[str]) -> dict[str, Any]:
    values = _typed("override", given, dict)
    _only(values, _OVERRIDE_KEYS, "key of an override")
    found = _settings(values)
    if "data" not in values and "algorithm" not in values:
        raise InputError("an override names neither data nor algorithm: say whom it is for, or set it for all.")
    for key, known in (("data", list(data)), ("algorithm", list(algorithms))):
        if key in values:
            found[key] = _names(values, key)
            if key == "algorithm":
                found[key] = tuple(name if name in known else find_algorithm(name).name for name in found[key])
            for name in found[key]:
                if name not in known:
                    raise unknown(f"{key} in an override", name, known)
    if "algorithm" in values and ("test_domains" in values or "pairs" in values):
        raise InputError("an override sets test domains for some algorithms only: set them by data set.")
    return found


def _early_stopping(values: Mapping[str, Any]) -> EarlyStopping | None:
    given = _table(values, "early_stopping")
    if not given:
        return None
    _only(given, ("after", "peers"), "key of early_stopping")
    if "after" not in given:
        raise InputError("early_stopping.after is missing: give the number of steps that every draw may take.")
    return EarlyStopping(_count("after", given["after"]), _count("peers", given.get("peers", 3)))
