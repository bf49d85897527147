"""What docs/results says of the changed step, from its records: table.md with its picture, and development.md."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy import stats

from rcalign.files import write_whole
from results import step_study as study
from results.tables import markdown

mpl.use("Agg")
import matplotlib.pyplot as plt

Unit = tuple[str, str]  # row and domain
BASELINE = "ERM"
OURS, PAPER, EQUAL = "RC-Align (ours)", "RC-Align (paper)", "RC-Align (ours), equal shares"
BLUE, RED, GREY = "#2a6fbb", "#c0392b", "#7f8c8d"


@dataclass(frozen=True)
class Difference:
    """Of two methods, in points: mean, its 95 % interval, and the two-sided p of no difference."""

    mean: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        return "wins" if self.low > 0 else "loses" if self.high < 0 else "ties"

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def weighted(values: Sequence[float], weights: Sequence[float]) -> Difference:
    """The weighted mean of independent differences with its t interval; weights add up to one.

    >>> found = weighted([1.0, 2.0, 3.0], [1 / 3] * 3)
    >>> round(found.low, 2), round(found.high, 2)
    (-0.48, 4.48)
    """
    v, w = np.asarray(values, float), np.asarray(weights, float)
    n, mean = len(v), float(v @ w)
    if n < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    error = float(np.sqrt(n / (n - 1) * np.sum(w**2 * (v - mean) ** 2)))
    if error == 0:
        return Difference(mean, mean, mean, 0.0 if mean else 1.0)
    reach = float(stats.t.ppf(0.975, n - 1)) * error
    return Difference(mean, mean - reach, mean + reach, float(2 * stats.t.sf(abs(mean) / error, n - 1)))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    found, largest = {}, 0.0
    for k, name in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, min(1.0, (len(p) - k) * p[name]))
        found[name] = largest
    return {name: found[name] for name in p}


class Figures:
    """Accuracy (or balanced accuracy) in per cent by method, row, domain and seed; only seeds that all methods have."""

    def __init__(self, lines: Iterable[Mapping[str, Any]], methods: Collection[str], what: str = "accuracy") -> None:
        self.values: dict[str, dict[tuple[str, str, int], float]] = {}
        rows = []
        for line in lines:
            rows += [line["row"]] if line["row"] not in rows else []
            label = line["method"] + study.AVERAGES[line["average"] or None]
            for domain, value in line[what].items():
                self.values.setdefault(label, {})[line["row"], domain, line["seed"]] = 100 * value
        everyone = [set(found) for label, found in self.values.items() if label.split(" + ")[0] in methods]
        shared = set.intersection(*everyone) if everyone else set()
        units = {key[:2] for key in shared}  # a seed that is not whole is left out for all
        whole = {seed for _, _, seed in shared if {key[:2] for key in shared if key[2] == seed} == units}
        shared = {key for key in shared if key[2] in whole}
        self.values = {
            label: {key: value for key, value in found.items() if key in shared} for label, found in self.values.items()
        }
        self.keys = sorted(shared)
        self.rows = [row for row in rows if any(key[0] == row for key in self.keys)]
        self.seeds = sorted({seed for _, _, seed in self.keys})

    def mean(self, label: str, row: str | None = None) -> float:
        """Of a row, the mean over domains and seeds; of the table, the mean over rows."""
        if row is None:
            return float(np.mean([self.mean(label, name) for name in self.rows]))
        return float(np.mean([value for key, value in self.values[label].items() if key[0] == row]))

    def against(self, label: str, other: str, rows: Sequence[str] | None = None) -> Difference:
        """One row: paired over (domain, seed). Several: each row weighs the same, domains are the units."""
        rows = self.rows if rows is None else rows
        mine, theirs = self.values[label], self.values[other]
        if len(rows) == 1:
            gaps = [mine[key] - theirs[key] for key in self.keys if key[0] == rows[0] and key in mine]
            return weighted(gaps, [1 / len(gaps)] * len(gaps))
        units: dict[Unit, list[float]] = {}
        for key in self.keys:
            if key[0] in rows:
                units.setdefault(key[:2], []).append(mine[key] - theirs[key])
        sizes = {row: sum(unit[0] == row for unit in units) for row in rows}
        weights = [1 / len(rows) / sizes[row] for row, _ in units]
        return weighted([float(np.mean(gaps)) for gaps in units.values()], weights)


def write_table(folder: Path, out: Path) -> None:
    """table.md and table.png, from the rows whose records are there."""
    rows = [row for row in study.ROWS if (folder / f"table-{row}.jsonl").exists()]
    if not rows:
        return
    lines = [line for row in rows for line in study.chosen(folder / f"table-{row}.jsonl")]
    figures, balanced = Figures(lines, study.METHODS), Figures(lines, study.METHODS, "balanced")
    compound = [row for row in figures.rows if study.ROWS[row].compound]
    labels = [label for label in figures.values if label.split(" + SWAD")[0] in study.METHODS]
    labels.sort(key=lambda label: -figures.mean(label))
    gaps = {label: figures.against(label, BASELINE) for label in labels if label != BASELINE}
    corrected = holm({label: gap.p for label, gap in gaps.items()})
    main = []
    for label in labels:
        cells = [f"{figures.mean(label, row):.1f}" for row in figures.rows]
        gap = gaps.get(label)
        more = ["", "", "", ""]
        if gap is not None:
            more = [str(gap), f"{corrected[label]:.2f}", gap.verdict, str(figures.against(label, BASELINE, compound))]
        main.append([label, *cells, f"{figures.mean(label):.1f}", f"{balanced.mean(label):.1f}", *more])
    header = ["method", *figures.rows, "mean", "balanced", "− ERM (95 %)", "p (Holm)", "", "compound rows − ERM"]
    parts = [
        "# The changed step: the final table",
        "Made by `make results` from `records/table-*.jsonl`, by rules written before: [protocol.md](protocol.md). "
        f"Accuracy in per cent, seeds {', '.join(map(str, figures.seeds))}, frozen features; "
        f"{', '.join(compound)} are compound shifts. *Ours* is the candidate of [development.md](development.md), for "
        "the class shares to expect of an unseen domain; its two variants differ in logit adjustment alone.\n",
        markdown(header, main),
        "![differences to ERM](table.png)\n",
        "## Row by row",
        "Ours against ERM, the paper's settings, and the strongest baseline; paired over (domain, seed).\n",
        _row_by_row(figures),
        _goal(figures, compound),
        _fine_tuned(folder / "table-late.jsonl", "Late stages fine-tuned, PACS"),
        _fine_tuned(folder / "table-whole.jsonl", "The whole backbone fine-tuned, PACS"),
        _beside_the_paper(figures),
        _ablation(folder),
        _gap(folder / "gap-pacs.jsonl", out / "gap-pacs.png"),
    ]
    _plot(gaps, figures, out / "table.png")
    write_whole(out / "table.md", "\n".join(part for part in parts if part).encode())


def best_baseline(figures: Figures, rows: Sequence[str]) -> str:
    """The method that is not RC-Align with the best mean over some rows."""
    others = [
        label
        for label in figures.values
        if label.split(" + SWAD")[0] in study.METHODS and not label.startswith("RC-Align")
    ]
    return max(others, key=lambda label: float(np.mean([figures.mean(label, row) for row in rows])))


def _row_by_row(figures: Figures) -> str:
    lines = []
    for row in figures.rows:
        best = best_baseline(figures, [row])
        for ours in (OURS, f"{OURS} + SWAD", f"{EQUAL} + SWAD"):
            found = [figures.against(ours, other, [row]) for other in (BASELINE, PAPER, best)]
            cells = [f"{gap} {gap.verdict}" for gap in found]
            lines.append([row, ours, f"{figures.mean(ours, row):.1f}", *cells[:2], f"{cells[2]} ({best})"])
    return markdown(["row", "method", "accuracy", "− ERM", "− paper", "− best baseline"], lines)


def _goal(figures: Figures, compound: Sequence[str]) -> str:
    best = best_baseline(figures, compound)
    lines = []
    for ours in (OURS, f"{OURS} + SWAD", EQUAL, f"{EQUAL} + SWAD"):
        losing = [row for row in figures.rows if figures.against(ours, BASELINE, [row]).verdict == "loses"]
        lines.append(
            [
                ours,
                str(figures.against(ours, BASELINE)),
                str(figures.against(ours, PAPER)),
                f"{figures.against(ours, best, compound)} ({best})",
                ", ".join(losing) or "none",
            ]
        )
    header = [
        "",
        "− ERM, all rows",
        "− paper, all rows",
        "− best baseline, compound rows",
        "rows behind ERM beyond the interval",
    ]
    return "\n".join(["## The goal", markdown(header, lines)])


PUBLISHED = Path(__file__).parents[1] / "src" / "rcalign" / "reports" / "published.csv"
SHARED = {  # our label -> the paper's
    **{name: name for name in ("ERM", "CORAL", "MLDG", "SAGM", "GMDG", "Fish", "BSoftmax")},
    "ERM + SWAD": "SWAD",
    PAPER: "RC-Align",
}


ORDERS = {  # row -> the paper's protocol, table and columns, in words
    "pacs": ("lodo", "PACS", ("A", "S"), "mean of art painting and sketch"),
    "pacs-mlt": ("mdlt", "PACS-MLT", ("Avg",), "average of the four domains"),
}


def beside_the_paper(figures: Figures, row: str) -> list[tuple[float, float, str]]:
    """The paper's accuracy, ours and the method, of those that both have, by the paper's."""
    protocol, data, columns, _ = ORDERS[row]
    theirs = published(protocol, data, columns)
    both = [label for label, name in SHARED.items() if name in theirs and label in figures.values]
    return sorted(((theirs[SHARED[label]], figures.mean(label, row), label) for label in both), reverse=True)


def published(protocol: str, data: str, columns: Sequence[str]) -> dict[str, float]:
    """The paper's method -> mean of some columns of a table, in per cent."""
    found: dict[str, list[float]] = {}
    with PUBLISHED.open(newline="") as file:
        for line in csv.DictReader(file):
            if (line["protocol"], line["dataset"]) == (protocol, data) and line["column"] in columns:
                found.setdefault(line["algorithm"], []).append(float(line["mean"]))
    return {name: float(np.mean(values)) for name, values in found.items() if len(values) == len(columns)}


def _beside_the_paper(figures: Figures) -> str:
    parts = [
        "## The paper's figures beside ours",
        "The paper: ResNet-50, 224 px, all weights trained for 5,000 steps, 20 to 50 draws. Here: a small network on "
        "features of a frozen EfficientNet-Lite0 at 112 px, 120 steps, two draws. So levels cannot agree; the question "
        "is the order.\n",
    ]
    for row, (_, data, _, words) in ORDERS.items():
        pairs = beside_the_paper(figures, row) if row in figures.rows else []
        if len(pairs) < 3:
            continue
        rank = stats.spearmanr([a for a, _, _ in pairs], [b for _, b, _ in pairs])
        lines = [[label, f"{a:.1f}", f"{b:.1f}"] for a, b, label in pairs]
        parts += [
            f"### {data}: {words}",
            markdown(["method", "paper", "here"], lines),
            f"Rank correlation over these {len(pairs)} methods: {rank.statistic:+.2f} (p = {rank.pvalue:.2f}).\n",
        ]
    return "\n".join(parts)


def _gap(file: Path, picture: Path) -> str:
    """Alignment loss against generalisation gap on PACS."""
    lines = study.lines_of(file)
    if not lines:
        return ""
    points = {
        (line["label"], line["held_out"]): np.array([[r[0], r[2], r[3]] for r in line["tracking"]]) for line in lines
    }
    figure, axes = plt.subplots(1, len(study.GAP_METHODS), figsize=(3.6 * len(study.GAP_METHODS), 3.2), sharey=True)
    rows = []
    for axis, label in zip(axes, study.GAP_METHODS, strict=True):
        for domain in study.GAP_DOMAINS:
            found = points[label, domain]
            axis.scatter(found[:, 1], 100 * found[:, 2], s=8, alpha=0.7, label=domain, linewidths=0)
            rows.append([label, domain, *correlations(found)])
        rows.append([label, "all", *correlations(np.concatenate([points[label, name] for name in study.GAP_DOMAINS]))])
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("alignment loss of the unseen domain")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("generalisation gap (points)")
    axes[0].legend(fontsize=7)
    figure.savefig(picture, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return "\n".join(
        [
            "## Alignment loss against generalisation gap, PACS",
            f"Every {study.GAP_EVERY} steps of {study.STEPS}, one seed, all rows: the unseen domain's alignment loss "
            "(of Theorem 2) and the gap, its error less the mean error on the training domains' validation parts. The "
            "paper (VLCS) has r = 0.69, and 0.71 in the later phase. Measurements along one run are not independent.\n",
            markdown(["method", "unseen domain", "r", "r after the first 30 steps", "measurements"], rows),
            f"![alignment loss against gap]({picture.name})\n",
        ]
    )


def correlations(points: np.ndarray) -> list[str]:
    """points (n, 3): step, alignment, gap. Pearson's r of all and of the later ones, and n."""
    later = points[points[:, 0] > 30]
    return [*(f"{np.corrcoef(part[:, 1], part[:, 2])[0, 1]:+.2f}" for part in (points, later)), str(len(points))]


def _ablation(folder: Path) -> str:
    """The paper's ablation at the paper's settings, on PACS's tested domains."""
    lines = list(study.chosen(folder / "table-pacs.jsonl"))
    values: dict[str, dict[tuple[str, int], float]] = {}
    for line in lines:
        if not line["average"]:
            for domain, value in line["accuracy"].items():
                values.setdefault(line["method"], {})[domain, line["seed"]] = 100 * value
    names = {"ERM": 77.5, "M": 77.2, "DA": 79.6, "M + DA": 80.2, PAPER: 81.0}
    if not all(name in values for name in names):
        return ""
    keys = sorted(set.intersection(*(set(values[name]) for name in names)))
    rows = []
    for name, theirs in names.items():
        gaps = [values[name][key] - values["ERM"][key] for key in keys]
        gap = "" if name == "ERM" else str(weighted(gaps, [1 / len(gaps)] * len(gaps)))
        rows.append([name, f"{theirs:.1f}", f"{np.mean([values[name][key] for key in keys]):.1f}", gap])
    return "\n".join(
        [
            "## The paper's ablation",
            "Theirs on VLCS, ours on PACS (art painting and sketch), the paper's settings. M: meta step, "
            "DA: alignment; the last row adds manifold mixup.\n",
            markdown(["", "paper (VLCS)", "here (PACS)", "− ERM (95 %)"], rows),
            "Cost, which the paper puts at 1.45 times ERM's time, is in [figures.md](figures.md#cost).\n",
        ]
    )


def _fine_tuned(file: Path, title: str) -> str:
    lines = study.lines_of(file)
    if not lines:
        return ""
    values: dict[str, dict[tuple[str, int], float]] = {}
    for line in lines:
        label = line["method"] + study.AVERAGES[line["average"] or None]
        values.setdefault(label, {})[line["held_out"], line["seed"]] = 100 * line["accuracy"][line["held_out"]]
    base = values[BASELINE]
    domains = sorted({domain for domain, _ in base})
    shown = []
    for label in sorted(values, key=lambda label: -np.mean(list(values[label].values()))):
        found = values[label]
        of_domain = {d: [v for (domain, _), v in found.items() if domain == d] for d in domains}
        cells = [f"{np.mean(values):.1f}" if values else "–" for values in of_domain.values()]
        whole = f"{np.mean(list(found.values())):.1f}" if all(of_domain.values()) else "–"
        gaps = [found[key] - base[key] for key in found if key in base]
        gap = f"{gaps[0]:+.1f}" if len(gaps) == 1 else str(weighted(gaps, [1 / len(gaps)] * len(gaps)))
        shown.append([label, *cells, whole, "" if label == BASELINE else gap, str(len(found))])
    steps, batch, rate = study.SETTINGS[lines[0]["row"]]
    settings = (
        f"112 px, {steps} steps of {batch} images per domain, learning rate {rate:g}, no search, the same for all. "
        "Differences are of runs on the same domain with the same seed."
    )
    return "\n".join(
        [f"## {title}", f"{settings}\n", markdown(["method", *domains, "mean", "− ERM (95 %)", "runs"], shown)]
    )


def _plot(gaps: Mapping[str, Difference], figures: Figures, file: Path) -> None:
    order = sorted(gaps, key=lambda label: gaps[label].mean)
    figure, axis = plt.subplots(figsize=(7, 0.26 * len(order) + 1))
    for k, label in enumerate(order):
        gap = gaps[label]
        colour = {"wins": BLUE, "loses": RED, "ties": GREY}[gap.verdict]
        axis.plot([gap.low, gap.high], [k, k], color=colour, linewidth=2)
        axis.plot(gap.mean, k, "o", color=colour, markersize=5)
    axis.set_yticks(range(len(order)), order, fontsize=8)
    for tick, label in zip(axis.get_yticklabels(), order, strict=True):
        tick.set_fontweight("bold" if label.startswith(OURS) else "normal")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlabel(
        f"accuracy less ERM's ({figures.mean(BASELINE):.1f} %), mean of {len(figures.rows)} rows, points, 95 %"
    )
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(figure)


# --- development ------------------------------------------------------------------------------------------------------


def write_development(folder: Path, out: Path) -> None:
    """The table of everything that was tried, between the words of development.md that stand."""
    file = out / "development.md"
    lines = study.lines_of(folder / "development.jsonl")
    if not lines or not file.exists():
        return
    before, _, rest = file.read_text().partition("<!-- table -->")
    _, _, after = rest.partition("<!-- end of table -->")
    early = [line for line in lines if line["group"].startswith("first look")]
    later = [line for line in lines if line not in early]
    first = "The first look: 1,280 features, 300 steps, one seed."
    shown = f"{development_table(later)}\n{first}\n\n{development_table(early)}"
    write_whole(file, f"{before}<!-- table -->\n{shown}\n<!-- end of table -->{after}".encode())


def development_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Mean difference to ERM without averaging, ± standard error over (domain, seed), for each group of settings."""
    groups = sorted({line["group"] for line in lines})
    base = {(line["group"], line["domain"], line["seed"]): line["accuracy"] for line in lines if _is_base(line)}
    values: dict[str, dict[tuple[str, str, int], float]] = {}
    for line in lines:
        label = f"{line['variant']}{' + SWAD' if line['average'] == 'swad' else ''}"
        key = (line["group"], line["domain"], line["seed"])
        if key in base:
            values.setdefault(label, {})[key] = line["accuracy"] - base[key]
    rows = []
    for label, found in values.items():
        cells, means = [], []
        for group in groups:
            gaps = [gap for key, gap in found.items() if key[0] == group]
            if gaps:
                means.append(np.mean(gaps))
                error = f" ± {np.std(gaps, ddof=1) / math.sqrt(len(gaps)):.1f}" if len(gaps) > 1 else ""
                cells.append(f"{np.mean(gaps):+.1f}{error} ({len(gaps)})")
            else:
                cells.append("–")
        whole = f"{np.mean(means):+.2f}" if len(means) == len(groups) else f"({np.mean(means):+.2f})"
        rows.append((len(means), float(np.mean(means)), [label, *cells, whole]))
    rows.sort(key=lambda row: (-row[0], -row[1]))
    return markdown(["variant", *groups, "mean"], [row for _, _, row in rows])


def _is_base(line: Mapping[str, Any]) -> bool:
    return line["variant"] == BASELINE and not line["average"]
