"""What PCL and iDAG share: a small encoder between the featurizer and the head.

e = Linear(dropout(ReLU(BatchNorm(Linear(z))))), dropout 0.25. Its batch norm is trained, also where the backbone's is
frozen, so a batch needs two samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.spaces import At, Field

DROPOUT = 0.25


@dataclass(frozen=True, kw_only=True)
class EncodedHparams(BaseHparams):
    hidden: Annotated[int, Field("width of the encoder's hidden layer", minimum=1, presets={"arrays": At(64)})] = 512
    width: Annotated[int, Field("length of the encoded feature", minimum=1, presets={"arrays": At(32)})] = 512


class Encoded(Algorithm):
    Hparams = EncodedHparams
    trains_batch_norm = True
    head_bias = True

    def build(self) -> None:
        h = self.hparams
        self.encode_in = nn.Linear(self.features_dim, h.hidden)
        self.encode_norm = nn.BatchNorm1d(h.hidden)
        self.encode_out = nn.Linear(h.hidden, h.width)
        for layer in (self.encode_in, self.encode_out):  # as the public code starts them
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        self.features_dim = h.width
        self.head = nn.Linear(h.width, self.spec.num_classes, bias=self.head_bias)

    def features(self, x: Tensor) -> Tensor:
        """x (n, ...) -> encoded features (n, width)."""
        hidden = self.encode_norm(self.encode_in(super().features(x))).relu()
        return self.encode_out(self.dropped(hidden, DROPOUT) if self.training else hidden)
