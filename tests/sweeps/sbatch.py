"""Stands in for Slurm's ``sbatch``, which no machine that runs the tests has: starts the tasks of an array job, all at
once, as processes of their own, with the script, options, signals and log files that Slurm would use.

Its options and the numbers of its processes go to ``sbatch.jsonl`` in the folder of $FAKE_SLURM. The partition "closed"
is refused, as Slurm does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--parsable", action="store_true")
    parser.add_argument("--partition")
    parser.add_argument("--time")
    parser.add_argument("script", type=Path)
    given = parser.parse_args()
    if given.partition == "closed":
        sys.exit("sbatch: error: invalid partition specified: closed")
    lines = given.script.read_text().splitlines()
    said = [line.removeprefix("#SBATCH --").split("=", 1) for line in lines if line.startswith("#SBATCH --")]
    options = {pair[0]: pair[1] if len(pair) > 1 else None for pair in said}
    book = Path(os.environ["FAKE_SLURM"], "sbatch.jsonl")
    number = 100 + (len(book.read_text().splitlines()) if book.exists() else 0)
    first, _, last = options["array"].partition("-")
    pids = []
    for task in range(int(first), int(last) + 1):
        file = options["output"].strip("'").replace("%A", str(number)).replace("%a", str(task)).replace("%%", "%")
        with open(file, "a") as output:
            started = subprocess.Popen(
                ["bash", given.script],
                env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_JOB_ID": str(number)},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        pids.append(started.pid)
    with book.open("a") as file:
        file.write(json.dumps({"number": number, "pids": pids, "options": options, "time": given.time}) + "\n")
    print(f"{number};cluster" if given.parsable else f"Submitted batch job {number}")


main()
