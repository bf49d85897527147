"""SWAD: ERM whose weights are averaged over a valley of the validation loss.

Training is ERM's, (1/N) sum_i CE(g(f(x_i)), y_i); what is evaluated and kept is the mean of all iterates between the
beginning and the end of the valley, found by ``training.averaging.SWADAveraging`` with the three
hyperparameters below. The same averaging goes around any algorithm (``--average swad``).

Paper: Cha et al., SWAD: Domain Generalization by Seeking Flat Minima (2021), Algorithm 1. Departures from the public
code: every iterate weighs the same (there every segment between evaluations), and nothing before the valley is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rcalign.algorithms.erm import ERM
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field


@register(
    "SWAD",
    summary="ERM with its weights averaged over a valley of the validation loss",
    paper="Cha et al., SWAD: Domain Generalization by Seeking Flat Minima (2021)",
    family="flat minima, averaging",
    traits=Traits(averages="swad", erm_when=(), row_losses=True),
)
class SWAD(ERM):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(ERM.Hparams):
        begin_patience: Annotated[
            int, Field("evaluations without a lower loss that begin the valley (Ns)", minimum=1)
        ] = 3
        end_patience: Annotated[int, Field("evaluations above the limit that end the valley (Ne)", minimum=1)] = 6
        tolerance: Annotated[
            float, Field("the limit over the mean loss at the beginning (r)", Choice(1.2, 1.3), minimum=1)
        ] = 1.3

    def averaging_options(self) -> dict[str, Any]:
        """Options of ``training.averaging.make_averaging``."""
        h = self.hparams
        return {"begin_patience": h.begin_patience, "end_patience": h.end_patience, "tolerance": h.tolerance}
