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
    unlabelled: (U, ...) float, rows of the domains in ``DataSpec.targets``, grouped in their order; None where there
    are none. unlabelled_sizes: numbers of those rows, one for each target.

    >>> batch = Batch.from_domains([(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([1]))])
    >>> batch.sizes, batch.domain.tolist(), [len(part.y) for part in batch.per_domain()]
    ((2, 1), [0, 0, 1], [2, 1])
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    index: Tensor
    sizes: tuple[int, ...]
    unlabelled: Tensor | None = None
    unlabelled_sizes: tuple[int, ...] = ()

    @classmethod
    def from_domains(
        cls,
        parts: Sequence[tuple[Tensor, Tensor]],
        index: Tensor | None = None,
        unlabelled: Sequence[Tensor] = (),
    ) -> Batch:
        """One batch from (x, y) of domain 0, 1, ..., K - 1, and from x of every unlabelled domain."""
        sizes = tuple(len(y) for _, y in parts)
        y = torch.cat([y for _, y in parts])
        domain = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(sizes)).to(y.device)
        if index is None:
            index = torch.full_like(y, -1)
        more = (torch.cat(list(unlabelled)), tuple(map(len, unlabelled))) if unlabelled else (None, ())
        return cls(torch.cat([x for x, _ in parts]), y, domain, index, sizes, *more)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_domains(self) -> int:
        return len(self.sizes)

    @property
    def inputs(self) -> Tensor:
        """x, and below it the unlabelled rows: (N + U, ...)."""
        return self.x if self.unlabelled is None else torch.cat([self.x, self.unlabelled])

    @property
    def input_domains(self) -> Tensor:
        """The domain of each row of ``inputs``, the first unlabelled domain being number K: (N + U,).

        >>> rows = torch.zeros(2, 1)
        >>> Batch.from_domains([(rows, torch.tensor([0, 1]))] * 2, unlabelled=[rows]).input_domains.tolist()
        [0, 0, 1, 1, 2, 2]
        """
        targets = torch.arange(len(self.unlabelled_sizes)) + self.num_domains
        rows = torch.repeat_interleave(targets, torch.tensor(self.unlabelled_sizes, dtype=torch.int64))
        return torch.cat([self.domain, rows.to(self.domain.device)])

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Row-wise results of the whole batch, e.g. features (N, h), cut into one piece for each domain."""
        return torch.split(values, list(self.sizes))

    def per_domain(self) -> Iterator[Batch]:
        """The K single-domain batches, in order; each keeps its rows' domain positions."""
        for k in range(self.num_domains):
            yield self.select([k])

    def select(self, domains: Sequence[int]) -> Batch:
        """The labelled rows of the given domains only (ascending). ``sizes`` keeps K entries, 0 for the others."""
        if len(domains) == self.num_domains:
            return self
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        chosen = sorted(domains)

        def rows(values: Tensor) -> Tensor:
            if chosen[-1] - chosen[0] == len(chosen) - 1:  # neighbours: no copy
                return values[starts[chosen[0]] : starts[chosen[-1] + 1]]
            pieces = [values[starts[k] : starts[k + 1]] for k in chosen]
            return torch.cat(pieces)

        sizes = tuple(size if k in set(chosen) else 0 for k, size in enumerate(self.sizes))
        values = (rows(self.x), rows(self.y), rows(self.domain), rows(self.index))
        return Batch(*values, sizes, self.unlabelled, self.unlabelled_sizes)

    def pieces(self, count: int) -> Iterator[Batch]:
        """The labelled rows cut into ``count`` batches, each with about as many rows of every domain.

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
        unlabelled = None if self.unlabelled is None else self.unlabelled.to(device)
        values = (self.x.to(device), self.y.to(device), self.domain.to(device), self.index.to(device))
        return Batch(*values, self.sizes, unlabelled, self.unlabelled_sizes)


@dataclass(frozen=True)
class StepOutput:
    """What a loss returns: the scalar to descend, and numbers to log (0-d tensors or floats, detached)."""

    loss: Tensor
    logs: dict[str, Tensor | float] = field(default_factory=dict)
