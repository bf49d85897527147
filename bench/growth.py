"""How costs grow: a step with domains, classes and features, a diagnosis with rows, a report with runs, a plan.

``python -m bench.growth`` also draws ``docs/images/growth.png`` and prints the tables of ``docs/growth.md``. Times are
processor time of one thread.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.features import dataset, ready
from bench.timing import RESIDENT, Row, row
from rcalign.diagnosis import diagnose_features
from rcalign.store.sweep_folder import SweepFolder
from rcalign.sweeps.plan import expand
from rcalign.sweeps.plan_file import parse_plan, read_plan
from rcalign.training.run import make_model

SIZES: dict[str, Sequence[int]] = {
    "domains": (2, 4, 8, 16, 30),
    "classes": (2, 7, 31, 126, 345),
    "features": (512, 1024, 2048, 4096),
}
ALGORITHMS = ("ERM", "RC-Align")
STEPS, BATCH = 12, 32
ROWS = (500, 1000, 2000, 4000)
RUNS = (1_000, 10_000)
DOMAINS = ("art", "cartoon", "photo", "sketch")
METHODS = (
    "ERM",
    "IRM",
    "GroupDRO",
    "Mixup",
    "MLDG",
    "CORAL",
    "MMD",
    "DANN",
    "CDANN",
    "MTL",
    "SagNet",
    "ARM",
    "VREx",
    "RSC",
)

_REPORT = f"""{RESIDENT}
import json, sys, time
from rcalign import api
begun = time.process_time()
page = api.report(sys.argv[1], out=sys.argv[2])
seconds = time.process_time() - begun
print(json.dumps(dict(seconds=seconds, gibibytes=resident("VmHWM") / 1024)))
"""

Curve = list[tuple[int, float]]


def step_curves() -> dict[str, Curve]:
    """Milliseconds of a step by what grows: 3 source domains, 7 classes and 512 features, but for what grows."""
    found: dict[str, Curve] = {}
    for what, sizes in SIZES.items():
        for size in sizes:
            shape = {"domains": 3, "classes": 7, "features": 512} | {what: size}
            rows_of_pair = max(6, 300 // shape["classes"])
            data = dataset(shape["features"], shape["domains"] + 1, shape["classes"], rows_of_pair)
            for algorithm in ALGORITHMS:
                job = ready(data, algorithm, batch_size=BATCH)
                model = make_model(job.task, job.config)
                batches = job.task.batches(BATCH, 0, False)
                taken = []
                for batch in batches.iterate(0, STEPS):
                    begun = time.process_time()
                    model.step(batch)
                    taken.append(time.process_time() - begun)
                found.setdefault(f"{algorithm}, {what}", []).append((size, 1000 * float(np.median(taken[2:]))))
    return found


def diagnosis_curve() -> Curve:
    """Seconds of a diagnosis of 4 domains, 7 classes and 64 features by rows."""
    curve = []
    for rows in ROWS:
        rng = np.random.default_rng(0)
        y, domain = rng.integers(0, 7, rows), rng.integers(0, 4, rows)
        x = rng.normal(size=(rows, 10)) @ rng.normal(size=(10, 64)) + rng.normal(size=(7, 64))[y]
        head = 0.05 * rng.normal(size=(7, 64))
        features = np.maximum(x + 0.3 * rng.normal(size=(4, 64))[domain], 0).astype(np.float32)
        curve.append(
            (rows, _seconds(lambda f=features, y=y, d=domain, h=head: diagnose_features(f, y, d, head_weight=h)))
        )  # type: ignore[misc]
    return curve


def report_curves(sizes: Sequence[int] = RUNS) -> dict[str, Curve]:
    """Seconds, GiB and MB of the page of a report by runs; in a process of its own."""
    found: dict[str, Curve] = {"seconds": [], "gibibytes": [], "megabytes": []}
    with tempfile.TemporaryDirectory() as folder:
        for runs in sizes:
            sweep, page = Path(folder, str(runs)), Path(folder, f"{runs}.html")
            count = write_sweep(sweep, runs)
            done = subprocess.run(
                [sys.executable, "-c", _REPORT, sweep, page], capture_output=True, text=True, check=True
            )
            taken = json.loads(done.stdout.splitlines()[-1])
            for name, value in {**taken, "megabytes": page.stat().st_size / 1e6}.items():
                found[name].append((count, value))
    return found


def write_sweep(folder: Path, runs: int) -> int:
    """A finished sweep of about so many runs of a DomainBed search on one data set, each with 17 records of random
    figures: the text that a real one leaves. -> the number of runs."""
    from rcalign.training import job as jobs
    from rcalign.training.options import options_from

    per_draw = len(METHODS) * 10 * 3  # held-out domains and pairs of them, trials
    values = {"algorithms": list(METHODS), "draws": -(-runs // per_draw), "seeds": 3, "pairs": True}
    folder.mkdir()
    data = _rows(folder.parent / "rows.npz")
    sweep = parse_plan(
        {
            **values,
            "data": str(data),
            "preset": "arrays",
            "steps": 17,
            "evaluate_every": 1,
            "domains": {str(data): list(DOMAINS)},
        },
        name="growth",
    )
    entries = [sweep.entry(run) for run in expand(sweep)]
    layout = SweepFolder(folder)
    layout.begin(sweep.name, sweep.seed_rule, entries)
    rng = np.random.default_rng(0)
    templates: dict[tuple[str, ...], tuple[Any, list[Any], Any]] = {}
    for entry in entries:
        held_out = tuple(entry["test_domains"])
        path = layout.run(entry["id"]).path
        if held_out not in templates:
            path.parent.mkdir(parents=True, exist_ok=True)
            jobs.run_job(data, options_from({**entry, "device": "cpu", "keep": "none"}), out=path)
            lines = (path / "records.jsonl").read_text().splitlines()
            read = (json.loads((path / name).read_text()) for name in ("config.json", "result.json"))
            config, result = read
            templates[held_out] = (config, [json.loads(line) for line in lines], result)
            continue
        config, records, result = templates[held_out]
        path.mkdir(parents=True)
        own = {name: entry[name] for name in ("algorithm", "hparams", "seed") if name in entry}
        (path / "config.json").write_text(json.dumps({**config, **own}))
        with (path / "records.jsonl").open("w") as file:
            for record in records:
                file.write(json.dumps({**record, "validation": float(rng.uniform(0.5, 0.9))}) + "\n")
        changed = {"algorithm": entry["algorithm"], "seed": entry["seed"], "validation": float(rng.uniform(0.5, 0.9))}
        (path / "result.json").write_text(json.dumps({**result, **changed}, indent=2))
    return len(entries)


def _rows(file: Path) -> Path:
    rng = np.random.default_rng(0)
    y, domain = np.tile(np.arange(7), 80), np.repeat(np.arange(4), 140)
    x = rng.normal(size=(560, 5)) + np.eye(7, 5)[y]
    np.savez(file, x=x.astype(np.float32), y=y, domain=np.array(DOMAINS)[domain])
    return file


def planning() -> tuple[int, float]:
    """The runs of the largest recipe, and the seconds that its plan takes."""
    sweep = read_plan("domainbed")
    expand(
        parse_plan({"data": "a", "algorithms": "ERM", "preset": "domainbed", "domains": {"a": ["b", "c"]}})
    )  # imports
    found: list[int] = []
    seconds = _seconds(lambda: found.append(len(expand(sweep))))
    return found[0], seconds


def _seconds(action: Callable[[], Any]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def power(curve: Curve) -> float:
    """b of cost ~ size^b over the upper half of a curve: 1 is linear."""
    (small, less), (large, more) = curve[(len(curve) - 1) // 2], curve[-1]
    return float(np.log(more / less) / np.log(large / small))


def curve_of(curves: dict[str, Curve], what: str) -> Curve:
    """The first curve whose name has the word."""
    return next(curve for name, curve in curves.items() if what in name)


def measure() -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps, (runs, seconds) = step_curves(), planning()
        rows = [row(f"growth of a step: {name}, power", power(curve), "<= 1.1") for name, curve in steps.items()]
        rows.append(row("growth of a diagnosis with rows, power", power(diagnosis_curve()), "<= 1.1"))
        report = report_curves(RUNS[-1:])
        return [
            *rows,
            row("report of 10,000 runs: seconds", report["seconds"][0][1], "<= 30"),
            row("report of 10,000 runs: GiB", report["gibibytes"][0][1], "<= 2"),
            row("report of 10,000 runs: MB of the page", report["megabytes"][0][1], "<= 8"),
            row(f"seconds to plan {runs:,} runs", seconds, "<= 2"),
        ]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Measures all curves, prints them and draws the picture."""
    torch.set_num_threads(1)
    curves = {f"step of {name}, ms": curve for name, curve in step_curves().items()}
    print(json.dumps(curves), flush=True)
    print("plan", planning(), flush=True)
    curves["diagnosis by rows, s"] = diagnosis_curve()
    print(json.dumps(curves["diagnosis by rows, s"]), flush=True)
    report = report_curves()
    print(json.dumps(report), flush=True)
    curves["report by runs, s"] = report["seconds"]
    for name, curve in curves.items():
        print(name, f"power {power(curve):.2f}", *(f"{size:,}: {value:.3g}" for size, value in curve), sep=" | ")
    draw(curves)


def draw(curves: dict[str, Curve]) -> None:
    """Writes the picture of ``docs/growth.md``."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    figure, axes = plt.subplots(1, 5, figsize=(15, 3), layout="constrained")
    for axis, what in zip(axes, [*SIZES, "rows", "runs"], strict=True):
        for name, curve in curves.items():
            if what in name:
                axis.loglog(*zip(*curve, strict=True), "o-", label=name.removeprefix("step of ").split(",")[0])
        sizes = [size for size, _ in curve_of(curves, what)]
        axis.set_xticks(sizes, labels=[f"{size:,}" for size in sizes], fontsize=7)
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="y", which="both", labelsize=7)
        axis.set_xlabel(what)
        axis.set_ylim(bottom=axis.get_ylim()[0] / 2)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("ms of a step; s")
    figure.savefig(Path(__file__).parent.parent / "docs" / "images" / "growth.png", dpi=90)


if __name__ == "__main__":
    main()
