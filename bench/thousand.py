"""Hours of a sweep of 1,000 frozen runs, with this code and with that of an earlier commit, from a smaller sweep.

    python -m bench.thousand --before 3732fc4 --runs 40

Half of the runs are ERM, half RC-Align, 300 steps each on frozen features of emoji. Sweeps with one worker and two,
before and after, take turns; from the rate of finished runs, once every worker has finished one, follows what 1,000 of
them take. For a machine that does nothing else: it is not part of ``make bench``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).parent.parent
SWEEP = "import sys; from rcalign import api; api.sweep(sys.argv[1], out=sys.argv[2], workers=int(sys.argv[3]))"


def plan(runs: int) -> str:
    return (
        'data = "emoji"\nalgorithms = ["ERM", "RC-Align"]\npreset = "arrays"\nfreeze_backbone = true\n'
        f'test_domains = ["windows"]\ndraws = {runs // 2}\nsteps = 300\nevaluate_every = 100\nhparams.batch_size = 64\n'
        '[domains]\nemoji = ["windows", "apple", "google", "twitter"]\n'
    )


def rate(code: Path, runs: int, workers: int, folder: Path) -> float:
    """Runs per second, from the moment when every worker has finished its first."""
    file = folder / "plan.toml"
    file.write_text(plan(runs))
    out = folder / f"{time.time_ns()}"
    environment = {**os.environ, "PYTHONPATH": str(code / "src")}
    command = [sys.executable, "-c", SWEEP, str(file), str(out), str(workers)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    ends = sorted(found.stat().st_mtime for found in out.glob("runs/*/result.json"))
    return (len(ends) - workers) / (ends[-1] - ends[workers - 1])


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--before", required=True, help="a commit")
    about.add_argument("--runs", type=int, default=40)
    about.add_argument("--rounds", type=int, default=2)
    asked = about.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "before")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(old), asked.before], check=True)
        try:
            codes = {f"before ({asked.before})": old, "now": ROOT}
            found: dict[tuple[str, int], list[float]] = {(name, k): [] for name in codes for k in (1, 2)}
            with Progress(console=Console(stderr=True)) as progress:
                bar = progress.add_task("features of the frozen backbone", total=2 + asked.rounds * len(found))
                for code in codes.values():
                    rate(code, 4, 1, Path(folder))
                    progress.advance(bar)
                for turn in range(asked.rounds):
                    for name, workers in list(found) if turn % 2 == 0 else reversed(list(found)):
                        progress.update(bar, description=f"{asked.runs} runs, {name}, {workers} at once")
                        found[name, workers].append(rate(codes[name], asked.runs, workers, Path(folder)))
                        progress.advance(bar)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    for name in codes:
        one, two = (statistics.median(found[name, workers]) for workers in (1, 2))
        print(
            f"{name}: 1,000 runs in {1000 / one / 60:.0f} min with one worker, {1000 / two / 60:.0f} with two", end=""
        )
        print(f" ({two / one:.2f} times as fast)")


if __name__ == "__main__":
    main()
