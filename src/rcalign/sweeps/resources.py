"""What a run of a sweep may use, and how many run at once."""

from __future__ import annotations

from dataclasses import dataclass

from rcalign.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where and how much at once. address: of a Ray cluster (see ``address.py``), None for this machine. workers: at
    most so many runs at once, None for as many as fit. stalled_after: seconds without a heartbeat after which a run
    counts as hung."""

    address: str | None = None
    cpus_per_run: int = 1
    gpus_per_run: float = 0.0
    workers: int | None = None
    stalled_after: float = 7200.0

    def __post_init__(self) -> None:
        if self.cpus_per_run < 1:
            raise InputError(f"`cpus_per_run` is {self.cpus_per_run}, but must be at least 1.")
        if self.gpus_per_run < 0:
            raise InputError(f"`gpus_per_run` is {self.gpus_per_run}, but must be at least 0.")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"`workers` is {self.workers}, but must be at least 1.")
        if self.stalled_after <= 0:
            raise InputError(f"`stalled_after` is {self.stalled_after}, but must be more than 0 seconds.")
