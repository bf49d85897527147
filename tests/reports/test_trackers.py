"""What is written for other tools, read back with those tools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rcalign import api
from rcalign.errors import InputError
from rcalign.store.read_runs import read_runs


@pytest.fixture
def folder(long_tailed_sweep: Path) -> Path:
    return long_tailed_sweep


def test_tensorboard_reads_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = read_runs(folder).runs
    assert api.report(folder, format="tensorboard", out=tmp_path / "tb").startswith(f"{len(runs)} runs written")
    for run in runs:
        events = EventAccumulator(str(tmp_path / "tb" / f"rows-{run.algorithm}-trial{run.trial}-draw{run.draw}"))
        events.Reload()
        for tag in {tag for record in run.records for tag in record.scalars()}:
            found = [(event.step, event.value) for event in events.Scalars(tag)]
            values = [(record.step, record.scalars()[tag]) for record in run.records if tag in record.scalars()]
            expected = [(step, pytest.approx(value, rel=1e-6)) for step, value in values]
            assert found == expected
        assert f"hparams/learning_rate: {run.hparams['learning_rate']}" in str(events.Tensors("run/text_summary"))


def test_mlflow_reads_the_same_numbers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is an extra and not installed")
    api.report(folder, format="mlflow", out=tmp_path / "store")
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    stored = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    runs = read_runs(folder).runs
    assert len(stored) == len(runs)
    assert sum(run.data.tags["chosen"] == "yes" for run in stored.values()) == 2  # one for each algorithm
    run = runs[0]
    found = stored[f"rows-{run.algorithm}-trial{run.trial}-draw{run.draw}"]
    assert found.info.status == "FINISHED"
    assert found.data.params["learning_rate"] == str(run.hparams["learning_rate"])
    history = client.get_metric_history(found.info.run_id, "validation")
    assert [(metric.step, metric.value) for metric in history] == [(r.step, r.validation) for r in run.records]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_an_export_never_mixes_with_another(folder: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is an extra and not installed")
    (tmp_path / "old").write_text("")
    with pytest.raises(InputError, match="is not an empty folder"):
        api.report(folder, format=name, out=tmp_path)
