"""A sweep as an array job of Slurm's: every task joins the sweep (``sweeps/join.py``); nothing else needs to run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.store.sweep_folder import SweepFolder
from rcalign.sweeps.address import last_line

MOST_TASKS = 16  # of an array, where nobody says
SAVE_BEFORE_END = 120  # seconds before the time limit at which a task is told to save its state
OURS = ("--array", "-a", "--parsable", "--wrap")  # options of sbatch that are decided here


@dataclass(frozen=True)
class SlurmJob:
    """A submitted array job: its number, how many tasks it has, and the script that they run."""

    number: str
    tasks: int
    script: str


def check_slurm(options: str, gpus_per_run: float, tasks: int | None) -> list[str]:
    """The options for ``sbatch`` as words; what is wrong with them, or a missing ``sbatch``, is an ``InputError``.

    >>> check_slurm("--array=0-3", 0, None)
    Traceback (most recent call last):
    rcalign.errors.InputError: `slurm` has --array, which is decided here: leave it out, or give `slurm_tasks`.
    """
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise InputError(
            f"`slurm` is '{options}', which cannot be read as options ({error}): quote as in a shell."
        ) from None
    for word in words:
        if word.partition("=")[0] in OURS:
            name = word.partition("=")[0]
            raise InputError(f"`slurm` has {name}, which is decided here: leave it out, or give `slurm_tasks`.")
    if words and not words[0].startswith("-"):
        raise InputError(
            f"`slurm` begins with '{words[0]}', but options of sbatch are expected, such as '--time 8:00:00'."
        )
    if gpus_per_run != int(gpus_per_run):
        raise InputError(f"`gpus_per_run` is {gpus_per_run}, but a task of Slurm has whole GPUs: give a whole number.")
    if tasks is not None and tasks < 1:
        raise InputError(f"`slurm_tasks` is {tasks}, but must be at least 1.")
    if shutil.which("sbatch") is None:
        raise InputError("there is no 'sbatch' on this machine: give the command on a login node of the cluster.")
    return words


def submit(
    plan: str | Path,
    folder: SweepFolder,
    options: Sequence[str],
    *,
    left: int,
    tasks: int | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float = 0.0,
    keep: str | None = None,
) -> SlurmJob:
    """Writes the script of an array job into the folder and submits it. left: runs that are not trained yet."""
    count = min(left, MOST_TASKS if tasks is None else tasks)
    script = folder.path.resolve() / "slurm" / "job.sh"
    script.parent.mkdir(exist_ok=True)
    more = [f"--gpus-per-run={gpus_per_run:g}"] if gpus_per_run else []
    more += [f"--keep={keep}"] if keep is not None else []
    command = [sys.executable, "-m", "rcalign", "sweep", _absolute(plan), "--out", str(folder.path.resolve())]
    command += ["--join", f"--cpus-per-run={cpus_per_run}", *more]
    asks_for_gpus = any(re.match(r"(--gpus|--gres|-G)", word) for word in options)
    gres = f"#SBATCH --gres=gpu:{int(gpus_per_run)}\n" if gpus_per_run and not asks_for_gpus else ""
    text = f"""#!/bin/bash
#SBATCH --job-name={re.sub(r"[^A-Za-z0-9_.-]", "-", "rcalign-" + folder.path.resolve().name)}
#SBATCH --array=0-{count - 1}
#SBATCH --cpus-per-task={cpus_per_run}
{gres}#SBATCH --output={shlex.quote(str(script.parent).replace("%", "%%") + "/%A_%a.log")}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@{SAVE_BEFORE_END}
# exec: the signal that comes before the time limit must reach the training itself
exec {shlex.join(command)}
"""
    write_whole(script, text.encode())
    words = ["sbatch", "--parsable", *options, str(script)]
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode != 0:
        said = last_line(ended.stderr or ended.stdout or f"code {ended.returncode}")
        raise InputError(f"sbatch refused the job ({said}): correct `slurm`, then give the same command again.")
    number = ended.stdout.strip().splitlines()[-1].partition(";")[0] if ended.stdout.strip() else "?"
    return SlurmJob(number, count, str(script))


def task_device(gpus_per_run: float) -> str:
    """Where a process that joined a sweep trains: on a GPU if it was given one, by us or by Slurm."""
    given = gpus_per_run > 0 or os.environ.get("SLURM_JOB_GPUS") or os.environ.get("SLURM_STEP_GPUS")
    return "auto" if given else "cpu"


def _absolute(plan: str | Path) -> str:
    return str(Path(plan).resolve()) if Path(plan).is_file() else str(plan)  # else the name of a recipe
