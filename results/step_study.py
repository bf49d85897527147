"""The final table of the changed step: which runs, in which order, and their records. See docs/results/protocol.md.

Every row of the table has a file of records, one line for each run and reading (without and with SWAD), written as runs
end; a run whose lines are there is not made again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rcalign import registry, spaces
from rcalign.store.run_folder import RunFolder
from rcalign.training.run import hparams_of
from rcalign.training.task import Task
from rcalign.training.tracking import Tracker, read_tracking
from results import late, plans, quick

STEPS, EVERY, BATCH = 120, 12, 32
SEEDS = (0, 1, 2)
DRAWS = 2
AVERAGES: dict[str | None, str] = {None: "", "swad": " + SWAD", "polynomial": " + polynomial"}

# the paper's Algorithm 1 and 2 as this project reads them: what the preset rc-align keeps
PAPER = {**plans.PAPER, "warm_up": 0, "centroids": "batch"}
OURS: dict[str, Any] = {
    "meta_step": "optimizer",
    "episode_weights": "balanced",
    "mixup_alpha": 0.0,
    "logit_adjustment": 1.0,
    "target_prior": "expected",
}
THIRD: dict[str, Any] = {  # the candidate of the third look
    "meta_step": "optimizer",
    "episode_weights": "balanced",
    "mixup_alpha": 2.0,
    "logit_adjustment": 1.0,
    "target_prior": "cross_validated",
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ERM": ("ERM", {}),
    "BSoftmax": ("BSoftmax", {}),
    "RC-Align (paper)": ("RC-Align", PAPER),
    "RC-Align (ours)": ("RC-Align", OURS),
    "RC-Align (ours), unadjusted": ("RC-Align", {**OURS, "logit_adjustment": 0.0}),
    "RC-Align (ours), equal shares": ("RC-Align", {**OURS, "target_prior": "equal"}),
    "CORAL": ("CORAL", {}),
    "Fish": ("Fish", {}),
    "SAGM": ("SAGM", {}),
    "GMDG": ("GMDG", {}),
    "MLDG": ("MLDG", {}),
}
ABLATION = {  # the paper's, at the paper's settings: M = meta step, DA = alignment
    "M": ("RC-Align", {**PAPER, "alignment_weight": 0.0, "mixup_alpha": 0.0}),
    "DA": ("RC-Align", {**PAPER, "meta": False, "mixup_alpha": 0.0}),
    "M + DA": ("RC-Align", {**PAPER, "mixup_alpha": 0.0}),
}
IMAGE_METHODS = {**METHODS, "RC-Align (third)": ("RC-Align", THIRD)}
SETTINGS = {"late": (150, 12, 2e-4), "whole": (600, 8, 1e-4)}  # steps, images per domain, learning rate
WHOLE = (
    "ERM",
    "RC-Align (ours), equal shares",
    "RC-Align (paper)",
    "BSoftmax",
    "CORAL",
    "Fish",
    "SAGM",
    "RC-Align (third)",
)
THREE_SEEDS = ("ERM", "RC-Align (paper)", "CORAL")  # of these; the others have the first only
LATE = ("ERM", "RC-Align (paper)", "RC-Align (ours)", "BSoftmax", "Fish", "SAGM", "CORAL")


@dataclass(frozen=True)
class Row:
    """A row of the table. held_out: one run for each; under ``mdlt`` a single run with none."""

    data: str
    protocol: str
    held_out: tuple[str | None, ...]
    compound: bool


ROWS = {
    "pacs": Row("PACS", "lodo", ("art_painting", "sketch"), False),
    "emoji": Row("emoji", "lodo", ("windows", "twitter"), False),
    "pacs-mlt": Row("PACS-MLT", "mdlt", (None,), True),
    "emoji-mlt": Row("emoji-mlt", "lodo", ("windows", "twitter"), True),
    "hearts": Row("hearts", "lodo", ("cleveland", "hungarian", "switzerland", "va"), True),
    "sentiment": Row("sentiment", "lodo", ("amazon", "movies", "nyt", "tweets"), True),
}


def methods_of(row: str) -> dict[str, tuple[str, dict[str, Any]]]:
    return {**METHODS, **ABLATION} if row == "pacs" else METHODS


def hparams(label: str, draw: int, methods: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Draw 0: the defaults; the others from the method's own ranges, the same draws of what methods share."""
    algorithm, fixed = methods[label]
    entry = registry.get(algorithm)
    fixed = {"batch_size": BATCH, **fixed}
    if algorithm == "RC-Align" and "mixup_alpha" not in fixed:  # the paper's range, whatever the default is
        fixed["mixup_alpha"] = 0.2 if draw == 0 else spaces.sample_value(spaces.Uniform(0.1, 1.0), draw, "mixup_alpha")
    if draw == 0:
        return asdict(hparams_of(entry, "arrays", fixed))
    return asdict(spaces.draw(entry.algorithm.Hparams, "arrays", draw, **fixed))


def run_row(name: str, file: Path, seed: int, say: Callable[[str], None] = print) -> None:
    """What is missing of one seed of a row: the search (seed 0), or the winners of the search again."""
    row, methods = ROWS[name], methods_of(name)
    for held_out in row.held_out:

        @cache
        def task(held_out: str | None = held_out) -> Task:
            held = [] if held_out is None else [held_out]
            return quick.features_task(row.data, row.protocol, held, seed, 112 if row.data.startswith("PACS") else None)

        for label, (algorithm, _) in methods.items():
            for draw in range(DRAWS) if seed == 0 else sorted(set(winners(file, held_out, label).values())):
                where = {"row": name, "held_out": held_out, "method": label, "draw": draw, "seed": seed}
                if any(all(line[key] == value for key, value in where.items()) for line in lines_of(file)):
                    continue
                options = recorded(file, held_out, label, draw) or hparams(label, draw, methods)
                found = quick.train(task(), algorithm, options, steps=STEPS, every=EVERY, seed=seed)
                append(file, where, found, options if seed == 0 else None)
                say(f"{name} {held_out} {label} draw {draw} seed {seed}")


def recorded(file: Path, held_out: str | None, label: str, draw: int) -> dict[str, Any] | None:
    """The hyperparameters of a draw as the search had them, if it was made: ranges may have changed since."""
    for line in lines_of(file):
        if (line["held_out"], line["method"], line["draw"]) == (held_out, label, draw) and "hparams" in line:
            return dict(line["hparams"])
    return None


def winners(file: Path, held_out: str | None, label: str) -> dict[str, int]:
    """average -> the draw of seed 0 with the best validation accuracy; the first of equals."""
    found: dict[str, tuple[float, int]] = {}
    for line in lines_of(file):
        if (line["held_out"], line["method"], line["seed"]) == (held_out, label, 0):
            best = found.get(line["average"], (-1.0, 0))
            if line["validation"] > best[0]:
                found[line["average"]] = (line["validation"], line["draw"])
    return {average: draw for average, (_, draw) in found.items()}


def chosen(file: Path) -> Iterator[dict[str, Any]]:
    """The lines that count: of every seed, those of the draw that the search chose."""
    for line in lines_of(file):
        if winners(file, line["held_out"], line["method"])[line["average"]] == line["draw"]:
            yield line


def run_images(kind: str, file: Path, held_out: str, seed: int, labels: Sequence[str] = LATE) -> None:
    """What is missing of fine-tuning on PACS: ``late`` stages or the ``whole`` backbone. No search."""
    steps, batch, rate = SETTINGS[kind]
    task: Task | None = None
    for label in labels:
        algorithm, fixed = IMAGE_METHODS[label]
        where = {"row": kind, "held_out": held_out, "method": label, "draw": 0, "seed": seed}
        if any(all(line[key] == value for key, value in where.items()) for line in lines_of(file)):
            continue
        if task is None:
            made = late.late_task if kind == "late" else late.whole_task
            task = made("PACS", [held_out], seed, size=112, most=1200)
        options = {"batch_size": batch, "learning_rate": rate, **fixed}
        found = quick.train(task, algorithm, options, steps=steps, every=steps // 6, seed=seed, preset="default")
        append(file, where, found, options)


GAP_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
GAP_METHODS = {"ERM": METHODS["ERM"], "DA": ABLATION["DA"], "RC-Align (paper)": METHODS["RC-Align (paper)"]}
GAP_EVERY = 10


def run_gap(file: Path) -> None:
    """Alignment loss and generalisation gap along training on PACS, of all rows, for each domain held out; one seed."""
    for held_out in GAP_DOMAINS:
        task: Task | None = None
        for label, (algorithm, fixed) in GAP_METHODS.items():
            where = {"data": "PACS", "held_out": held_out, "label": label, "seed": 0}
            if any(all(line[key] == value for key, value in where.items()) for line in lines_of(file)):
                continue
            task = task or quick.features_task("PACS", "lodo", [held_out], 0, 112)
            with tempfile.TemporaryDirectory() as folder:
                tracker = Tracker(task, RunFolder(folder), GAP_EVERY)
                options = {"batch_size": BATCH, **fixed}
                follow = tracker.record
                quick.train(task, algorithm, options, steps=STEPS, every=STEPS, seed=0, averages=(), after_step=follow)
                rows = read_tracking(Path(folder) / "tracking.jsonl")
            tracked = [[row["step"], row["target"], row["alignment"], row["gap"]] for row in rows]
            with file.open("a") as out:
                out.write(json.dumps({**where, "tracking": _short(tracked)}) + "\n")


def append(
    file: Path,
    where: Mapping[str, Any],
    found: Mapping[str | None, Mapping[str, Any]],
    options: Mapping[str, Any] | None,
) -> None:
    kept = ("validation", "accuracy", "balanced", "seconds")
    with file.open("a") as out:
        for average, result in found.items():
            line = {**where, "average": average or "", **{key: _short(result[key]) for key in kept}}
            if options is not None and average is None:
                line["hparams"] = _short(options)
            out.write(json.dumps(line) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, list):
        return [_short(item) for item in value]
    return {key: _short(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
