"""Following a run while it trains: one interface, and loggers for TensorBoard, Weights & Biases and MLflow.

A callback replaces some of the four methods of ``Callback``. Python takes objects (``rcalign.train(...,
callbacks=[...])``); the option ``log`` takes words: the name of a logger of ours, ``NAME=PLACE`` to say where it
writes, or ``module:Class`` for one's own. Of several workers the first one alone has callbacks.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcalign.errors import InputError, unknown
from rcalign.extensions import import_modules
from rcalign.store.json_files import read_object, write_json
from rcalign.store.names import file_name, short_data_name
from rcalign.store.results import RunResult
from rcalign.store.run_folder import STAGE_ONE, WITH_VALIDATION, Record, RunConfig, RunFolder
from rcalign.training.options import LOGGERS

if TYPE_CHECKING:  # reports use what is here, and answer before torch is imported
    from rcalign.algorithms.base import Algorithm

STEPS_BETWEEN = 10  # between two calls of ``on_step``: reading a number makes the host wait for a GPU
STEP, EVALUATION, AVERAGED = 0, 1, 2  # what happens after one step, in this order


@dataclass(frozen=True)
class RunStart:
    """What a callback learns first. config: the run's options, every choice made. folder: the run folder, None where
    it is not kept. name: unlike that of other runs. resumed: earlier calls were made for the same run. model: to be
    looked at, not to be changed."""

    config: RunConfig
    folder: Path | None
    name: str
    resumed: bool
    model: Algorithm


class Callback:
    """Follows a run while it trains. Every method does nothing unless a subclass replaces it.

    Each event is passed once in the life of a run: a run that was killed and is resumed does not pass again what it
    repeats. A two-stage method is two runs, each with its start and end, and so is the second training of
    ``train_on_validation``, whose name ends in "-with-validation": figures on validation rows are then figures on rows
    that it trains on. A callback that changes the model, or torch's own state, changes the run.

    >>> class Printed(Callback):
    ...     def on_evaluation(self, record):
    ...         print(f"step {record.step}: {record.validation:.2f}")
    >>> Printed().on_evaluation(Record(step=5, loss=0.1, metrics={"accuracy": {}}, validation=0.5))
    step 5: 0.50
    """

    stops_run_on_error = True  # False: an error after the start is a warning, and the callback is left out from then on

    def on_start(self, run: RunStart) -> None:
        """Before the first step, or the first one after resuming."""

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Every tenth step, and every one after which the run is evaluated: what the step logged, "loss" first."""

    def on_evaluation(self, record: Record) -> None:
        """After an evaluation, with the row that ``records.jsonl`` holds."""

    def on_end(self, result: RunResult | None) -> None:
        """At the end: the result, or None if the run was stopped or failed."""


class Callbacks:
    """The callbacks of one run, each of which is passed every event once. Where there are none it costs nothing.

    The last event passed stands in ``logged.json`` in the run folder, written before the event is passed: a kill in
    between loses one event, and repeats none. kept: whether the folder stays when the run has ended. goes_on: another
    stage of the same run was followed before, so that a logger that cannot start any more does not stop it.
    """

    def __init__(
        self, callbacks: Sequence[Callback], folder: RunFolder, *, kept: bool = True, goes_on: bool = False
    ) -> None:
        self._callbacks = list(callbacks)
        self._goes_on = goes_on
        self._folder = folder.path
        self._kept = kept
        self._file = folder.path / "logged.json"
        self._last = (0, STEP)

    def start(self, config: RunConfig, model: Algorithm) -> None:
        if not self._callbacks:
            return
        found = read_object(self._file)
        if found is not None:
            self._last = (int(found["step"]), int(found["event"]))
        folder = self._folder if self._kept else None
        start = RunStart(config, folder, run_name(config, self._folder), found is not None, model)
        for callback in list(self._callbacks):
            if self._goes_on:
                self._guarded(callback, lambda one: one.on_start(start))
            else:
                callback.on_start(start)

    def step(self, step: int, logs: Mapping[str, Any], due: bool) -> None:
        if self._callbacks and (due or step % STEPS_BETWEEN == 0):
            values = {name: float(value) for name, value in logs.items()}
            self._pass(step, STEP, lambda callback: callback.on_step(step, values))

    def evaluation(self, record: Record) -> None:
        kind = AVERAGED if record.averaged else EVALUATION
        self._pass(record.step, kind, lambda callback: callback.on_evaluation(record))

    def end(self, result: RunResult | None) -> None:
        for callback in list(self._callbacks):
            self._guarded(callback, lambda one: one.on_end(result))

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:
            self.end(None)

    def _pass(self, step: int, kind: int, call: Callable[[Callback], None]) -> None:
        if not self._callbacks or (step, kind) <= self._last:
            return
        self._last = (step, kind)
        write_json(self._file, {"step": step, "event": kind})
        for callback in list(self._callbacks):
            self._guarded(callback, call)

    def _guarded(self, callback: Callback, call: Callable[[Callback], None]) -> None:
        try:
            call(callback)
        except Exception as error:
            if callback.stops_run_on_error:
                raise
            self._callbacks.remove(callback)
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            warnings.warn(
                f"{type(callback).__name__} cannot log any more ({why}): the run goes on without it.", stacklevel=2
            )


def run_name(config: RunConfig, folder: Path) -> str:
    """A readable name of a run that no other run beside it has: data, algorithm, held-out domains, seed, folder."""
    inside = folder.name in (STAGE_ONE, WITH_VALIDATION)  # folders that every run may have
    own = f"{folder.parent.name}-{folder.name}" if inside else folder.name
    title = file_name(short_data_name(config.data), config.algorithm, *config.test_domains)
    return own if own.startswith(title) else f"{title}-seed{config.seed}-{own}"


# --- the words of the option ``log`` -------------------------------------------------------------------------------


def make_callbacks(words: Sequence[str]) -> list[Callback]:
    """The callbacks that the option ``log`` names: a logger of ours, ``NAME=PLACE``, or ``module:Class``.

    >>> make_callbacks(["rcalign.training.callbacks:Callback"])  # doctest: +ELLIPSIS
    [<rcalign.training.callbacks.Callback object at ...>]
    >>> make_callbacks(["rcalign.training.callbacks:Calback"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: unknown class of rcalign.training.callbacks 'Calback': did you mean 'Callback'? ...
    """
    return [_make(word) for word in words]


def _make(word: str) -> Callback:
    name, mark, place = word.partition("=")
    if name in LOGGERS:
        return OURS[name](place if mark else None)
    module, _, kind = word.partition(":")
    import_modules([module])
    found = getattr(sys.modules[module], kind, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, type)]
        raise unknown(f"class of {module}", kind, classes)
    if not issubclass(found, Callback):
        raise InputError(f"'{word}' is no callback: derive it from rcalign.training.callbacks.Callback.")
    try:
        return found()
    except TypeError as error:
        raise InputError(f"'{word}' cannot be made without arguments ({error}): give each a default.") from None


# --- loggers -------------------------------------------------------------------------------------------------------


class TensorBoard(Callback):
    """TensorBoard's event files, in ``tensorboard/`` of the run folder or in a folder of its own below ``place``."""

    stops_run_on_error = False

    def __init__(self, place: str | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise not_installed("tensorboard", "tensorboard") from None
        self._make = SummaryWriter
        self._place = place

    def on_start(self, run: RunStart) -> None:
        if self._place is not None:
            folder = Path(self._place) / run.name
        else:
            folder = _needed(run.folder, "tensorboard=FOLDER") / "tensorboard"
        try:
            self._writer = self._make(str(folder))
        except OSError as error:
            raise InputError(f"'{folder}' cannot be written ({error.strerror}): choose another place.") from None
        if not run.resumed:
            self._writer.add_text("run", "\n".join(f"- {key}: {value}" for key, value in settings(run.config).items()))
            self._writer.flush()

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, _step_scalars(values))

    def on_evaluation(self, record: Record) -> None:
        self._add(record.step, _evaluation_scalars(record))

    def on_end(self, result: RunResult | None) -> None:
        self._writer.close()

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()  # what is logged is on the disk when a kill comes


class WandB(Callback):
    """A run of Weights & Biases, in the project ``place`` ("rcalign"). ``WANDB_MODE=offline`` needs no account."""

    stops_run_on_error = False

    def __init__(self, place: str | None = None) -> None:
        try:
            import wandb
        except ImportError:
            raise not_installed("wandb", "wandb") from None
        self._wandb = wandb
        self._project = place or os.environ.get("WANDB_PROJECT") or "rcalign"

    def on_start(self, run: RunStart) -> None:
        offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
        known = _remembered(run, "wandb.json", lambda: {"id": secrets.token_hex(8)})
        try:
            self._run = self._wandb.init(
                project=self._project,
                id=known["id"],
                name=run.name,
                dir=os.environ.get("WANDB_DIR") or run.folder,
                config=settings(run.config),
                resume=None if offline else "allow",
                reinit="create_new",
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except (self._wandb.errors.Error, OSError) as error:
            why = str(error).strip().splitlines()[0][:160]
            raise InputError(
                f"wandb cannot start a run ({why}): log in with 'wandb login', or set WANDB_MODE=offline."
            ) from None

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(_step_scalars(values), step=step)

    def on_evaluation(self, record: Record) -> None:
        self._run.log(_evaluation_scalars(record), step=record.step)

    def on_end(self, result: RunResult | None) -> None:
        self._run.finish(exit_code=0 if result is not None else 1)


class MLflow(Callback):
    """A run of MLflow in the store ``place``: an address, or a folder. Without one, ``MLFLOW_TRACKING_URI``, else
    ``mlruns/`` of the run folder."""

    stops_run_on_error = False

    def __init__(self, place: str | None = None) -> None:
        with mlflow_environment():
            try:
                from mlflow.entities import Metric, Param
                from mlflow.exceptions import MlflowException
                from mlflow.tracking import MlflowClient
            except ImportError:
                raise not_installed("mlflow", "mlflow-skinny") from None
        self._client, self._metric, self._param, self._failure = MlflowClient, Metric, Param, MlflowException
        self._place = place or os.environ.get("MLFLOW_TRACKING_URI")

    def on_start(self, run: RunStart) -> None:
        place = self._place or _needed(run.folder, "mlflow=FOLDER") / "mlruns"
        address = str(place) if ":" in str(place) else Path(place).absolute().as_uri()
        with mlflow_environment():
            try:
                self._store = self._client(tracking_uri=address)
                self._id = _remembered(run, "mlflow.json", lambda: {"run": self._new_run(run)})["run"]
                self._store.update_run(self._id, status="RUNNING")
            except (self._failure, OSError, ImportError) as error:
                why = str(error).strip().splitlines()[0][:160]
                raise InputError(f"mlflow cannot log to '{address}' ({why}): give another store.") from None

    def _new_run(self, run: RunStart) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rcalign"
        experiment = self._store.get_experiment_by_name(name)
        number = self._store.create_experiment(name) if experiment is None else experiment.experiment_id
        made = self._store.create_run(number, run_name=run.name).info.run_id
        params = [self._param(mlflow_name(key), str(value)[:500]) for key, value in settings(run.config).items()]
        self._store.log_batch(made, params=params)
        return made

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, _step_scalars(values))

    def on_evaluation(self, record: Record) -> None:
        self._add(record.step, _evaluation_scalars(record))

    def on_end(self, result: RunResult | None) -> None:
        with mlflow_environment():
            self._store.set_terminated(self._id, "FINISHED" if result is not None else "KILLED")

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(mlflow_name(tag), value, now, step) for tag, value in values.items()]
        with mlflow_environment():
            self._store.log_batch(self._id, metrics=metrics)


OURS: dict[str, Callable[[str | None], Callback]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def settings(config: RunConfig) -> dict[str, Any]:
    """The options and hyperparameters of a run that have a value, for a logger's table of settings."""
    values = dataclasses.asdict(config)
    hparams = {f"hparams/{name}": value for name, value in values.pop("hparams").items()}
    for name in ("spec", "table", "versions", "log"):
        del values[name]
    values["test_domains"] = ", ".join(config.test_domains)
    return {name: value for name, value in {**values, **hparams}.items() if value not in (None, (), "")}


def _step_scalars(values: Mapping[str, float]) -> dict[str, float]:
    return {name if name == "loss" else f"logs/{name}": value for name, value in values.items()}


def _evaluation_scalars(record: Record) -> dict[str, float]:
    """Those of the evaluation without those of its step, which ``on_step`` has logged."""
    return {
        name: value
        for name, value in record.scalars().items()
        if name == "logs/validation_loss" or not (name == "loss" or name.startswith("logs/"))
    }


def _needed(folder: Path | None, instead: str) -> Path:
    if folder is None:
        raise InputError(f"the run folder is not kept here, so the log would go with it: write `log={instead}`.")
    return folder


def _remembered(run: RunStart, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a logger must know when a run is resumed, from a file in the run folder; made where there is none."""
    known = read_object(run.folder / name) if run.folder is not None else None
    if known is None:
        known = make()
        if run.folder is not None:
            write_json(run.folder / name, known)
    return known


def mlflow_name(name: str) -> str:
    """MLflow takes letters, digits, spaces and a few signs."""
    return re.sub(r"[^\w\-. /]", "_", name)


@contextmanager
def mlflow_environment() -> Iterator[None]:
    """Tells MLflow 3 that a store of files is meant, and to send nothing about its use; only inside."""
    values = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
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


def not_installed(name: str, package: str) -> InputError:
    return InputError(f"{name} is not installed: pip install {package}, or all of 'rcalign[exports]'.")
