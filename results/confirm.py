"""The second look at the changed step: five data sets that took no part in its making, no search, defaults only.

Rules: docs/results/protocol.md. The data come from ``python -m results.new_data``; records: records/confirm.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rcalign.files import write_whole
from rcalign.store.places import default_data_root
from rcalign.training.task import Task
from results import quick
from results import step_study as study
from results.step_pages import BASELINE, Figures, best_baseline, holm
from results.tables import markdown

SEEDS = (0, 1, 2)
AVERAGES = ("swad", "polynomial")
ROWS: dict[str, tuple[str, ...]] = {  # data set -> its domains, each left out in turn
    "gas": ("batch1", "batch2", "batch3", "batch4", "batch5", "batch6", "batch8", "batch9"),
    "spam": ("Eminem", "KatyPerry", "LMFAO", "Psy", "Shakira"),
    "reviews": ("amazon", "imdb", "yelp"),
    "digits": ("mnist", "optdigits", "usps"),
    "students": ("GP-mat", "GP-por", "MS-mat", "MS-por"),
}
COMPOUND = ("gas", "students")  # class shares differ between domains
CANDIDATE: Mapping[str, Any] = {
    "meta_step": "optimizer",
    "episode_weights": "balanced",
    "mixup_alpha": 0.2,
    "logit_adjustment": 1.0,
    "target_prior": "equal",
}
OURS, OURS_AVERAGED, PAPER = "RC-Align (second)", "RC-Align (second) + polynomial", "RC-Align (paper)"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: study.METHODS[name] for name in ("ERM", "BSoftmax", "CORAL", "Fish", "SAGM", PAPER)},
    OURS: ("RC-Align", dict(CANDIDATE)),
}


def run(file: Path, seed: int, say: Callable[[str], None] = print) -> None:
    """What is missing of one seed, all data sets and methods."""
    done = {(line["row"], line["held_out"], line["method"], line["seed"]) for line in study.lines_of(file)}
    for row, domains in ROWS.items():
        for held_out in domains:

            @cache
            def task(row: str = row, held_out: str = held_out) -> Task:
                return quick.features_task(
                    str(default_data_root() / "new" / f"{row}.npz"), "lodo", [held_out], seed, None
                )

            for label, (algorithm, fixed) in METHODS.items():
                if (row, held_out, label, seed) in done:
                    continue
                options = {"batch_size": study.BATCH, **fixed}
                found = quick.train(
                    task(), algorithm, options, steps=study.STEPS, every=study.EVERY, seed=seed, averages=AVERAGES
                )
                where = {"row": row, "held_out": held_out, "method": label, "draw": 0, "seed": seed}
                study.append(file, where, found, options if seed == 0 else None)
                say(f"{row} {held_out} {label} seed {seed}")


def write_page(records: Path, out: Path) -> None:
    """confirm.md, from its records."""
    file = records / "confirm.jsonl"
    if not file.exists():
        return
    lines = study.lines_of(file)
    figures, balanced = Figures(lines, METHODS), Figures(lines, METHODS, "balanced")
    labels = sorted(figures.values, key=lambda label: -figures.mean(label))
    gaps = {label: figures.against(label, BASELINE) for label in labels if label != BASELINE}
    corrected = holm({label: gap.p for label, gap in gaps.items()})
    table = []
    for label in labels:
        gap = gaps.get(label)
        more = ["", "", ""] if gap is None else [str(gap), f"{corrected[label]:.2f}", gap.verdict]
        cells = [f"{figures.mean(label, row):.1f}" for row in figures.rows]
        table.append([label, *cells, f"{figures.mean(label):.1f}", f"{balanced.mean(label):.1f}", *more])
    header = ["method", *figures.rows, "mean", "balanced", "− ERM (95 %)", "p (Holm)", ""]
    rows = []
    for row in figures.rows:
        best = best_baseline(figures, [row])
        for label in (OURS, OURS_AVERAGED):
            found = [figures.against(label, other, [row]) for other in (BASELINE, PAPER, best)]
            rows.append([row, label, *(f"{gap} {gap.verdict}" for gap in found), best])
    parts = [
        "# The changed step on data that nobody tuned",
        "Made by `make results STUDY=confirm` from `records/confirm.jsonl`, by rules written before: "
        f"[protocol.md](protocol.md#the-second-look). Accuracy in per cent on the domain left out, seeds "
        f"{', '.join(map(str, figures.seeds))}, defaults, no search. Class shares differ between domains in "
        f"{' and '.join(COMPOUND)}.\n",
        markdown(header, table),
        "## Row by row",
        markdown(["row", "method", "− ERM", "− paper", "− best baseline", "which"], rows),
    ]
    write_whole(out / "confirm.md", "\n".join(parts).encode())
