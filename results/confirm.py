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
AFTERWARDS: dict[str, tuple[str, dict[str, Any]]] = {  # looked at when the outcome was known; seeds 0 and 1
    "RC-Align (second), expected shares": ("RC-Align", {**CANDIDATE, "target_prior": "expected"}),
    "RC-Align (second), unadjusted": ("RC-Align", {**CANDIDATE, "logit_adjustment": 0.0}),
    "RC-Align (second), expected shares, no mixup": (
        "RC-Align",
        {**CANDIDATE, "target_prior": "expected", "mixup_alpha": 0.0},
    ),
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: study.METHODS[name] for name in ("ERM", "BSoftmax", "CORAL", "Fish", "SAGM", PAPER)},
    OURS: ("RC-Align", dict(CANDIDATE)),
}


def run(
    file: Path,
    seed: int,
    say: Callable[[str], None] = print,
    methods: Mapping[str, tuple[str, dict[str, Any]]] = METHODS,
) -> None:
    """What is missing of one seed, all data sets and methods."""
    done = {(line["row"], line["held_out"], line["method"], line["seed"]) for line in study.lines_of(file)}
    for row, domains in ROWS.items():
        for held_out in domains:

            @cache
            def task(row: str = row, held_out: str = held_out) -> Task:
                return quick.features_task(
                    str(default_data_root() / "new" / f"{row}.npz"), "lodo", [held_out], seed, None
                )

            for label, (algorithm, fixed) in methods.items():
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
    parts += _afterwards(lines, study.lines_of(records / "confirm-afterwards.jsonl"))
    parts += _second_round(study.lines_of(records / "development-second.jsonl"))
    write_whole(out / "confirm.md", "\n".join(parts).encode())


def _afterwards(lines: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[str]:
    """The variants that were looked at when the outcome was known."""
    if not more:
        return []
    figures = Figures([*lines, *more], [*METHODS, *AFTERWARDS])
    labels = [label for label in figures.values if label.startswith("RC-Align")]
    labels.sort(key=lambda label: -figures.mean(label))
    table = []
    for label in labels:
        gaps = [figures.against(label, BASELINE, [row]).mean for row in figures.rows]
        table.append([label, *(f"{gap:+.1f}" for gap in gaps), str(figures.against(label, BASELINE))])
    return [
        "## Looked at afterwards",
        f"Differences to ERM, seeds {', '.join(map(str, figures.seeds))}. These variants were run when the table above "
        "was known: they explain, they prove nothing.\n",
        markdown(["method", *figures.rows, "mean (95 %)"], table),
    ]


def _second_round(lines: list[dict[str, Any]]) -> list[str]:
    """How the second candidate was found: differences to ERM on the data that had become development data."""
    found: dict[tuple[str, str], dict[tuple[str, str, int], float]] = {}
    for line in lines:
        key = (line["row"], line["held_out"], line["seed"])
        found.setdefault((line["method"], line["average"]), {})[key] = line["accuracy"]
    erm = found[BASELINE, ""]
    rows = sorted({key[0] for key in erm})
    table = []
    for (method, average), values in found.items():
        cells: list[float | None] = []
        for row in rows:
            gaps = [value - erm[key] for key, value in values.items() if key[0] == row]
            cells.append(sum(gaps) / len(gaps) if gaps else None)
        known = [cell for cell in cells if cell is not None]
        shown = [f"{cell:+.1f}" if cell is not None else "–" for cell in cells]
        mean = sum(known) / len(known)
        table.append((mean, [method, average or "–", *shown, f"{mean:+.1f}", str(len(values))]))
    table.sort(key=lambda item: -item[0])
    return [
        "## How the second candidate was found",
        "Differences to ERM as it is, on what had become development data, seeds 10 to 12, one or two runs in a cell "
        "(the last column counts all). Lines with fewer runs are over other domains: compare lines of one number.\n",
        markdown(["variant", "average", *rows, "mean", "runs"], [cells for _, cells in table]),
    ]
