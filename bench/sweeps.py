"""Sweeps: runs per minute with two workers against one, the cost over a bare loop, the time to plan 10,000 runs.

Runs are ERM on frozen features of emoji, each long enough to take some seconds on one core.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from bench.timing import Row, row
from rcalign.sweeps.plan import Sweep, expand
from rcalign.sweeps.plan_file import parse_plan

RUNS = 40
STEPS = 200
PAIRS, RUNS_IN_PAIR = 3, 16  # of sweeps with one worker and with two, by turns
LOOP = """
import json, sys, time, torch
from rcalign.data import loading, source
from rcalign.training import job
from rcalign.training.options import options_from
torch.set_num_threads(1)
entries, out = json.load(open(sys.argv[1])), sys.argv[2]
data = loading.load(entries[0]["data"])  # once, as a worker does
begun = time.perf_counter()
for entry in entries:
    job.run_job(data, options_from({**entry, "device": "cpu"}), out=f"{out}/{entry['id']}")
print(time.perf_counter() - begun)
"""
SWEEP = "import sys; from rcalign import api; print(api.sweep(sys.argv[1], out=sys.argv[2], workers=int(sys.argv[3])))"


def measure(runs: int = RUNS, steps: int = STEPS) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        _sweep(_plan(1, steps), Path(folder, "warm"), 1)  # features of the frozen backbone, once
        loop, alone = _loops(_plan(runs, steps), Path(folder), 1)
        one = _sweep(_plan(runs, steps), Path(folder, "one"), 1)
        _, together = _loops(_plan(RUNS_IN_PAIR, steps), Path(folder), 2)
        gain = statistics.median(_gain(Path(folder), k, _plan(RUNS_IN_PAIR, steps)) for k in range(PAIRS))
    machine = 2 * (alone / runs) / (together / RUNS_IN_PAIR)
    return [
        row("sweep: runs per minute, two workers / one", gain, ">= 1.8"),
        row("the same of bare loops, two at once / one: what the machine gives", machine),
        row(f"sweep: {runs} runs, one worker / a bare loop, start included", one / loop, "<= 1.1"),
        row("sweep: seconds to plan 10,000 runs", _planning(), "<= 2"),
    ]


def _plan(runs: int, steps: int) -> str:
    return (
        f'data = "emoji"\nalgorithms = "ERM"\npreset = "arrays"\nfreeze_backbone = true\ntest_domains = ["windows"]\n'
        f"draws = {runs}\nsteps = {steps}\nevaluate_every = 50\nhparams.batch_size = 64\n"
        '[domains]\nemoji = ["windows", "apple"]\n'
    )


def _sweep(plan: str, out: Path, workers: int) -> float:
    """Seconds of a sweep, from the start of its process to the end."""
    file = out.with_suffix(".toml")
    file.write_text(plan)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", SWEEP, file, out, str(workers)], check=True, capture_output=True)
    return time.perf_counter() - begun


def _loops(plan: str, folder: Path, at_once: int) -> tuple[float, float]:
    """Seconds of the same runs one after another in a process that loads its data once, or in several at once, each
    with all of them: from start to end, and of the runs alone."""
    sweep = parse_plan(tomllib.loads(plan))
    (folder / "entries.json").write_text(json.dumps([sweep.entry(run) for run in expand(sweep)]))
    begun = time.perf_counter()
    command = [sys.executable, "-c", LOOP, str(folder / "entries.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*command, str(folder / f"loop-{at_once}-{k}")], stdout=subprocess.PIPE, env=environment)
        for k in range(at_once)
    ]
    printed = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started), "a bare loop failed"
    return time.perf_counter() - begun, max(float(line.splitlines()[-1]) for line in printed)


def _gain(folder: Path, pair: int, plan: str) -> float:
    """Runs per second with two workers over those with one, measured one soon after the other."""
    rates = {}
    for workers in (1, 2) if pair % 2 == 0 else (2, 1):
        out = folder / f"pair-{pair}-{workers}"
        _sweep(plan, out, workers)
        rates[workers] = _rate(out, workers)
    return rates[2] / rates[1]


def _rate(folder: Path, workers: int) -> float:
    """Runs per second from the moment when every worker has finished its first."""
    ends = sorted(file.stat().st_mtime for file in folder.glob("runs/*/result.json"))
    return (len(ends) - workers) / (ends[-1] - ends[workers - 1])


def _planning() -> float:
    sweep = _ten_thousand()
    begun = time.perf_counter()
    assert len(expand(sweep)) == 10_080
    return time.perf_counter() - begun


def _ten_thousand() -> Sweep:
    """DomainBed's protocol on three sets of four domains."""
    data = ["VLCS", "PACS", "OfficeHome"]
    algorithms = ["ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM"]
    return parse_plan(
        {
            "data": data,
            "algorithms": [*algorithms, "VREx", "RSC"],
            "preset": "domainbed",
            "draws": 20,
            "seeds": 3,
            "domains": {name: ["a", "b", "c", "d"] for name in data},
        }
    )
