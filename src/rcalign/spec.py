"""What is known of the training data before the first batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What an algorithm may know about the training data before it sees a batch.

    classes: C names. domains: K names of the *source* domains, in the order of ``Batch.domain``.
    counts: K rows of C numbers, the training samples of each (domain, class) pair.
    input_shape: the shape of one sample as the network reads it, e.g. (3, 72, 72) or (1280,).
    targets: names of the domains of which unlabelled rows are in every batch; none but in unsupervised adaptation.

    >>> spec = DataSpec(("cat", "dog"), ("photo", "sketch"), ((5, 5), (9, 0)), (3, 72, 72))
    >>> spec.num_classes, spec.num_domains, spec.count_matrix.sum().item()
    (2, 2, 19)
    """

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    input_shape: tuple[int, ...]
    targets: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def num_domains(self) -> int:
        return len(self.domains)

    @property
    def count_matrix(self) -> Tensor:
        """Training rows of each (domain, class) pair: (K, C) int64."""
        import torch  # here, since reading a run folder should not take the seconds of importing it

        return torch.tensor(self.counts, dtype=torch.int64)
