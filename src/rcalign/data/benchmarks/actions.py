"""What a user does with a benchmark, by name: prepare, verify, fetch, sample, list."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rcalign.data.benchmarks import contents, facts, fetch, hearts, mnist, sample, sentiment, spawrious, wilds
from rcalign.data.benchmarks import prepare as preparing
from rcalign.data.benchmarks.place import data_root, is_stand_in
from rcalign.data.sources.named import source_names
from rcalign.errors import InputError, unknown
from rcalign.store.names import name_key

Root = str | os.PathLike[str] | None
Done = dict[str, Any]


@dataclass(frozen=True)
class Special:
    """A data set that is not a folder of images by domain and class, and its own way to do what all of them can.

    prepare(sources, root, replace=, progress=); verify(name, root); draw(out, each=, seed=), a stand-in;
    fetch(root, mirror=, progress=).
    """

    name: str
    summary: str
    folder: str
    prepare: Callable[..., Done]
    verify: Callable[..., Done]
    draw: Callable[..., Done]
    fetch: Callable[..., Done]


def _by_hand(name: str, how: str) -> Callable[..., Done]:
    """In the place of a function that fetches, where a person must."""

    def fetch_nothing(root: Root = None, *, mirror: str | None = None, progress: bool = False) -> Done:
        raise InputError(f"{name} is not fetched by rcalign: {how}.")

    return fetch_nothing


def _wilds(name: str, summary: str) -> Special:
    item = wilds.get_wilds(name)
    prepare, draw = partial(wilds.prepare, name), partial(wilds.drawn, name)
    how = f"get its archive from {wilds.PAGE}, then run 'rcalign data prepare {name} --from ARCHIVE'"
    sampled = partial(sample.sample_rows, name, item.folder, draw)
    return Special(name, summary, item.folder, prepare, wilds.verify, sampled, _by_hand(name, how))


def _spawrious(variant: str) -> Special:
    how = f"get spawrious224.tar.gz from {spawrious.PAGE}, then run 'rcalign data prepare {variant} --from' it"
    draw = partial(sample.sample_rows, variant, spawrious.FOLDER, spawrious.drawn)
    summary = "four dog breeds whose backgrounds mislead in training"
    return Special(
        variant, summary, spawrious.FOLDER, spawrious.prepare, spawrious.verify, draw, _by_hand(variant, how)
    )


def _digits(name: str, summary: str) -> Special:
    draw = partial(sample.sample_mnist, name)
    return Special(name, summary, mnist.FOLDER, mnist.prepare, mnist.verify, draw, fetch.fetch_mnist)


SPECIAL = (
    _digits("ColoredMNIST", "two classes of digits in two colours"),
    _digits("RotatedMNIST", "turned digits"),
    Special(
        hearts.NAME,
        hearts.SUMMARY,
        hearts.FOLDER,
        hearts.prepare,
        hearts.verify,
        partial(sample.sample_rows, hearts.NAME, hearts.FOLDER, hearts.drawn),
        fetch.fetch_hearts,
    ),
    Special(
        sentiment.NAME,
        sentiment.SUMMARY,
        sentiment.FOLDER,
        sentiment.prepare,
        sentiment.verify,
        partial(sample.sample_rows, sentiment.NAME, sentiment.FOLDER, sentiment.drawn),
        _by_hand(
            sentiment.NAME,
            f"get the source archive of a Python package with '{sentiment.GET}', then run 'rcalign data prepare "
            "sentiment --from vaderSentiment-3.3.2.tar.gz'",
        ),
    ),
    *(_wilds(item.name, item.summary) for item in wilds.SETS),
    *(_wilds(item.plain_name, f"{item.name}, as DomainBed divides it") for item in wilds.SETS),
    *(_spawrious(variant) for variant in spawrious.VARIANTS),
)


def prepare_data(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    root: Root = None,
    *,
    drop: str | os.PathLike[str] | None = None,
    keep: Sequence[str | os.PathLike[str]] = (),
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """``prepare.prepare`` or that of a special data set, and then whether the data set is whole."""
    special = _special(name)
    if special is not None:
        return _checked(special.prepare(sources, root, replace=replace, progress=progress), name, root)
    benchmark = facts.get_benchmark(_known(name))
    done = preparing.prepare(benchmark, sources, root, drop=drop, keep=keep, replace=replace, progress=progress)
    return _checked(done, name, root)


def verify_data(
    name: str,
    root: Root = None,
    *,
    split_file: str | os.PathLike[str] | None = None,
    decode: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """``contents.verify`` or that of a special data set."""
    special = _special(name)
    if special is not None:
        return special.verify(special.name, root)
    benchmark = facts.get_benchmark(_known(name))
    return contents.verify(
        benchmark, root, split_file, long_tailed=facts.is_mlt(name), decode=decode, progress=progress
    )


def fetch_data(
    name: str,
    root: Root = None,
    *,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """``fetch.fetch`` or that of a special data set, and then whether the data set is whole."""
    special = _special(name)
    if special is not None:
        return _checked(special.fetch(root, mirror=mirror, progress=progress), name, root)
    benchmark = facts.get_benchmark(_known(name))
    done = fetch.fetch(
        benchmark,
        root,
        long_tailed=facts.is_mlt(name),
        mirror=mirror,
        keep_archives=keep_archives,
        progress=progress,
    )
    return _checked(done, name, root)


def sample_data(
    name: str, out: str | os.PathLike[str], *, each: int = 4, size: int = 64, seed: int = 0
) -> dict[str, Any]:
    """``sample.sample`` or that of a special data set; ``use`` in the answer is what to give as data."""
    special = _special(name)
    if special is not None:
        done = special.draw(out, each=each, seed=seed)
    else:
        benchmark = facts.get_benchmark(_known(name))
        done = sample.sample(benchmark, out, each=each, size=size, long_tailed=facts.is_mlt(name), seed=seed)
    return {**done, "use": f"{_proper(name)}:root={done['root']}"}


def list_data(root: Root = None) -> list[dict[str, Any]]:
    """Every benchmark, and whether it is in the data root."""
    found = []
    for benchmark in facts.benchmarks().values():
        folder = data_root(root) / benchmark.folder
        state = "stand-in" if is_stand_in(folder) else "here" if folder.is_dir() else "–"
        found.append({"name": benchmark.name, "state": state, "folder": str(folder), "summary": benchmark.summary})
        if benchmark.mlt_name is not None:
            state = "with split file" if state != "–" and (folder / f"{benchmark.name}.csv").is_file() else state
            summary = f"{benchmark.name}, long-tailed"
            found.append({"name": benchmark.mlt_name, "state": state, "folder": str(folder), "summary": summary})
    for special in SPECIAL:
        folder = data_root(root) / special.folder
        here = folder.is_dir() and (special.folder != mnist.FOLDER or mnist.find_digits(folder) is not None)
        state = "stand-in" if is_stand_in(folder) else "here" if here else "–"
        found.append({"name": special.name, "state": state, "folder": str(folder), "summary": special.summary})
    return found


def _checked(done: dict[str, Any], name: str, root: Root) -> dict[str, Any]:
    report = verify_data(name, root)
    return {**done, "complete": report["complete"], "problems": report["problems"]}


def _special(name: str) -> Special | None:
    return next((special for special in SPECIAL if name_key(special.name) == name_key(name)), None)


def _known(name: str) -> str:
    """The name, if it is that of a benchmark."""
    every = [row["name"] for row in list_data()]
    if name_key(name) in {name_key(known) for known in [*every, "TerraIncognita-MLT"]}:
        return name
    if name_key(name) in {name_key(known) for known in source_names()}:
        raise InputError(f"'{name}' comes with a package and needs no preparation: give its name as data.")
    raise unknown("benchmark", name, every)


def _proper(name: str) -> str:
    """The published spelling."""
    special = _special(name)
    if special is not None:
        return special.name
    benchmark = facts.get_benchmark(name)
    return benchmark.mlt_name or benchmark.name if facts.is_mlt(name) else benchmark.name
