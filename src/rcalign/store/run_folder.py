"""What a run leaves behind: one folder with its configuration, a row per evaluation, checkpoints and a result."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock

from rcalign.errors import InputError, unknown
from rcalign.spec import DataSpec
from rcalign.store.json_files import append_line, read_lines, write_json, write_lines
from rcalign.store.locks import acquire
from rcalign.store.results import MetricTable, RunResult
from rcalign.training.options import TrainOptions, described

FORMAT = 2  # of the run folder; a reader refuses a newer one. 1: records had accuracy and nll, not metrics
STAGE_ONE = "stage-1"  # the folder of a first stage, inside that of the run
WITH_VALIDATION = "with-validation"  # the folder of a second training, likewise


@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainOptions):
    """Everything needed to repeat a run: its options, nothing left open, and what was found when it began.

    The fields of ``TrainOptions`` that a preset, the data or the machine decide are repeated here with the type they
    have then. A field that an older ``config.json`` lacks has its default. ``identity`` is what must agree for a
    folder to be resumed.
    """

    algorithm: str
    test_domains: tuple[str, ...]
    protocol: str
    preset: str
    steps: int
    evaluate_every: int
    seed: int
    freeze_batch_norm: bool
    hparams: Mapping[str, Any]
    device: str = "cpu"
    data: str
    data_fingerprint: str
    weights_fingerprint: str
    spec: DataSpec
    threads: int = 1
    stage_one: str | None = None
    table: Mapping[str, Any] | None = None  # how columns become inputs (``Encoding``); the data and split determine it
    stored_size: int | None = None  # side of the kept images; the data determine it
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Nothing is checked: it was, when the options were made."""

    def identity(self) -> dict[str, Any]:
        """The fields that determine the result, not those that say where things are or how it is computed."""
        everything = dataclasses.asdict(self)
        aside = [name for name, about in described().items() if not about.option.decides]
        for name in (*aside, "data", "threads", "table", "stored_size", "versions", "format"):
            del everything[name]
        return everything


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    names = ("rcalign", "torch", "torchvision", "timm", "numpy", "pillow")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One evaluation.

    metrics: name -> domain -> part ("val", "test") -> value; accuracy is always there. validation: the mean accuracy
    on the validation parts of the source domains. averaged: of the averaged weights, the last row of a run that
    averages, without a loss since there was no step.
    """

    step: int
    loss: float | None
    metrics: MetricTable
    validation: float
    averaged: bool = False
    logs: Mapping[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float]]:
        """Domain -> part -> accuracy: what checkpoints and runs are chosen by."""
        return self.metrics["accuracy"]

    def scalars(self) -> dict[str, float]:
        """The numbers of the evaluation by name; those of averaged weights under a name of their own.

        >>> metrics = {"accuracy": {"a": {"val": 0.5}}}
        >>> Record(step=1, loss=None, metrics=metrics, validation=0.5, averaged=True).scalars()
        {'averaged/validation': 0.5, 'averaged/accuracy/a/val': 0.5}
        """
        values = {"validation": self.validation, **({} if self.loss is None else {"loss": self.loss})}
        for what, table in self.metrics.items():
            values |= {
                f"{what}/{domain}/{part}": value for domain, parts in table.items() for part, value in parts.items()
            }
        values |= {f"logs/{name}": value for name, value in self.logs.items()}
        return {f"averaged/{name}": value for name, value in values.items()} if self.averaged else values

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Record:
        """A row of ``records.jsonl``; those of format 1 have fields ``accuracy`` and ``nll``, not ``metrics``.

        >>> old = {"accuracy": {"a": {"val": 1.0}}, "nll": {"a": {"val": 0.1}}}
        >>> Record.from_json({"step": 1, "loss": 0.5, "validation": 1.0, **old}).metrics
        {'accuracy': {'a': {'val': 1.0}}, 'nll': {'a': {'val': 0.1}}}
        """
        values = dict(row)
        if "metrics" not in values:
            values["metrics"] = {name: values.pop(name) for name in ("accuracy", "nll") if name in values}
        if "accuracy" not in values["metrics"]:
            raise TypeError("it has no accuracy")
        return cls(**values)


class RunFolder:
    """The files of one run: ``config.json``, ``records.jsonl``, ``best.safetensors``, ``last.safetensors``,
    ``state.safetensors`` (for resuming) and, once finished, ``result.json``."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.records_file = self.path / "records.jsonl"
        self.best_file = self.path / "best.safetensors"
        self.last_file = self.path / "last.safetensors"
        self.state_file = self.path / "state.safetensors"
        self.result_file = self.path / "result.json"
        self._lock: filelock.BaseFileLock | None = None

    def begin(self, config: RunConfig, resume: bool) -> None:
        """Makes the folder that of this run and acquires its lock; checks that a run found there is the same one."""
        if self.config_file.exists():
            self._check_same_run(config, resume)
        elif self.path.is_dir() and any(not item.name.startswith(".") for item in self.path.iterdir()):
            raise InputError(f"the output folder '{self.path}' holds other files: choose an empty or new one.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            for left_by_a_kill in self.path.glob(".*.safetensors.*"):
                left_by_a_kill.unlink()
            if not self.config_file.exists():
                write_json(self.config_file, dataclasses.asdict(config))
        except (PermissionError, NotADirectoryError, FileExistsError):
            raise InputError(f"the output folder '{self.path}' cannot be written: choose another `out`.") from None

    def _acquire(self) -> None:
        self._lock = acquire(self.path / ".lock")
        if self._lock is None:
            raise InputError(f"another process is training in '{self.path}': wait for it, or choose another `out`.")

    def release(self) -> None:
        """Releases the lock on the run folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_same_run(self, config: RunConfig, resume: bool) -> None:
        found = read_config(self.path)
        if not resume:
            state = "finished" if self.result_file.exists() else "unfinished"
            raise InputError(
                f"the output folder '{self.path}' holds another run ({state}: {found.algorithm}, seed {found.seed}): "
                "choose another `out`, or give `resume` to go on with that one."
            )
        ours, theirs = json.loads(json.dumps(config.identity())), json.loads(json.dumps(found.identity()))
        for name, value in ours.items():
            if value != theirs[name]:
                raise InputError(
                    f"'{self.path}' cannot be resumed: its {name.replace('_', ' ')} is {_short(theirs[name])}, but "
                    f"{_short(value)} was asked for: give the same options, or another `out`."
                )

    def trainings(self) -> list[RunFolder]:
        """This folder, and those inside it in which a first stage or a second training of the run trains."""
        inside = [RunFolder(self.path / name) for name in (STAGE_ONE, WITH_VALIDATION)]
        return [self, *(found for folder in inside if folder.path.is_dir() for found in folder.trainings())]

    def evaluated_steps(self) -> int:
        """The steps up to the last evaluation, summed over all trainings of the run."""
        records = [training.records() for training in self.trainings()]
        return sum(rows[-1].step for rows in records if rows)

    def append(self, record: Record) -> None:
        """One more row. A row cut by a kill is dropped when the run is resumed."""
        append_line(self.records_file, dataclasses.asdict(record))

    def keep_records_until(self, step: int) -> list[Record]:
        """Drops rows later than a step (written after the last checkpoint, before a kill) and of averaged weights."""
        rows = [row for row in self.records() if row.step <= step and not row.averaged]
        write_lines(self.records_file, [dataclasses.asdict(row) for row in rows])
        return rows

    def records(self) -> list[Record]:
        """The evaluations, in order; a line that a kill cut short is left out."""
        return self.read_records()[0]

    def read_records(self) -> tuple[list[Record], list[str]]:
        """The evaluations, and a note on every line that is no JSON object."""
        rows, notes = read_lines(self.records_file) if self.records_file.exists() else ([], [])
        try:
            return [Record.from_json(row) for row in rows], notes
        except TypeError as error:
            raise InputError(
                f"'{self.records_file}' has rows of another version of rcalign ({error}): report with the version that "
                "wrote it."
            ) from None

    def finish(self, result: RunResult) -> None:
        """Writes the result, which makes the run a finished one."""
        write_json(self.result_file, result.to_json())

    def step_file(self, step: int) -> Path:
        """The weights after a step, where a run keeps those of every evaluation."""
        return self.path / f"step-{step:06d}.safetensors"

    def drop_what_is_not_kept(self, keep: str, keep_state: bool = False) -> None:
        """Removes the training state of a finished run, unless it may go on, and the weights that it does not keep."""
        unwanted = {"none": [self.best_file, self.last_file], "best": [self.last_file]}.get(keep, [])
        for file in [*([] if keep_state else [self.state_file]), *unwanted]:
            file.unlink(missing_ok=True)

    def result(self) -> RunResult | None:
        """The result of a finished run, else None."""
        if not self.result_file.exists():
            return None
        try:
            return RunResult.from_json(json.loads(self.result_file.read_text()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"'{self.result_file}' is damaged ({type(error).__name__}: {error}): restore it, or remove it and go "
                "on with `resume`."
            ) from None


def read_config(path: Path | str) -> RunConfig:
    """The configuration of a run folder."""
    file = Path(path) / "config.json"
    if not file.is_file():
        inside = [part for part in sorted(Path(path).glob("*")) if (part / "config.json").is_file()]
        what = f"the run inside it, '{inside[0]}'" if len(inside) == 1 else "a folder that 'train' wrote"
        raise InputError(f"'{path}' is not a run folder (it has no config.json): give {what}.")
    try:
        values = json.loads(file.read_text())
        if values.get("format", 0) > FORMAT:
            raise InputError(f"'{path}' was written by a newer rcalign (format {values['format']}): update rcalign.")
        spec = values.pop("spec")
        known = {item.name for item in dataclasses.fields(RunConfig)}
        for name in values:
            if name not in known:
                raise unknown("field of config.json", name, known)
        for name in (name for name, about in described().items() if about.kind is tuple):
            values[name] = tuple(values.get(name, ()))
        return RunConfig(
            spec=DataSpec(
                tuple(spec["classes"]),
                tuple(spec["domains"]),
                tuple(tuple(row) for row in spec["counts"]),
                tuple(spec["input_shape"]),
                tuple(spec.get("targets", ())),
            ),
            **values,
        )
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # no JSON, no text, or other JSON than ours
        raise InputError(f"'{file}' is damaged ({type(error).__name__}: {error}): restore it or train again.") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
