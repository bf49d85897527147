"""The second and the third look at the changed step: each on five data sets that took no part in its making, without
search, defaults only.

Rules: docs/results/protocol.md. The data come from ``python -m results.new_data``; records: records/confirm.jsonl and
records/confirm-third.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
PAPER = "RC-Align (paper)"
BASELINES = ("ERM", "BSoftmax", "CORAL", "Fish", "SAGM", PAPER)


@dataclass(frozen=True)
class Look:
    """rows: data set -> its domains, each left out in turn. compound: those where class shares differ. candidate: its
    hyperparameters; average: the weight averaging that belongs to it.
    """

    name: str
    rows: Mapping[str, tuple[str, ...]]
    compound: tuple[str, ...]
    candidate: Mapping[str, Any]
    average: str
    averages: tuple[str, ...] = ("swad", "polynomial")
    baselines: tuple[str, ...] = BASELINES

    @property
    def ours(self) -> str:
        return f"RC-Align ({self.name})"

    @property
    def ours_averaged(self) -> str:
        return self.ours + study.AVERAGES[self.average]

    @property
    def methods(self) -> dict[str, tuple[str, dict[str, Any]]]:
        return {**{name: study.METHODS[name] for name in self.baselines}, self.ours: ("RC-Align", dict(self.candidate))}


SECOND = Look(
    "second",
    rows={
        "gas": ("batch1", "batch2", "batch3", "batch4", "batch5", "batch6", "batch8", "batch9"),
        "spam": ("Eminem", "KatyPerry", "LMFAO", "Psy", "Shakira"),
        "reviews": ("amazon", "imdb", "yelp"),
        "digits": ("mnist", "optdigits", "usps"),
        "students": ("GP-mat", "GP-por", "MS-mat", "MS-por"),
    },
    compound=("gas", "students"),
    candidate={
        "meta_step": "optimizer",
        "episode_weights": "balanced",
        "mixup_alpha": 0.2,
        "logit_adjustment": 1.0,
        "target_prior": "equal",
    },
    average="polynomial",
)
THIRD = Look(
    "third",
    rows={
        "airlines": ("American", "Delta", "Southwest", "US Airways", "United", "Virgin America"),
        "incomes": ("Federal-gov", "Local-gov", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov"),
        "hotels": ("DEU", "ESP", "FRA", "GBR", "IRL", "PRT"),
        "unions": ("Construction", "Manufacturing", "Professional_and_Related Service", "Trade", "Transportation"),
        "patients": ("midwest", "noreast", "other", "west"),
    },
    compound=("airlines", "incomes", "hotels", "unions"),
    candidate=study.THIRD,
    average="swad",
    averages=("swad",),
    baselines=("ERM", "BSoftmax", "CORAL", "Fish", PAPER),
)
AFTERWARDS: dict[str, tuple[str, dict[str, Any]]] = {  # looked at when the outcome was known; seeds 0 and 1
    "RC-Align (second), expected shares": ("RC-Align", {**SECOND.candidate, "target_prior": "expected"}),
    "RC-Align (second), unadjusted": ("RC-Align", {**SECOND.candidate, "logit_adjustment": 0.0}),
    "RC-Align (second), expected shares, no mixup": (
        "RC-Align",
        {**SECOND.candidate, "target_prior": "expected", "mixup_alpha": 0.0},
    ),
}


def run(
    look: Look,
    file: Path,
    seed: int,
    say: Callable[[str], None] = print,
    methods: Mapping[str, tuple[str, dict[str, Any]]] | None = None,
) -> None:
    """What is missing of one seed, all data sets and methods (None: those of the look)."""
    done = {(line["row"], line["held_out"], line["method"], line["seed"]) for line in study.lines_of(file)}
    for row, domains in look.rows.items():
        for held_out in domains:

            @cache
            def task(row: str = row, held_out: str = held_out) -> Task:
                return quick.features_task(
                    str(default_data_root() / "new" / f"{row}.npz"), "lodo", [held_out], seed, None
                )

            for label, (algorithm, fixed) in (methods or look.methods).items():
                if (row, held_out, label, seed) in done:
                    continue
                options = {"batch_size": study.BATCH, **fixed}
                found = quick.train(
                    task(), algorithm, options, steps=study.STEPS, every=study.EVERY, seed=seed, averages=look.averages
                )
                where = {"row": row, "held_out": held_out, "method": label, "draw": 0, "seed": seed}
                study.append(file, where, found, options if seed == 0 else None)
                say(f"{row} {held_out} {label} seed {seed}")


def write_page(records: Path, out: Path) -> None:
    """confirm.md and confirm-third.md, from their records."""
    file = records / "confirm.jsonl"
    if file.exists():
        lines = study.lines_of(file)
        parts = ["# The changed step on data that nobody tuned", *_page(SECOND, lines, file.name, "confirm")]
        parts += _afterwards(lines, study.lines_of(records / "confirm-afterwards.jsonl"))
        parts += _round("second", study.lines_of(records / "development-second.jsonl"), "seeds 10 to 12")
        write_whole(out / "confirm.md", "\n".join(parts).encode())
    file = records / "confirm-third.jsonl"
    if file.exists():
        lines = study.lines_of(file)
        parts = ["# A third candidate on data that nobody tuned", *_page(THIRD, lines, file.name, "confirm-third")]
        parts += _round("third", study.lines_of(records / "development-third.jsonl"), "seeds 10 and 11")
        write_whole(out / "confirm-third.md", "\n".join(parts).encode())


def _page(look: Look, lines: list[dict[str, Any]], file: str, study_name: str) -> list[str]:
    """The table of a look, and its differences row by row."""
    figures, balanced = Figures(lines, look.methods), Figures(lines, look.methods, "balanced")
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
        for label in (look.ours, look.ours_averaged):
            found = [figures.against(label, other, [row]) for other in (BASELINE, PAPER, best)]
            rows.append([row, label, *(f"{gap} {gap.verdict}" for gap in found), best])
    return [
        f"Made by `make results STUDY={study_name}` from `records/{file}`, by rules written before: "
        f"[protocol.md](protocol.md#the-{look.name}-look). Accuracy in per cent on the domain left out, seeds "
        f"{', '.join(map(str, figures.seeds))}, defaults, no search. Class shares differ between domains in "
        f"{' and '.join([', '.join(look.compound[:-1]), look.compound[-1]])}.\n",
        markdown(header, table),
        "## Row by row",
        markdown(["row", "method", "− ERM", "− paper", "− best baseline", "which"], rows),
    ]


def _afterwards(lines: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[str]:
    """The variants that were looked at when the outcome was known."""
    if not more:
        return []
    figures = Figures([*lines, *more], [*SECOND.methods, *AFTERWARDS])
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


def _round(name: str, lines: list[dict[str, Any]], seeds: str) -> list[str]:
    """How a candidate was found: differences to ERM on the data that had become development data."""
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
        f"## How the {name} candidate was found",
        f"Differences to ERM as it is, on what had become development data, {seeds}, one or two runs in a cell "
        "(the last column counts all). Lines with fewer runs are over other domains: compare lines of one number.\n",
        markdown(["variant", "average", *rows, "mean", "runs"], [cells for _, cells in table]),
    ]
