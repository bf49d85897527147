"""From the web into the data root: the published archives first, then copies of them, then the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcalign.data.benchmarks import contents, hearts, mdlt, mnist, parquet
from rcalign.data.benchmarks.archives import BrokenArchive
from rcalign.data.benchmarks.download import NoSource, Patience, download
from rcalign.data.benchmarks.facts import MNIST_FILES, Benchmark, Offer, Remote
from rcalign.data.benchmarks.place import data_root, disk_errors, is_stand_in, locked
from rcalign.data.benchmarks.prepare import prepare
from rcalign.errors import InputError
from rcalign.files import write_whole

DOWNLOADS = "downloads"
MNIST_OFFER = Offer(
    tuple(
        Remote(
            name,
            (
                f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}",
                f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}",
                f"http://yann.lecun.com/exdb/mnist/{name}",
            ),
            f"md5:{md5}",
        )
        for name, md5 in MNIST_FILES.items()
    )
)
MNIST_PAGE = "http://yann.lecun.com/exdb/mnist/"


def fetch(
    benchmark: Benchmark,
    root: str | os.PathLike[str] | None = None,
    *,
    long_tailed: bool = False,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: bool = False,
    patience: Patience = Patience(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """Downloads and prepares a data set; returns what was done. mirror: an address that has the files by their names,
    asked first. long_tailed: also the published split file; without it, the rule makes the split."""
    place = data_root(root) / benchmark.folder
    if is_stand_in(place):
        raise InputError(f"'{place}' is a drawn stand-in: remove it, or use another folder with `root`.")
    done: dict[str, Any] = {"name": benchmark.name, "folder": str(place), "images": {}, "notes": []}
    with locked(place.with_name(f".{place.name}.fetch.lock"), f"Another process fetches {benchmark.name}: waiting."):
        if not place.is_dir() or contents.read_contents(benchmark, root).missing:
            done = _first_that_works(benchmark, data_root(root), mirror, keep_archives, progress, patience)
        else:
            done["notes"].append("its images are in place already")
        if long_tailed and benchmark.split_file is not None and not (place / f"{benchmark.name}.csv").is_file():
            done["notes"] += _fetch_split(benchmark, benchmark.split_file, data_root(root), mirror, progress, patience)
    return done


def _fetch_split(
    benchmark: Benchmark, remote: Remote, root: Path, mirror: str | None, progress: bool, patience: Patience
) -> list[str]:
    """The published split file into the folder of the images. -> notes: it can be done without."""
    place = root / benchmark.folder / f"{benchmark.name}.csv"
    folder = root / DOWNLOADS / benchmark.folder
    try:
        file = download(_mirrored(remote, mirror), folder, progress=progress, patience=patience)
    except NoSource as failed:
        url, why = next(iter(failed.reasons.items()))
        return [
            f"the split file {failed.name} could not be fetched ({url}: {why}): the published rule will make the "
            f"split; for the published rows, put the file at '{place}'"
        ]
    lost = mdlt.read_split_file(benchmark, file).keys() - set(contents.read_contents(benchmark, root).names)
    if lost:  # as in a copy with other file names: of no use, and in the way
        return [
            f"{len(lost):,} images of the published split file are not here under their names, such as '{min(lost)}': "
            "the published rule will make the split"
        ]
    with disk_errors(place.parent):
        write_whole(place, file.read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    return []


def fetch_mnist(
    root: str | os.PathLike[str] | None = None,
    *,
    mirror: str | None = None,
    progress: bool = False,
    patience: Patience = Patience(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """The four files of MNIST."""
    place = data_root(root) / mnist.FOLDER
    folder = data_root(root) / DOWNLOADS / mnist.FOLDER
    with locked(place.with_name(f".{place.name}.fetch.lock"), "Another process fetches MNIST: waiting."):
        if mnist.find_digits(place) is not None:
            return {"name": "MNIST", "folder": str(place), "images": {}, "notes": ["it is in place already"]}
        try:
            files = [
                download(_mirrored(remote, mirror), folder, progress=progress, patience=patience)
                for remote in MNIST_OFFER.files
            ]
        except NoSource as failed:
            raise InputError(
                _by_hand("RotatedMNIST", [_told(failed)], MNIST_PAGE, list(MNIST_FILES), "FOLDER")
            ) from None
        done = mnist.prepare(files, root)
        shutil.rmtree(folder, ignore_errors=True)
    return done


def fetch_hearts(
    root: str | os.PathLike[str] | None = None,
    *,
    mirror: str | None = None,
    progress: bool = False,
    patience: Patience = Patience(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """The archive of the four hospitals' tables."""
    place = data_root(root) / hearts.FOLDER
    folder = data_root(root) / DOWNLOADS / hearts.FOLDER
    with locked(place.with_name(f".{place.name}.fetch.lock"), "Another process fetches hearts: waiting."):
        if place.exists():
            return {"name": hearts.NAME, "folder": str(place), "images": {}, "notes": ["it is in place already"]}
        try:
            files = [
                download(_mirrored(remote, mirror), folder, progress=progress, patience=patience)
                for remote in hearts.OFFER.files
            ]
        except NoSource as failed:
            names = [remote.name for remote in hearts.OFFER.files]
            raise InputError(_by_hand(hearts.NAME, [_told(failed)], hearts.PAGE, names, "FILE")) from None
        done = hearts.prepare(files, root)
        shutil.rmtree(folder, ignore_errors=True)
    return done


def _first_that_works(
    benchmark: Benchmark, root: Path, mirror: str | None, keep_archives: bool, progress: bool, patience: Patience
) -> dict[str, Any]:
    folder = root / DOWNLOADS / benchmark.folder
    if is_stand_in(root / benchmark.folder):
        raise InputError(
            f"'{root / benchmark.folder}' is a drawn stand-in: remove it, or use another folder with `root`."
        )
    if not benchmark.offers:
        raise InputError(
            f"{benchmark.name} cannot be fetched: get its files from {benchmark.page}, then run 'rcalign data prepare "
            f"{benchmark.name} --from PATH' (with --keep LIST for each list, where it is part of a larger set)."
        )
    failures: list[str] = []
    for offer in benchmark.offers:
        try:
            if offer.hub is not None:
                done = prepare(benchmark, [_from_hub(offer.hub, folder)], root, progress=progress)
            else:
                done = _from_files(benchmark, offer, folder, root, mirror, progress, patience)
        except NoSource as failed:
            failures.append(_told(failed))
        except BrokenArchive as broken:
            failures.append(str(broken))
        else:
            if not keep_archives:
                shutil.rmtree(folder, ignore_errors=True)
            return done
    names = [remote.name for remote in benchmark.offers[0].files if remote.role == "data"]
    lists = {"drop": "--drop LIST", "keep": "--keep LIST for each list"}
    more = sorted({lists[remote.role] for remote in benchmark.offers[0].files if remote.role in lists})
    raise InputError(_by_hand(benchmark.name, failures, benchmark.page, names, "FILE", more))


def _from_files(
    benchmark: Benchmark,
    offer: Offer,
    folder: Path,
    root: Path,
    mirror: str | None,
    progress: bool,
    patience: Patience,
) -> dict[str, Any]:
    # lists first: they are small, and without them the large files would be of no use
    remotes = sorted(offer.files, key=lambda remote: remote.role == "data")
    files = {
        remote: download(_mirrored(remote, mirror), folder, progress=progress, patience=patience) for remote in remotes
    }

    def of(role: str) -> list[Path]:
        return [file for remote, file in files.items() if remote.role == role]

    drop = of("drop")
    try:
        return prepare(benchmark, of("data"), root, drop=drop[0] if drop else None, keep=of("keep"), progress=progress)
    except BrokenArchive:
        for remote, file in files.items():
            if remote.checksum is None:  # whichever it was, it must come anew
                file.unlink(missing_ok=True)
        raise


def _from_hub(name: str, folder: Path) -> Path:
    """The parquet files of a data set on the hub, by the hub's own client, which resumes and checks by itself."""
    where = f"the Hugging Face hub ({name})"
    for module, install in (("huggingface_hub", "pip install huggingface_hub"), ("pyarrow", parquet.INSTALL)):
        if importlib.util.find_spec(module) is None:
            raise NoSource(name, {where: f"it needs a package that is not installed: {install}"})
    import huggingface_hub

    target = folder / name.replace("/", "--")
    try:
        huggingface_hub.snapshot_download(
            name,
            repo_type="dataset",
            allow_patterns=["*.parquet"],
            local_dir=target,
            token=False,  # these are public; nobody's key is needed
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:  # the client raises many kinds; all of them mean that this source does not work
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise NoSource(name, {where: first}) from None
    if not parquet.files_in(target):
        raise NoSource(name, {where: "it has no parquet files"})
    return target


def _mirrored(remote: Remote, mirror: str | None) -> Remote:
    """The same file with the mirror's address first."""
    if mirror is None:
        return remote
    if not mirror.startswith(("http://", "https://")):
        raise InputError(f"the mirror '{mirror}' is no address: expected http://... or https://...")
    return replace(remote, urls=(f"{mirror.rstrip('/')}/{remote.name}", *remote.urls))


def _told(failed: NoSource) -> str:
    return "\n".join([f"  {failed.name}:", *(f"    {url}: {why}" for url, why in failed.reasons.items())])


def _by_hand(
    name: str, failures: Sequence[str], page: str, files: Sequence[str], what: str, more: Sequence[str] = ()
) -> str:
    """What failed, and what a person can do instead."""
    several = " (--from for each file)" if len(files) > 1 and what == "FILE" else ""
    command = " ".join([f"rcalign data prepare {name} --from {what}", *more])
    return "\n".join(
        [
            f"{name} could not be fetched, every source failed:",
            *failures,
            f"By hand: get {', '.join(files)} from {page} or from a colleague, then run '{command}'{several}.",
            "What was downloaded so far is kept: the same command goes on with it.",
        ]
    )
