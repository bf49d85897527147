"""The values that pass between the stages: a batch, the result of a step, and what is known of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rcalign.spec import DataSpec

__all__ = ["Batch", "DataSpec", "StepOutput"]


@dataclass(frozen=True)
class Batch:
    """Samples of all source domains, grouped by domain in ascending order.

    x: (N, ...) float. y: (N,) int64 class positions. domain: (N,) int64 positions in ``DataSpec.domains``.
    index: (N,) int64 rows of the data set (-1 where unknown). sizes: K numbers of rows, one for each domain.

    >>> batch = Batch.from_domains([(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([1]))])
    >>> batch.sizes, batch.domain.tolist(), [len(part.y) for part in batch.per_domain()]
    ((2, 1), [0, 0, 1], [2, 1])
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    index: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def from_domains(cls, parts: Sequence[tuple[Tensor, Tensor]], index: Tensor | None = None) -> Batch:
        """One batch from (x, y) of domain 0, 1, ..., K - 1."""
        sizes = tuple(len(y) for _, y in parts)
        y = torch.cat([y for _, y in parts])
        domain = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(sizes)).to(y.device)
        if index is None:
            index = torch.full_like(y, -1)
        return cls(torch.cat([x for x, _ in parts]), y, domain, index, sizes)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_domains(self) -> int:
        return len(self.sizes)

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Row-wise results of the whole batch, e.g. features (N, h), cut into one piece for each domain."""
        return torch.split(values, list(self.sizes))

    def per_domain(self) -> Iterator[Batch]:
        """The K single-domain batches, in order; each keeps its rows' domain positions."""
        for k in range(self.num_domains):
            yield self.select([k])

    def select(self, domains: Sequence[int]) -> Batch:
        """The rows of the given domains only (ascending). ``sizes`` keeps K entries, 0 for the others."""
        if len(domains) == self.num_domains:
            return self
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        chosen = sorted(domains)

        def rows(values: Tensor) -> Tensor:
            pieces = [values[starts[k] : starts[k + 1]] for k in chosen]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

        sizes = tuple(size if k in set(chosen) else 0 for k, size in enumerate(self.sizes))
        return Batch(rows(self.x), rows(self.y), rows(self.domain), rows(self.index), sizes)

    def pieces(self, count: int) -> Iterator[Batch]:
        """The batch cut into ``count`` batches, each with about as many rows of every domain.

        >>> batch = Batch.from_domains([(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))] * 2)
        >>> [part.sizes for part in batch.pieces(2)]
        [(2, 2), (2, 2)]
        """
        positions = [torch.tensor_split(rows, count) for rows in self.split(torch.arange(len(self)))]
        for part in zip(*positions, strict=True):
            rows = torch.cat(part).to(self.y.device)
            sizes = tuple(len(rows) for rows in part)
            yield Batch(self.x[rows], self.y[rows], self.domain[rows], self.index[rows], sizes)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(self.x.to(device), self.y.to(device), self.domain.to(device), self.index.to(device), self.sizes)


@dataclass(frozen=True)
class StepOutput:
    """What a loss returns: the scalar to descend, and numbers to log (0-d tensors or floats, detached)."""

    loss: Tensor
    logs: dict[str, Tensor | float] = field(default_factory=dict)
