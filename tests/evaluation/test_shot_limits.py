"""The limits of many and few shots are those of the data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rcalign import api
from rcalign.data.sources.arrays import from_arrays


def test_limits_of_the_data_set_are_used(tmp_path: Path) -> None:
    """Twelve training rows of each pair: few by the usual limits, many or medium by the data set's own."""
    n = 72
    split = np.array(["train", "val", "test"]).repeat(24)
    rng = np.random.default_rng(0)
    data = from_arrays(
        {"x": rng.normal(size=(n, 4)), "y": np.arange(n) % 2, "domain": np.zeros(n, int), "split": split}
    )
    groups = {}
    for name, limits in (("few", (100, 20)), ("medium", (60, 10)), ("many", (11, 2))):
        run = tmp_path / name
        result = api.train(replace(data, shots=limits), "ERM", protocol="mdlt", steps=1, out=run)
        again = api.evaluate(run, replace(data, shots=limits).select(np.arange(48, 72)))
        assert result["shots"].keys() == again["shots"].keys()
        assert {shot for shot, value in again["shots"].items() if value is not None} == {name}
        groups[name] = {shot for shot, value in result["shots"].items() if value is not None}
    assert groups == {name: {name} for name in groups}
