"""Training once more with validation rows: they are trained on, choose nothing any more, and figures stay honest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.checkpoints import load_weights
from rcalign.data import loading
from rcalign.data.splits import split
from rcalign.training import loop

OPTIONS: dict[str, Any] = {"steps": 30, "evaluate_every": 5}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(240) % 2, np.arange(240) // 2 % 3
    file = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(file, x=rng.normal(size=(240, 5)) + 0.7 * y[:, None], y=y, domain=domain)
    return file


@pytest.mark.parametrize("average", [None, "swa", "swad"])
def test_the_second_training_is_the_first_with_more_rows(rows: Path, tmp_path: Path, average: str | None) -> None:
    plain = api.train(rows, "ERM", ["2"], out=tmp_path / "plain", average=average, **OPTIONS)
    again = api.train(rows, "ERM", ["2"], out=tmp_path / "again", average=average, train_on_validation=True, **OPTIONS)
    assert (
        again["validation"] == plain["validation"]
        and again["calibration"]["temperature"] == plain["calibration"]["temperature"]
    )
    length = plain["best_step"] if average is None else plain["steps"]
    assert again["steps"] == length and f"trained again for {length} steps" in again["weights"]
    kept = [load_weights(tmp_path / name / "best.safetensors") for name in ("plain", "again")]
    assert any(not torch.equal(kept[0][key], kept[1][key]) for key in kept[0])
    # what is kept is what was measured, and one row says what may be chosen
    assert api.evaluate(tmp_path / "again")["accuracy"] == pytest.approx(again["accuracy"])
    records = [json.loads(line) for line in (tmp_path / "again" / "records.jsonl").read_text().splitlines()]
    assert [row["averaged"] for row in records].count(True) == 1
    assert records[-1]["validation"] == plain["validation"]
    notes = api.evaluate(tmp_path / "again")["notes"]
    assert any("also trained on the validation rows" in note for note in notes)


def test_validation_rows_are_drawn_and_left_out_of_evaluations_elsewhere(rows: Path, tmp_path: Path) -> None:
    seen: set[int] = set()
    from rcalign.data.batches import Batches

    drawn = Batches.iterate

    def watched(self: Batches, *arguments: Any, **options: Any) -> Any:
        for batch in drawn(self, *arguments, **options):
            seen.update(batch.index.tolist())
            yield batch

    dataset = loading.load(str(rows))
    splits = split(dataset, "lodo", ["2"], 0)
    validation = set(np.concatenate([splits.val["0"], splits.val["1"]]).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "iterate", watched)
        api.train(rows, "ERM", ["2"], out=tmp_path / "plain", **OPTIONS)
        assert not seen & validation
        api.train(rows, "ERM", ["2"], out=tmp_path / "again", train_on_validation=True, **OPTIONS)
    assert len(seen & validation) > len(validation) / 2
    assert not seen & set(splits.test["2"].tolist()), "a held-out domain is never trained on"
    for name, left in (("plain", len(validation)), ("again", 0)):
        found = api.evaluate(tmp_path / name, rows)["notes"]
        trained = 160 - left
        assert any(f"{trained} of 240 rows were part of the training" in note for note in found)


def test_a_kill_in_the_second_training_changes_nothing(rows: Path, tmp_path: Path) -> None:
    def train(out: str, **more: Any) -> dict[str, Any]:
        options = {**OPTIONS, "train_on_validation": True, "evaluate_every": 2, **more}
        return api.train(rows, "ERM++", ["2"], out=tmp_path / out, **options)

    straight = train("straight")
    saved, count = loop._save, 0
    for kill_at in (3, 17, 21):  # the run has 15 evaluations and the second training 15 more
        with pytest.MonkeyPatch.context() as patch:
            count = 0

            def stop(*arguments: Any, kill_at: int = kill_at) -> None:
                nonlocal count
                saved(*arguments)
                count += 1
                if count == kill_at:
                    raise KeyboardInterrupt

            patch.setattr(loop, "_save", stop)
            with pytest.raises(KeyboardInterrupt):
                train(f"killed-{kill_at}")
        resumed = train(f"killed-{kill_at}", resume=True)
        assert {**resumed, "seconds": 0, "folder": ""} == {**straight, "seconds": 0, "folder": ""}
        a, b = (load_weights(tmp_path / out / "best.safetensors") for out in ("straight", f"killed-{kill_at}"))
        assert all(torch.equal(a[key], b[key]) for key in a)
