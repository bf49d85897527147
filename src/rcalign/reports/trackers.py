"""Records for other people's tools: TensorBoard's event files and MLflow's local file store.

Both packages are extras; each is asked for only when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rcalign.errors import InputError
from rcalign.reports.report import Report
from rcalign.store.run_view import Run
from rcalign.training.callbacks import mlflow_environment, mlflow_name, not_installed


def tensorboard(report: Report, out: Path | str) -> int:
    """One folder of event files for each run that was evaluated; returns their number.

    Look: tensorboard --logdir OUT.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise not_installed("tensorboard", "tensorboard") from None
    runs = _evaluated(report)
    folder = _empty(out)
    for name, run in runs.items():
        writer = SummaryWriter(str(folder / name))
        for record in run.records:
            for tag, value in record.scalars().items():
                writer.add_scalar(tag, value, record.step)
        about = {**_about(report, run), **{f"hparams/{key}": str(value) for key, value in run.hparams.items()}}
        writer.add_text("run", "\n".join(f"- {key}: {value}" for key, value in about.items()))
        writer.close()
    return len(runs)


def mlflow(report: Report, out: Path | str) -> int:
    """One experiment with a run for each of ours that was evaluated; returns their number.

    Look: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri OUT (MLflow 3 wants to be told that a store of
    files is meant).
    """
    runs = _evaluated(report)
    with mlflow_environment():
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise not_installed("mlflow", "mlflow-skinny") from None
        folder = _empty(out)
        client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        experiment = client.create_experiment(mlflow_name(report.sweep.name))
        for name, run in runs.items():
            number = client.create_run(experiment, start_time=0, run_name=name).info.run_id
            metrics = [
                Metric(mlflow_name(tag), value, timestamp=record.step, step=record.step)
                for record in run.records
                for tag, value in record.scalars().items()
            ]
            params = [Param(mlflow_name(key), str(value)[:500]) for key, value in run.hparams.items()]
            tags = [RunTag(key, value) for key, value in _about(report, run).items()]
            client.log_batch(number, params=params, tags=tags)
            for start in range(0, len(metrics), 1000):  # MLflow's limit for one call
                client.log_batch(number, metrics=metrics[start : start + 1000])
            client.set_terminated(number, "FINISHED" if run.problem is None else "KILLED")
    return len(runs)


EXPORTS: dict[str, Callable[[Report, Path | str], int]] = {"tensorboard": tensorboard, "mlflow": mlflow}


def _evaluated(report: Report) -> dict[str, Run]:
    """A folder's name -> run."""
    found: dict[str, Run] = {}
    for run in report.sweep.runs:
        if run.records:
            words = [run.data, run.algorithm, *run.test_domains, f"trial{run.trial}", f"draw{run.draw}"]
            name = _file_name(words)
            found[name if name not in found else _file_name([*words, run.name])] = run
    return found


def _file_name(words: Iterable[str]) -> str:
    return "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)


def _about(report: Report, run: Run) -> dict[str, str]:
    chosen = any(choice.run is run for table in report.results for choice in table.choices.values())
    return {
        "data": run.data,
        "algorithm": run.algorithm,
        "protocol": run.protocol,
        "held_out": ", ".join(run.test_domains) or "none",
        "trial": str(run.trial),
        "draw": str(run.draw),
        "chosen": "yes" if chosen else "no",
        "problem": run.problem or "none",
        "folder": run.folder,
    }


def _empty(out: Path | str) -> Path:
    """A new folder: events beside those of an earlier export would be shown twice."""
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"'{folder}' is not an empty folder: give another `out` to export to.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
