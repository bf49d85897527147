"""One table of metrics: what is registered appears wherever metrics are shown, and users are told of what they get."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference
from typer.testing import CliRunner

from rcalign import api
from rcalign.cli import app
from rcalign.errors import InputError
from rcalign.evaluation import metrics
from rcalign.evaluation.evaluate import Part, measure
from rcalign.evaluation.metric_table import METRICS, register_metric
from rcalign.reports.report import make_report
from rcalign.reports.tables import definitions
from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record, RunFolder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(180) % 3, np.arange(180) // 60
    x = rng.normal(size=(180, 4)) + 1.5 * np.eye(4)[y]
    np.savez(tmp_path / "rows.npz", x=x, y=y, domain=domain)
    return tmp_path / "rows.npz"


@pytest.fixture
def own_metric() -> Iterator[str]:
    """A metric of a user's: the mean probability of the wrong classes."""

    def wrong(probabilities: np.ndarray, y: np.ndarray) -> float:
        return float(1 - probabilities[np.arange(len(y)), y].mean())

    register_metric("wrong_mass", wrong, higher_is_better=False, needs="probabilities", title="wrong mass")
    register_metric("top_logit", lambda logits, y: float(logits.max()), higher_is_better=True, per_cent=False)
    yield "wrong_mass"
    del METRICS["wrong_mass"], METRICS["top_logit"]


def test_a_registered_metric_is_everywhere(own_metric: str, rows: Path, tmp_path: Path) -> None:
    for algorithm in ("ERM", "CORAL"):
        for domain in ("0", "1", "2"):
            api.train(rows, algorithm, [domain], steps=4, evaluate_every=2, out=tmp_path / "runs" / algorithm / domain)
    run = tmp_path / "runs" / "ERM" / "0"
    record = RunFolder(run).records()[-1]
    assert math.isfinite(record.metrics["top_logit"]["0"]["test"]) and own_metric not in record.metrics
    printed = CliRunner().invoke(app, ["evaluate", str(run), "--json"])
    found = json.loads(printed.output)
    assert 0 < found["metrics"][own_metric]["0"]["test"] < 1
    assert found["metrics"] == {name: {"0": {"test": v["0"]["test"]}} for name, v in api_result(run).metrics.items()}
    assert "wrong mass" in CliRunner().invoke(app, ["evaluate", str(run)]).output
    report = make_report(tmp_path / "runs")
    table = next(table for table in report.tables if "further metrics" in table.title)
    assert {"wrong mass", "top logit", "macro F1"} <= set(table.header)
    figure = report.results[0].figures["ERM", own_metric]
    held_out = [api_result(tmp_path / "runs" / "ERM" / d).metrics[own_metric][d]["test"] for d in ("0", "1", "2")]
    assert figure.mean == pytest.approx(100 * np.mean(held_out))
    assert "wrong mass" in api.report(tmp_path / "runs", format="html")
    assert ",wrong_mass," in api.report(tmp_path / "runs", format="csv")
    assert "| wrong mass |" in Path(api.export(run, "safetensors")["card"]).read_text()


def api_result(run: Path) -> RunResult:
    result = RunFolder(run).result()
    assert result is not None
    return result


def test_calibration_error_is_that_of_the_probabilities_users_get(rows: Path, tmp_path: Path) -> None:
    result = api.train(rows, "ERM", ["0"], steps=150, out=tmp_path / "run")
    given = api.predict(tmp_path / "run", [rows])["rows"]
    held_out = np.load(rows)["domain"] == 0
    classes = result["classes"]
    probabilities = np.array([[float(row[name]) for name in classes] for row in given])[held_out]
    probabilities /= probabilities.sum(1, keepdims=True)  # they are rounded
    y = np.load(rows)["y"][held_out]
    again = api.evaluate(tmp_path / "run", rows)
    for name, value in {
        "calibration_error": metrics.expected_calibration_error(probabilities, y),
        "calibrated_nll": reference.log_loss(y, probabilities),
        "brier": np.mean([((p - np.eye(3)[label]) ** 2).sum() for p, label in zip(probabilities, y, strict=True)]),
        "auroc": reference.roc_auc_score(y, probabilities, multi_class="ovr"),
    }.items():
        assert again["metrics"][name]["0"]["test"] == pytest.approx(value, abs=1e-4), name
    assert again["calibration"]["temperature"] == result["calibration"]["temperature"] != 1
    shown = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")]).output
    after = result["calibration"]["ece"]["test"]["after"]
    assert f"all rows: {100 * after:.1f} per cent" in " ".join(shown.split())


def test_recalls_and_confusions_are_of_every_class(rows: Path, tmp_path: Path) -> None:
    api.train(rows, "ERM", ["0"], steps=5, out=tmp_path / "run")
    found = api.evaluate(tmp_path / "run")
    matrix = np.array(found["confusion"]["0"])
    assert matrix.sum() == 48 and found["classes"] == ["0", "1", "2"]  # the test part of sixty rows
    expected = np.diag(matrix) / matrix.sum(1)
    assert list(found["recall"]["0"].values()) == pytest.approx(expected)
    assert found["metrics"]["worst_class"]["0"]["test"] == pytest.approx(expected.min())


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, y = 2 * rng.normal(size=(60, 4)), rng.integers(0, 3, 60)  # a class that does not occur
    found = {name: value["a"]["test"] for name, value in measure([Part("a", "test", logits, y)], 1.7).items()}
    predicted, probabilities = logits.argmax(1), metrics.softmax(logits / 1.7)
    present = np.unique(y)
    assert found["accuracy"] == reference.accuracy_score(y, predicted)
    recall = reference.recall_score(y, predicted, labels=present, average=None)
    assert found["balanced_accuracy"] == pytest.approx(recall.mean()) and found["worst_class"] == recall.min()
    assert found["macro_f1"] == reference.f1_score(y, predicted, labels=present, average="macro")
    assert found["calibrated_nll"] == pytest.approx(metrics.negative_log_likelihood(logits / 1.7, y))
    assert found["nll"] == metrics.negative_log_likelihood(logits, y)
    areas = [reference.roc_auc_score(y == c, probabilities[:, c]) for c in present]
    assert found["auroc"] == pytest.approx(np.mean(areas))


def test_names_are_taken_once() -> None:
    with pytest.raises(InputError, match="already is a metric 'accuracy'"):
        register_metric("accuracy", metrics.accuracy, higher_is_better=True)
    with pytest.raises(InputError, match="letters, digits and underscores"):
        register_metric("my metric", metrics.accuracy, higher_is_better=True)


def test_old_records_are_read_and_reported_as_before(rows: Path, tmp_path: Path) -> None:
    """Of format 1: accuracy and nll as fields of a record, no metrics in the result."""
    api.train(rows, "ERM", ["0"], steps=4, evaluate_every=2, out=tmp_path / "run")
    new = RunFolder(tmp_path / "run").records()
    old = [
        {"step": r.step, "loss": r.loss, "accuracy": r.accuracy, "nll": r.metrics["nll"], "validation": r.validation,
         "averaged": False, "logs": r.logs}
        for r in new
    ]  # fmt: skip
    (tmp_path / "run" / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for name in ("metrics", "shot_limits"):
        del result[name]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    again = RunFolder(tmp_path / "run").records()
    assert [record.accuracy for record in again] == [record.accuracy for record in new]
    assert [record.metrics["nll"] for record in again] == [record.metrics["nll"] for record in new]
    tables = make_report(tmp_path / "run").tables
    assert len(tables) == 1 and tables[0].header == ("algorithm", "0", "average", "worst")
    assert "accuracy" in Path(api.export(tmp_path / "run", "safetensors")["card"]).read_text()


def test_shot_limits_are_those_of_the_data(rows: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from rcalign.data import loading

    data = loading.load(rows)
    limited = replace(data, shots=(60, 25), name="sixty")
    for k, dataset in enumerate([limited, replace(data, name="hundred")]):
        for seed in (0, 1):
            folder = tmp_path / "runs" / f"{k}{seed}"
            api.train(dataset, "ERM", protocol="mdlt", steps=2, seed=seed, out=folder)
            for row in ({"many": 0.5, "few": 0.4},):  # both groups, so that the report shows shots
                file = folder / "result.json"
                values = json.loads(file.read_text())
                values["shots"] |= row
                file.write_text(json.dumps(values))
    text = definitions(make_report(tmp_path / "runs").results)[-1]
    assert "above 60, 26 to 60, 1 to 25, none (sixty)" in text and "above 100, 21 to 100, 1 to 20" in text


def test_a_record_without_accuracy_is_refused() -> None:
    with pytest.raises(TypeError, match="no accuracy"):
        Record.from_json({"step": 1, "loss": 0.1, "metrics": {"nll": {}}, "validation": 0.5})
