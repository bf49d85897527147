"""What this machine offers: versions, devices, folders and disk, and what is missing with the command that installs it.

Versions are read from the metadata of the installed packages. torch is imported only where there is a GPU, to see
whether it can use it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from rcalign import __version__
from rcalign.errors import InputError
from rcalign.store import locks
from rcalign.store.places import default_cache_root, default_data_root

NOT_FOR_USERS = ("all", "dev", "docs")  # extras that make no feature work
LITTLE_DISK = 2**30  # bytes: below this a training will soon find no room
LITTLE_SHARED_MEMORY = 100 * 2**20  # bytes: what a sweep asks Ray to reserve
GPU_WITHIN = 10.0  # seconds for the driver's own tool to answer


def check_environment() -> dict[str, Any]:
    """Versions, devices and folders, and the ``problems`` that stand in the way of training.

    ``packages``: those that rcalign needs. ``extras``: optional ones; those that are missing have a command in
    ``install`` and are no problem. A problem has ``what`` and ``fix``, a command or an advice.

    >>> found = check_environment()
    >>> found["rcalign"] == __version__, {"what", "fix"} >= {key for problem in found["problems"] for key in problem}
    (True, True)
    """
    packages, extras = _packages()
    devices = _devices()
    places = [
        _place("cache", default_cache_root(), "RCALIGN_CACHE"),
        _place("data", default_data_root(), "RCALIGN_DATA"),
        _place("models of the Hugging Face hub", _hub_cache(), "HF_HOME"),
        _place("this folder", Path.cwd(), None),
    ]
    ray = _ray()
    found = {
        "rcalign": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "program": sys.executable,
        "cores": _cores(),
        "memory_bytes": _memory(),
        "packages": packages,
        "extras": extras,
        "devices": devices,
        "places": places,
        "ray": ray,
    }
    return {**found, "problems": _problems(found)}


def _packages() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The packages that rcalign asks for: those always needed, and those of its extras."""
    try:
        wanted = [Requirement(text) for text in metadata.requires("rcalign") or ()]
        names = metadata.metadata("rcalign").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return [], []
    needed = [_package(one) for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    extras = []
    for extra in names:
        own = [one for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})]
        own = [one for one in own if not one.marker or not one.marker.evaluate({"extra": ""})]
        if extra in NOT_FOR_USERS or not own:
            continue
        rows = [_package(one) for one in own]
        complete = all(row["fits"] for row in rows)
        install = None if complete else f"pip install 'rcalign[{extra}]'"
        extras.append({"extra": extra, "packages": rows, "complete": complete, "install": install})
    return needed, extras


def _package(wanted: Requirement) -> dict[str, Any]:
    try:
        version: str | None = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        version = None
    fits = version is not None and wanted.specifier.contains(version, prereleases=True)
    return {"name": wanted.name, "wanted": str(wanted.specifier), "found": version, "fits": fits}


def _devices() -> dict[str, Any]:
    """``gpus``: what the driver sees; ``used``: what ``--device auto`` takes; ``problem``: why torch can use no GPU."""
    gpus = _gpus()
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    found: dict[str, Any] = {"gpus": gpus, "used": "mps" if apple else "cpu", "problem": None}
    if not gpus or not _is_installed("torch"):
        return found
    import torch

    if torch.cuda.is_available():
        return {**found, "used": "cuda", "cuda": torch.version.cuda}
    built = "was built without CUDA" if torch.version.cuda is None else f"was built for CUDA {torch.version.cuda}"
    return {**found, "problem": f"torch {torch.__version__} {built} and cannot use the GPU"}


def _gpus() -> list[str]:
    """Name, memory and driver of each GPU of NVIDIA's, as its driver says."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(query, capture_output=True, text=True, timeout=GPU_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in ended.stdout.splitlines() if line.strip()] if ended.returncode == 0 else []


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _place(what: str, path: Path, variable: str | None) -> dict[str, Any]:
    """A folder that need not exist yet: whether it can be written, and how much room its disk has."""
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {
        "what": what,
        "path": str(path),
        "variable": variable,
        "exists": path.is_dir(),
        "writable": writable,
        "file_locks": _knows_locks(path) if writable and path.is_dir() else None,
        "free_bytes": shutil.disk_usage(nearest).free,
    }


def _knows_locks(folder: Path) -> bool | None:
    file = folder / f".doctor-{os.getpid()}.lock"
    try:
        lock = locks.acquire(file)
    except InputError:
        return False
    except OSError:  # a full disk, say: which is said elsewhere
        return None
    if lock is not None:
        lock.release()
    file.unlink(missing_ok=True)
    return True


def _hub_cache() -> Path:
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _ray() -> dict[str, Any]:
    shared = Path("/dev/shm")
    return {
        "version": metadata.version("ray") if _is_installed("ray") else None,
        "address": os.environ.get("RAY_ADDRESS"),
        "shared_memory_bytes": shutil.disk_usage(shared).free if shared.is_dir() else None,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _problems(found: dict[str, Any]) -> list[dict[str, str]]:
    """What stands in the way of training, and how to fix it."""
    problems = []
    if not found["packages"]:
        problems.append({"what": "rcalign is not installed as a package", "fix": "pip install rcalign"})
    for package in found["packages"]:
        if not package["fits"]:
            have = "is not installed" if package["found"] is None else f"is version {package['found']}"
            wanted = package["name"] + package["wanted"]
            problems.append({"what": f"{package['name']} {have}", "fix": f"pip install '{wanted}'"})
    if found["devices"]["problem"] is not None:
        problems.append(
            {"what": found["devices"]["problem"], "fix": "install the build of torch for this driver, or --device cpu"}
        )
    for place in found["places"]:
        set_another = f"set {place['variable']} to another folder" if place["variable"] else "work in another folder"
        if not place["writable"]:
            problems.append({"what": f"'{place['path']}' ({place['what']}) cannot be written", "fix": set_another})
        elif place["file_locks"] is False:
            problems.append({"what": f"'{place['path']}' ({place['what']}) has no file locks", "fix": set_another})
        if place["free_bytes"] < LITTLE_DISK:
            left = f"{place['free_bytes'] / 2**20:,.0f} MiB"
            what = f"only {left} are free on the disk of '{place['path']}' ({place['what']})"
            problems.append({"what": what, "fix": f"free some, or {set_another}"})
    shared = found["ray"]["shared_memory_bytes"]
    if shared is not None and shared < LITTLE_SHARED_MEMORY:
        what = f"/dev/shm has {shared / 2**20:,.0f} MiB free, but sweeps reserve {LITTLE_SHARED_MEMORY / 2**20:.0f}"
        problems.append({"what": what, "fix": "give the container more shared memory (docker run --shm-size 1g)"})
    return problems
