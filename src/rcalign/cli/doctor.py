"""``rcalign doctor``."""

from __future__ import annotations

import json
from typing import Any

import typer

from rcalign.cli.shared import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, folders and disk, and what is missing with the command that installs it.

    Ends with code 1 if something stands in the way of training.
    """
    from rcalign.environment import check_environment

    found = check_environment()
    print(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    if found["problems"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> list[str]:
    memory = "" if found["memory_bytes"] is None else f", {_size(found['memory_bytes'])} of memory"
    cores = f"{found['cores']} core{'s' if found['cores'] > 1 else ''}"
    devices = found["devices"]
    gpus = "; ".join(devices["gpus"]) or "no GPU found"
    lines = [
        f"rcalign {found['rcalign']}, Python {found['python']} ({found['program']})",
        f"{found['platform']}, {cores}{memory}",
        f"Devices: {gpus}; --device auto is {devices['used']}",
        f"Ray: {found['ray']['version'] or 'not installed'}, " + _ray_words(found["ray"]),
        "",
        "Packages: " + ", ".join(f"{one['name']} {one['found'] or '(missing)'}" for one in found["packages"]),
        "",
    ]
    for place in found["places"]:
        state = "" if place["exists"] else ", not there yet"
        setting = f" (change it with {place['variable']})" if place["variable"] else ""
        what = place["what"][0].upper() + place["what"][1:]
        lines.append(f"{what}: {place['path']}{state}{setting}, {_size(place['free_bytes'])} free")
    lines.append("")
    for extra in found["extras"]:
        have = ", ".join(f"{one['name']} {_version(one)}" for one in extra["packages"])
        lines.append(f"Optional, {extra['extra']}: {have}")
        if extra["install"]:
            lines.append(f"  install: {extra['install']}")
    lines.append("")
    for problem in found["problems"]:
        lines.append(f"Problem: {problem['what']}\n  fix: {problem['fix']}")
    if not found["problems"]:
        lines.append("Nothing stands in the way of training.")
    return lines


def _ray_words(ray: dict[str, Any]) -> str:
    where = f"RAY_ADDRESS is {ray['address']}" if ray["address"] else "no RAY_ADDRESS: sweeps start it on this machine"
    shared = ray["shared_memory_bytes"]
    return where if shared is None else f"{where}, {_size(shared)} of shared memory"


def _version(package: dict[str, Any]) -> str:
    if package["found"] is None:
        return "(missing)"
    return package["found"] if package["fits"] else f"{package['found']} (wanted {package['wanted']})"


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"
