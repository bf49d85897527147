"""Protocol wilds chooses by the validation domains aside, as WILDS does; the training domains' own are a rule too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcalign import api, selection
from rcalign.store.read_runs import read_runs


def test_the_official_choice_is_by_the_worst_validation_domain(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    domain = np.repeat(["a", "b", "far", "farther", "target"], 60)
    y = np.arange(300) % 2
    # what tells the classes apart in training is turned round in one of the validation domains
    signal = np.where(domain == "farther", -1, 1) * (y - 0.5)
    x = np.stack([3 * signal, 0.8 * (y - 0.5)], 1) + rng.normal(size=(300, 2))
    part = np.where(np.isin(domain, ["a", "b"]), np.where(np.arange(300) % 5 == 0, "val", "train"), "val")
    part = np.where(domain == "target", "test", part)
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain, split=part)
    out = tmp_path / "run"
    slowly = {"steps": 30, "evaluate_every": 2, "hparams": {"learning_rate": 2e-4, "batch_size": 8}}
    result = api.train(tmp_path / "rows.npz", "ERM", out=out, protocol="wilds", **slowly)

    (found,) = read_runs(out).runs
    values = [{name: row.accuracy[name]["val"] for name in ("a", "b", "far", "farther")} for row in found.records]
    worst = [min(value["far"], value["farther"]) for value in values]
    own = [(value["a"] + value["b"]) / 2 for value in values]
    assert [row.validation for row in found.records] == worst
    assert result["best_step"] == found.records[int(np.argmax(worst))].step and result["validation"] == max(worst)
    assert np.argmax(worst) != np.argmax(own), "else the two rules cannot be told apart here"
    chosen = {name: selection.get_rule(name, "wilds").choose(found, ()) for name in (None, "wilds", "training-domain")}
    assert chosen[None].record is chosen["wilds"].record is found.records[int(np.argmax(worst))]
    assert chosen["training-domain"].record is found.records[int(np.argmax(own))]
    assert chosen["training-domain"].score == pytest.approx(max(own))
