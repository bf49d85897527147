"""An encoding of columns as a module, for training and for exports. Its formulas stand in ``columns``."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from rcalign.data.columns import CUT, YEAR, Encoding, Raw, Table


class ColumnEncoder(nn.Module):
    """An encoding as a module: numbers (n, c) float64 as ``Encoding.read`` gives them -> inputs (n, f) float32."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.inputs = encoding.inputs

    def forward(self, raw: Tensor) -> Tensor:
        pieces: list[Tensor] = []
        at = 0
        for item in self.inputs:
            values = raw[:, at : at + item.column.width]
            at += item.column.width
            gap = torch.isnan(values)
            if item.column.kind == "text":
                pieces.append(torch.where(gap, torch.zeros_like(values), values))
            elif item.column.kind == "category":
                codes = torch.arange(len(item.column.values), dtype=raw.dtype, device=raw.device)
                pieces.append((values == codes).to(raw.dtype))
            else:
                filled = torch.where(gap, torch.full_like(values, item.center), values)
                z = (filled - item.center) / item.scale
                pieces.append(z / torch.sqrt(1 + (z / CUT) ** 2))
                if item.seasons:
                    angle = filled * (2 * math.pi / YEAR)
                    pieces += [torch.sin(angle), torch.cos(angle)]
            if item.gaps and item.column.kind != "text":
                pieces.append(gap.to(raw.dtype))
        return torch.cat(pieces, dim=1).float()


@torch.no_grad()
def encode_columns(encoding: Encoding, table: Table | Raw, where: str = "the table") -> np.ndarray:
    """Network inputs (n, f) float32 of raw columns."""
    return ColumnEncoder(encoding)(torch.from_numpy(encoding.read(table, where))).numpy()
