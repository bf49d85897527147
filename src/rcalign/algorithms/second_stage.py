"""What methods of two runs share: the second run starts from the features of the first.

``traits.stage_one`` names the algorithm of the first run. Its featurizer is taken over; the head is the new random one
that this run's network came with. A step without a first run is an error, because it would train something else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm
from rcalign.errors import InputError
from rcalign.types import Batch

FEATURIZER = "featurizer."


class SecondStage(Algorithm):
    stage_one_loaded: Tensor  # () bool: part of the state, so that a resumed run knows

    def build(self) -> None:
        self.register_buffer("stage_one_loaded", torch.zeros((), dtype=torch.bool))

    def start_from(self, stage_one: Mapping[str, Tensor]) -> None:
        """Takes the featurizer of the first run's ``state_dict``, and nothing else."""
        given = {name.removeprefix(FEATURIZER): t for name, t in stage_one.items() if name.startswith(FEATURIZER)}
        wanted = self.featurizer.state_dict()
        wrong = sorted(
            name
            for name in wanted.keys() | given.keys()
            if name not in wanted or name not in given or given[name].shape != wanted[name].shape
        )
        if wrong:
            raise InputError(
                f"the weights of stage one ({self.traits.stage_one}) do not fit the backbone of {self.name} (first "
                f"difference: '{wrong[0]}'): run both stages with the same backbone."
            )
        self.featurizer.load_state_dict(given)
        self.stage_one_loaded.fill_(True)

    def check_batch(self, batch: Batch) -> None:
        if not self.stage_one_loaded:
            raise InputError(
                f"{self.name} starts from the features of a finished {self.traits.stage_one} run, but got none: run "
                f"{self.traits.stage_one} first and pass its weights to start_from (the train command does both)."
            )
        super().check_batch(batch)
