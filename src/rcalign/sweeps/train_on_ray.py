"""One run on several workers through Ray Train: the cores or GPUs of this machine, or of a cluster by its address.

Ray starts the workers, connects them (torch's process group) and starts them again when one dies; the run then goes on
from its last checkpoint in the run folder, which all workers must see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import train as ray_train
from ray.train.torch import TorchConfig, TorchTrainer
from rich.console import Console
from rich.progress import Progress

from rcalign.distributed import SILENCE_SECONDS, any_worker, workers
from rcalign.errors import DivergedError, InputError
from rcalign.extensions import import_modules
from rcalign.store.run_folder import RunFolder, read_config
from rcalign.sweeps.resources import Resources
from rcalign.sweeps.run_on_ray import connected
from rcalign.training import job
from rcalign.training.loop import Interrupted
from rcalign.training.options import TrainOptions, options_from

RESTARTS = 3  # of the workers, when one of them dies
LOOK_EVERY = 1.0  # seconds between looks at how far the run is


def train_on_workers(
    data: str | Path,
    options: TrainOptions,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """What ``job.run_job`` does, on ``options.workers`` processes; to the same result up to the order of summation."""
    import_modules(options.imports)
    out = Path(os.path.abspath(out if out is not None else job.default_folder(job.located(data), options)))
    scratch = out.parent / f".{out.name}.workers"
    shutil.rmtree(scratch, ignore_errors=True)  # of a driver that was killed
    with connected(Resources(address=options.ray, workers=options.workers)):
        gpus = _gpus(options)
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "data": job.located(data),
                "options": json.dumps(dataclasses.asdict(options.replace(ray=None))),
                "out": str(out),
                "resume": resume,
                "begun": str(scratch / "begun"),
            },
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=SILENCE_SECONDS),
            scaling_config=ray_train.ScalingConfig(num_workers=options.workers, use_gpu=gpus),
            run_config=ray_train.RunConfig(
                name="run",
                storage_path=str(scratch),
                failure_config=ray_train.FailureConfig(max_failures=RESTARTS),
            ),
        )
        try:
            with _shown(out, progress):
                outcome = trainer.fit()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    said = (outcome.metrics or {}).get("problem")
    if said:
        kind, _, message = said.partition(" ")
        raise {"DivergedError": DivergedError, "InputError": InputError}[kind](message)
    result = RunFolder(out).result()
    if result is None:
        raise Interrupted(read_config(out).steps if outcome.metrics is None else int(outcome.metrics["step"]))
    return {**result.to_json(), "folder": str(out)}


def _work(settings: dict[str, Any]) -> None:
    """What each worker does. User errors are returned to the driver: a retry would not fix them."""
    out = Path(settings["out"])
    options = options_from(json.loads(settings["options"]))
    begun = Path(settings["begun"])  # by workers of which one died
    resume = settings["resume"] or begun.exists()
    if not any_worker(False) and workers().is_first:  # once all have looked
        begun.touch()
    problem, step = "", 0
    try:
        job.run_job(settings["data"], options, out=out, resume=resume)
    except (InputError, DivergedError) as error:
        problem = f"{type(error).__name__} {error}"
    except Interrupted as stop:
        step = stop.step
    ray_train.report({"problem": problem, "step": step})


def _gpus(options: TrainOptions) -> bool:
    """Whether workers get a GPU each; what is not there is said at once instead of waited for."""
    has = ray.cluster_resources()
    wanted = options.device.startswith("cuda") or (options.device == "auto" and has.get("GPU", 0) >= options.workers)
    kind, found = ("GPU", has.get("GPU", 0)) if wanted else ("CPU", has.get("CPU", 0))
    if found < options.workers:
        raise InputError(f"`workers` is {options.workers}, but there are {found:g} {kind}s: ask for fewer workers.")
    return wanted


@contextlib.contextmanager
def _shown(out: Path, progress: bool) -> Iterator[None]:
    """A bar that follows the records of the run, which the workers write in other processes."""
    done = threading.Event()

    def follow() -> None:
        with Progress(console=Console(stderr=True), disable=not progress) as bar:
            line = bar.add_task("starting workers", total=None)
            while not done.wait(LOOK_EVERY):
                with contextlib.suppress(InputError, OSError):  # not begun, or being written
                    config, rows = read_config(out), RunFolder(out).records()
                    bar.update(line, description=config.algorithm, total=config.steps)
                    if rows:
                        text = f"{config.algorithm}, validation {100 * rows[-1].validation:.1f} %"
                        bar.update(line, completed=rows[-1].step, description=text)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
