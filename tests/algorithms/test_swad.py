"""SWAD: its hyperparameters reach the averaging."""

from __future__ import annotations

from rcalign import registry
from rcalign.training.averaging import SWADAveraging, make_averaging
from toy import make


def test_hyperparameters_are_the_averaging_s_options() -> None:
    model = make("SWAD", begin_patience=2, end_patience=4, tolerance=1.2)
    averaging = make_averaging(model.traits.averages, **model.averaging_options())
    assert isinstance(averaging, SWADAveraging)
    assert (averaging.begin_patience, averaging.end_patience, averaging.tolerance) == (2, 4, 1.2)


def test_every_averaged_algorithm_builds_its_averaging() -> None:
    for name in registry.names(parts=True):
        kind = registry.get(name).traits.averages
        if kind is not None:
            length = {"steps": 10} if kind == "beta" else {}  # the one that must know how long the run will be
            make_averaging(kind, **length, **make(name).averaging_options())
