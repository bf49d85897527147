"""Records for other people's tools: TensorBoard's event files and MLflow's local file store.

Both packages are extras; each is asked for only when it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rcalign.errors import InputError
from rcalign.reports.report import Report
from rcalign.store.run_folder import Record
from rcalign.store.run_view import Run


def tensorboard(report: Report, out: Path | str) -> int:
    """One folder of event files for each run that was evaluated; returns their number.

    Look: tensorboard --logdir OUT.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _not_installed("tensorboard") from None
    runs = _evaluated(report)
    folder = _empty(out)
    for name, run in runs.items():
        writer = SummaryWriter(str(folder / name))
        for record in run.records:
            for tag, value in scalars(record).items():
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
    with _environment(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true"):
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _not_installed("mlflow") from None
        folder = _empty(out)
        client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        experiment = client.create_experiment(_mlflow_name(report.sweep.name))
        for name, run in runs.items():
            number = client.create_run(experiment, start_time=0, run_name=name).info.run_id
            metrics = [
                Metric(_mlflow_name(tag), value, timestamp=record.step, step=record.step)
                for record in run.records
                for tag, value in scalars(record).items()
            ]
            params = [Param(_mlflow_name(key), str(value)[:500]) for key, value in run.hparams.items()]
            tags = [RunTag(key, value) for key, value in _about(report, run).items()]
            client.log_batch(number, params=params, tags=tags)
            for start in range(0, len(metrics), 1000):  # MLflow's limit for one call
                client.log_batch(number, metrics=metrics[start : start + 1000])
            client.set_terminated(number, "FINISHED" if run.problem is None else "KILLED")
    return len(runs)


EXPORTS: dict[str, Callable[[Report, Path | str], int]] = {"tensorboard": tensorboard, "mlflow": mlflow}


def scalars(record: Record) -> dict[str, float]:
    """The numbers of one evaluation by name; those of averaged weights under a name of their own.

    >>> record = Record(step=1, loss=None, metrics={"accuracy": {"a": {"val": 0.5}}}, validation=0.5, averaged=True)
    >>> scalars(record)
    {'averaged/validation': 0.5, 'averaged/accuracy/a/val': 0.5}
    """
    values = {"validation": record.validation, **({} if record.loss is None else {"loss": record.loss})}
    for what, table in record.metrics.items():
        values |= {f"{what}/{domain}/{part}": value for domain, parts in table.items() for part, value in parts.items()}
    values |= {f"logs/{name}": value for name, value in record.logs.items()}
    return {f"averaged/{name}": value for name, value in values.items()} if record.averaged else values


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


def _mlflow_name(name: str) -> str:
    """MLflow takes letters, digits, spaces and a few signs."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _empty(out: Path | str) -> Path:
    """A new folder: events beside those of an earlier export would be shown twice."""
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"'{folder}' is not an empty folder: give another `out` to export to.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _not_installed(name: str) -> InputError:
    return InputError(f"{name} is not installed: pip install 'rcalign[exports]'.")


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
