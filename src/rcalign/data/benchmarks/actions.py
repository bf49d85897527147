"""What a user does with a benchmark, by name: prepare, verify, fetch, sample, list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rcalign.data.benchmarks import contents, facts, fetch, mnist, sample
from rcalign.data.benchmarks import prepare as preparing
from rcalign.data.benchmarks.place import data_root, is_stand_in
from rcalign.data.sources.named import names
from rcalign.errors import InputError, unknown

Root = str | os.PathLike[str] | None


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
    """``prepare.prepare`` or ``mnist.prepare``, and then whether the data set is whole."""
    if _is_mnist(name):
        return _checked(mnist.prepare(sources, root, replace=replace), name, root)
    benchmark = facts.get(_known(name))
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
    """``contents.verify`` or ``mnist.verify``."""
    if _is_mnist(name):
        return mnist.verify(_proper(name), root)
    benchmark = facts.get(_known(name))
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
    """``fetch.fetch`` or ``fetch.fetch_mnist``, and then whether the data set is whole."""
    if _is_mnist(name):
        return _checked(fetch.fetch_mnist(root, mirror=mirror, progress=progress), name, root)
    benchmark = facts.get(_known(name))
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
    """``sample.sample`` or ``sample.sample_mnist``; ``use`` in the answer is what to give as data."""
    if _is_mnist(name):
        done = sample.sample_mnist(_proper(name), out, each=each, seed=seed)
    else:
        benchmark = facts.get(_known(name))
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
    folder = data_root(root) / mnist.FOLDER
    here = mnist.find(folder) is not None
    state = "stand-in" if is_stand_in(folder) else "here" if here else "–"
    for name, summary in (("ColoredMNIST", "two classes of digits in two colours"), ("RotatedMNIST", "turned digits")):
        found.append({"name": name, "state": state, "folder": str(folder), "summary": summary})
    return found


def _checked(done: dict[str, Any], name: str, root: Root) -> dict[str, Any]:
    report = verify_data(name, root)
    return {**done, "complete": report["complete"], "problems": report["problems"]}


def _is_mnist(name: str) -> bool:
    return facts.key(name) in {facts.key(known) for known in mnist.NAMES}


def _known(name: str) -> str:
    """The name, if it is that of a benchmark."""
    every = [row["name"] for row in list_data()]
    if facts.key(name) in {facts.key(known) for known in [*every, "TerraIncognita-MLT"]}:
        return name
    if facts.key(name) in {facts.key(known) for known in names()}:
        raise InputError(f"'{name}' comes with a package and needs no preparation: give its name as data.")
    raise unknown("benchmark", name, every)


def _proper(name: str) -> str:
    """The published spelling."""
    if _is_mnist(name):
        return next(known for known in mnist.NAMES if facts.key(known) == facts.key(name))
    benchmark = facts.get(name)
    return benchmark.mlt_name or benchmark.name if facts.is_mlt(name) else benchmark.name
