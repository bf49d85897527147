"""Live logs, read back with the libraries they are for; numbers and ids that do not notice them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.errors import InputError
from rcalign.estimator import DomainClassifier
from rcalign.store.results import RunResult
from rcalign.store.run_folder import Record, RunFolder
from rcalign.sweeps.plan import DataSummary, expand
from rcalign.sweeps.plan_file import parse_plan
from rcalign.training.callbacks import Callback, RunStart

COMMON: dict[str, Any] = {"steps": 30, "evaluate_every": 15, "hparams": {"batch_size": 8}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.arange(120) % 3, np.arange(120) // 3 % 4
    x = rng.normal(size=(120, 5)) + 2 * np.eye(5)[y]
    file = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(file, x=x, y=y, domain=domain)
    return file


class Kept(Callback):
    """Everything that it was told, in order; fails once, on demand."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.fail_at = fail_at

    def on_start(self, run: RunStart) -> None:
        self.told.append(("start", run.config.algorithm, run.resumed))

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fail_at:
            raise RuntimeError("killed")
        self.told.append(("step", step, dict(values)))

    def on_evaluation(self, record: Record) -> None:
        self.told.append(("evaluation", record.step, record.averaged))

    def on_end(self, result: RunResult | None) -> None:
        self.told.append(("end", None if result is None else result.steps))


def events(kept: Kept, *kinds: str) -> list[tuple[Any, ...]]:
    return [told[:2] for told in kept.told if told[0] in kinds]


def test_every_event_is_passed_once_in_order(rows: Path, tmp_path: Path) -> None:
    kept = Kept()
    api.train(rows, "ERM", ["3"], **COMMON, average="ema", out=tmp_path / "run", callbacks=[kept])
    assert [told[:2] for told in kept.told] == [
        ("start", "ERM"),
        ("step", 10),
        ("step", 15),
        ("evaluation", 15),
        ("step", 20),
        ("step", 30),
        ("evaluation", 30),
        ("evaluation", 30),  # of the averaged weights
        ("end", 30),
    ]
    records = RunFolder(tmp_path / "run").records()
    losses = {told[1]: told[2]["loss"] for told in kept.told if told[0] == "step"}
    assert [losses[r.step] for r in records if not r.averaged] == [r.loss for r in records if not r.averaged]


def test_a_resumed_run_passes_nothing_twice_and_leaves_nothing_out(rows: Path, tmp_path: Path) -> None:
    straight, first, second = Kept(), Kept(fail_at=30), Kept()
    options = {**COMMON, "steps": 60, "evaluate_every": 25}
    api.train(rows, "RC-Align", ["3"], **options, out=tmp_path / "straight", callbacks=[straight])
    with pytest.raises(RuntimeError, match="killed"):  # after the checkpoint of step 25
        api.train(rows, "RC-Align", ["3"], **options, out=tmp_path / "cut", callbacks=[first])
    assert first.told[-1] == ("end", None)
    api.train(rows, "RC-Align", ["3"], **options, out=tmp_path / "cut", resume=True, callbacks=[second])
    assert second.told[0] == ("start", "RC-Align", True)
    both = [*first.told, *second.told]
    seen = [told for told in both if told[0] in ("step", "evaluation")]
    expected = [told for told in straight.told if told[0] in ("step", "evaluation")]
    assert [told for told in expected if told not in seen] == [told for told in expected if told[:2] == ("step", 30)]
    assert seen == [told for told in expected if told[:2] != ("step", 30)]  # to the bit


def test_a_kill_between_checkpoints_repeats_nothing(rows: Path, tmp_path: Path) -> None:
    first, second = Kept(fail_at=50), Kept()
    options = {**COMMON, "steps": 60, "evaluate_every": 25}
    with pytest.raises(RuntimeError, match="killed"):
        api.train(rows, "ERM", ["3"], **options, out=tmp_path / "cut", callbacks=[first])
    assert events(first, "step")[-1] == ("step", 40)  # the checkpoint is that of step 25: 26 to 50 are trained again
    api.train(rows, "ERM", ["3"], **options, out=tmp_path / "cut", resume=True, callbacks=[second])
    assert [told[1] for told in events(second, "step", "evaluation")] == [50, 60, 60]


def test_a_two_stage_method_is_two_runs(rows: Path, tmp_path: Path) -> None:
    kept = Kept()
    api.train(rows, "CRT", ["3"], **COMMON, out=tmp_path / "run", callbacks=[kept])
    assert [told[1] for told in kept.told if told[0] == "start"] == ["ERM", "CRT"]
    assert events(kept, "end") == [("end", 30)] * 2


def test_the_second_training_of_train_on_validation_is_a_run_of_its_own(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = {**COMMON, "steps": 60, "evaluate_every": 25, "average": "ema", "train_on_validation": True}
    runs, place = tmp_path / "runs", tmp_path / "log"
    for out, more in (("plain", {}), ("logged", {"log": f"tensorboard={place}"})):
        api.train(rows, "ERM", ["3"], **options, **more, out=runs / out)
    assert (runs / "plain/best.safetensors").read_bytes() == (runs / "logged/best.safetensors").read_bytes()
    name = "rows-ERM-3-seed0-logged"
    assert sorted(folder.name for folder in place.iterdir()) == [name, f"{name}-with-validation"]
    for folder, log in ((runs / "logged", name), (runs / "logged/with-validation", f"{name}-with-validation")):
        found = EventAccumulator(str(place / log), purge_orphaned_data=False)
        found.Reload()
        assert [event.step for event in found.Scalars("loss")] == [10, 20, 25, 30, 40, 50, 60]
        records = [record for record in RunFolder(folder).records() if not record.averaged]
        tested = [(event.step, pytest.approx(event.value)) for event in found.Scalars("accuracy/3/test")]
        assert tested == [(record.step, record.metrics["accuracy"]["3"]["test"]) for record in records]
        assert len(found.Scalars("averaged/accuracy/3/test")) == 1


class CannotStartAgain(Kept):
    stops_run_on_error = False

    def on_start(self, run: RunStart) -> None:
        if self.told:
            raise OSError("the server is gone")
        super().on_start(run)


def test_a_logger_that_cannot_start_again_stops_no_later_stage(rows: Path, tmp_path: Path) -> None:
    for algorithm, more in (("ERM", {"train_on_validation": True}), ("CRT", {})):
        gone = CannotStartAgain()
        with pytest.warns(UserWarning, match="CannotStartAgain cannot log any more"):
            api.train(rows, algorithm, ["3"], **COMMON, **more, out=tmp_path / algorithm, callbacks=[gone])
        assert [told[0] for told in gone.told].count("start") == 1


MODULE = """
from pathlib import Path
from rcalign.training.callbacks import Callback

class Lines(Callback):
    def on_start(self, run):
        self.file = Path("lines.txt").open("a")
        self.file.write(f"start {run.name}\\n")
    def on_evaluation(self, record):
        self.file.write(f"{record.step}\\n")
    def on_end(self, result):
        self.file.close()

class NoCallback:
    pass
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rcalign.cli", "train", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_own_loggers_by_name_and_only_the_first_of_two_workers_logs(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(MODULE)
    options = ["--algorithm", "ERM", "--test-domain", "3", "--steps", "4", "--evaluate-every", "2", "--out", "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    # -- since torchrun takes --log for a beginning of its own options
    line = [*torchrun, "--", "rcalign.cli", "train", str(rows), *options, "--log", "my_module:Lines", "--device", "cpu"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "lines.txt").read_text() == "start rows-ERM-3-seed0-run\n2\n4\n"


def test_wrong_words_are_refused_in_a_sentence(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_other_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    for word, sentence in {
        "tensorbord": "unknown logger 'tensorbord': did you mean 'tensorboard'",
        "mlflow=": "names no place",
        "no_such_module:Logger": "there is no module 'no_such_module'",
        "my_other_module:Line": "unknown class of my_other_module 'Line': did you mean 'Lines'",
        "my_other_module:NoCallback": "is no callback: derive it",
    }.items():
        with pytest.raises(InputError, match=sentence):
            api.train(rows, "ERM", ["3"], **COMMON, out=tmp_path / "run", log=word)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="unknown logger 'wandbb'"):
        parse_plan({"data": "rows.npz", "algorithms": "ERM", "log": "wandbb"})
    with pytest.raises(InputError, match="name callbacks in `log`"):
        api.train(rows, "ERM", ["3"], workers=2, callbacks=[Kept()])


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_library_that_is_not_there_is_named_with_its_command(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in [loaded for loaded in sys.modules if loaded.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # what Python does where a package is missing
    with pytest.raises(InputError, match=f"{name} is not installed: pip install "):
        api.train(rows, "ERM", ["3"], **COMMON, out=tmp_path / "run", log=name)
    assert not (tmp_path / "run").exists()


def test_logging_is_no_part_of_an_id() -> None:
    plans = [{"data": "rows.npz", "algorithms": "ERM", **more} for more in ({}, {"log": ["tensorboard", "a:B"]})]
    runs = [expand(parse_plan(plan), lambda data: DataSummary(("0", "1"), True)) for plan in plans]
    assert [run.id for run in runs[0]] == [run.id for run in runs[1]]
    assert runs[1][0].options["log"] == ["tensorboard", "a:B"]


# --- the real libraries --------------------------------------------------------------------------------------------


def cut_and_resumed(rows: Path, out: Path, log: str, **options: Any) -> None:
    """A run that fails between two checkpoints and is resumed, and one without a log: the same weights and records."""
    options = {**COMMON, "steps": 60, "evaluate_every": 25, **options}
    with pytest.raises(RuntimeError, match="killed"):
        api.train(rows, "ERM", ["3"], **options, out=out / "run", log=log, callbacks=[Kept(fail_at=50)])
    api.train(rows, "ERM", ["3"], **options, out=out / "run", log=log, resume=True)
    api.train(rows, "ERM", ["3"], **options, out=out / "plain")
    for name in ("best.safetensors", "last.safetensors", "records.jsonl"):
        assert (out / "run" / name).read_bytes() == (out / "plain" / name).read_bytes(), name


def expected_steps(out: Path) -> tuple[list[int], list[tuple[int, float]]]:
    """Steps with a loss, and (step, validation accuracy); step 50 was logged before the run failed in it."""
    return [10, 20, 25, 30, 40, 50, 60], [(r.step, r.validation) for r in RunFolder(out / "run").records()]


def test_tensorboard_has_every_step_once(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cut_and_resumed(rows, tmp_path, "tensorboard")
    steps, validation = expected_steps(tmp_path)
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"), purge_orphaned_data=False)
    found.Reload()
    assert [event.step for event in found.Scalars("loss")] == steps
    assert [(e.step, e.value) for e in found.Scalars("validation")] == [(s, pytest.approx(v)) for s, v in validation]
    assert len(found.Tensors("run/text_summary")) == 1 and "hparams/batch_size: 8" in str(
        found.Tensors("run/text_summary")
    )


def test_wandb_offline_has_every_step_once(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is an extra and not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    cut_and_resumed(rows, tmp_path, "wandb=trying")
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    history: dict[str, list[tuple[int, float]]] = {}
    ids = set()
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"), key=os.path.getmtime)
    assert len(files) == 2
    for file in files:
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add((record.run.run_id, record.run.project, record.run.display_name))
            if record.WhichOneof("record_type") == "history":
                values = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                for name, value in values.items():
                    history.setdefault(name, []).append((int(values["_step"]), value))
    steps, validation = expected_steps(tmp_path)
    assert [step for step, _ in history["loss"]] == steps
    assert history["validation"] == validation
    assert len(ids) == 1 and ids.pop()[1:] == ("trying", "rows-ERM-3-seed0-run")


def test_mlflow_has_every_step_once(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is an extra and not installed")
    cut_and_resumed(rows, tmp_path, f"mlflow={tmp_path / 'store'}")
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    experiment = client.get_experiment_by_name("rcalign")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    steps, validation = expected_steps(tmp_path)
    assert [metric.step for metric in client.get_metric_history(found.info.run_id, "loss")] == steps
    history = client.get_metric_history(found.info.run_id, "validation")
    assert [(metric.step, metric.value) for metric in history] == validation
    assert found.info.status == "FINISHED" and found.data.params["algorithm"] == "ERM"


def test_the_estimator_logs_and_needs_a_place_for_it(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    data = np.load(rows)
    arguments = {"X": data["x"], "y": data["y"], "domains": data["domain"]}
    kept = Kept()
    model = DomainClassifier("ERM", steps=10, log=f"tensorboard={tmp_path}", callbacks=[kept]).fit(**arguments)
    assert len(list(tmp_path.glob("X-ERM-*/events*"))) == 1 and kept.told[-1] == ("end", 10)
    plain = DomainClassifier("ERM", steps=10).fit(**arguments)
    assert np.array_equal(plain.predict_proba(data["x"]), model.predict_proba(data["x"]))
    with pytest.raises(InputError, match="tensorboard=FOLDER"):
        DomainClassifier("ERM", steps=10, log="tensorboard").fit(**arguments)


class Broken(Kept):
    stops_run_on_error = False


def test_a_logger_that_fails_does_not_stop_the_run(rows: Path, tmp_path: Path) -> None:
    broken, kept = Broken(fail_at=20), Kept()
    with pytest.warns(UserWarning, match="Broken cannot log any more"):
        api.train(rows, "ERM", ["3"], **COMMON, out=tmp_path / "run", callbacks=[broken, kept])
    assert events(broken, "step")[-1] == ("step", 15) and kept.told[-1] == ("end", 30)
