"""What docs/results shows, made from the committed records alone: figures.md and its pictures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy import stats

from rcalign.files import write_whole
from rcalign.reports.figures import AVERAGE, Results
from results import confirm, plans, records, step_pages, tables

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parents[1] / "docs" / "results"
BENCH = Path(__file__).parents[1] / "bench" / "results.json"
REPORTS = ("lodo", "mdlt", "compound", "fine-tuning")  # studies with a report page
TITLES = {
    "lodo": "One vendor out (`emoji`)",
    "mdlt": "Long-tailed, all vendors train (`emoji-mlt`)",
}
INTRODUCTION = """# The figures

Made by `make results` from the files in `records/`, by the rules of [protocol.md](protocol.md). Accuracy in per cent; ±
is the standard error over seeds; differences are paired over (domain, seed), in points, with a 95 % interval; *time* is
the median time of a run relative to the baseline's, both stages where there are two. The runs of a sweep shared two
cores, so times are rough; [cost](#cost) is measured.
"""
BLUE, RED, GREY = "#2a6fbb", "#c0392b", "#7f8c8d"


def write_all(folder: Path, out: Path = HERE) -> None:
    """figures.md, table.md and development.md, from every study whose records are in the folder."""
    parts = [INTRODUCTION]
    sections: dict[str, Callable[[Path, Path], str]] = {
        "final": _readings,
        "lodo": _setting,
        "mdlt": _setting,
        "compound": _compound,
        "gap": _gap,
        **dict.fromkeys(FINE_TUNING, _fine_tuning),
        "from-scratch": _from_scratch,
    }
    for name, section in sections.items():
        if (folder / f"{name}.jsonl").exists():
            parts.append(section(folder / f"{name}.jsonl", out))
    parts += [_plus(folder), _cost()]
    write_whole(out / "figures.md", "\n".join(part for part in parts if part).encode())
    step_pages.write_table(folder, out)
    step_pages.write_development(folder, out)
    confirm.write_page(folder, out)


# --- readings ---------------------------------------------------------------------------------------------------------


def _readings(file: Path, out: Path) -> str:
    screen = tables.readings(records.load(file.with_name("screen.jsonl")), plans.KEPT_OUT)
    final = tables.readings(records.load(file), plans.KEPT_OUT)
    affordable = [reading for reading in final if plans.affordable(reading.name)]
    _plot_screen(screen, out / "readings.png")
    rows = [[f"`{reading.name}`", f"{reading.mean:.1f}"] for reading in [*screen[:8], *screen[-4:]]]
    rows.insert(8, ["...", "..."])
    return "\n".join(
        [
            "## Which reading of the paper",
            f"Names: `{' '.join(plans.OPEN)}`. Screen of {len(screen)} readings: validation accuracy of the best of 4 "
            "draws, mean over both data sets, the best and the worst:\n",
            tables.markdown(["reading", "validation"], rows),
            "By choice, over all readings that share it:\n",
            tables.effects_table(screen, plans.OPEN),
            "![validation accuracy of all readings, by choice](readings.png)\n",
            "Final: 8 draws in each of 2 trials, two held-out sets, two data sets. "
            f"{plans.KEPT_OUT.capitalize()} took no part in the decision:\n",
            tables.final_table(final, plans.SHIPPED, plans.KEPT_OUT),
            f"Among all finalists the rule chooses **`{tables.decide(final, plans.SHIPPED)}`**; among those whose step "
            f"costs about what ERM's does, **`{tables.decide(affordable, plans.SHIPPED)}`**, which is the default.\n",
        ]
    )


def _plot_screen(screen: Sequence[tables.Reading], file: Path) -> None:
    figure, axes = plt.subplots(1, len(plans.OPEN), figsize=(11, 3.2), sharey=True)
    rng = np.random.default_rng(0)
    for position, (axis, (name, values)) in enumerate(zip(axes, plans.OPEN.items(), strict=True)):
        words = [plans.word(value) for value in values]
        for k, word in enumerate(words):
            means = [reading.mean for reading in screen if reading.name.split()[position] == word]
            axis.scatter(k + rng.uniform(-0.15, 0.15, len(means)), means, s=12, color=BLUE, alpha=0.6, linewidths=0)
            axis.plot([k - 0.3, k + 0.3], [np.mean(means)] * 2, color=RED, linewidth=2)
        axis.set_xticks(range(len(words)), words)
        axis.set_xlim(-0.6, len(words) - 0.4)
        axis.set_title(name, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("validation accuracy (%)")
    _save(figure, file)


# --- settings ---------------------------------------------------------------------------------------------------------


def _setting(file: Path, out: Path) -> str:
    sweep = records.load(file)
    name = file.stem
    table = tables.figures_of(sweep, plans.TABLE)
    everything = tables.figures_of(sweep)
    ablation = tables.figures_of(sweep, ("ERM", *plans.ABLATION, "RC-Align"))
    more = (*plans.AVERAGED, *plans.PAST_THE_PAPER, *plans.FOR_TAILS, *plans.OTHER_READING)
    past = tables.figures_of(sweep, ("RC-Align", *more))
    _plot_differences(everything, out / f"{name}.png")
    return "\n".join(
        [
            f"## {TITLES[name]}",
            f"Report with curves, hyperparameters and confusion: [{name}.html]({name}.html).\n",
            tables.main_table(table),
            f"![differences to ERM]({name}.png)\n",
            "### Ablation",
            "M: meta step, DA: alignment, Mix: manifold mixup; RC-Align is all three.\n",
            tables.main_table(ablation),
            "### Past the paper",
            "`ema`, `shrunk`: where centroids come from; `adjusted`: logit-adjusted cross-entropy (1); `+ SWAD`: "
            "weight averaging; `outer alignment`: the alignment loss also on the query domain.\n",
            tables.main_table(past, baseline="RC-Align"),
        ]
    )


def _compound(file: Path, out: Path) -> str:
    sweep = records.load(file)
    table = tables.figures_of(sweep)
    ours = tables.figures_of(sweep, ("RC-Align", *plans.AVERAGED, *plans.PAST_THE_PAPER))
    _plot_differences(table, out / "compound.png")
    return "\n".join(
        [
            "## Both shifts at once: long-tailed, and one vendor out (`emoji-mlt`)",
            "Training vendors are long-tailed, each with other frequent classes; the unseen vendor's test part is "
            "balanced. Report: [compound.html](compound.html).\n",
            tables.main_table(table),
            "![differences to ERM](compound.png)\n",
            "Against RC-Align:\n",
            tables.main_table(ours, baseline="RC-Align"),
        ]
    )


def _plot_differences(table: Results, file: Path) -> None:
    found = [tables.against(table, label, "ERM") for label in table.algorithms if label != "ERM"]
    found.sort(key=lambda item: item.difference)
    figure, axis = plt.subplots(figsize=(7, 0.26 * len(found) + 1))
    for k, item in enumerate(found):
        assert item.low is not None and item.high is not None
        colour = BLUE if item.low > 0 else RED if item.high < 0 else GREY
        axis.plot([item.low, item.high], [k, k], color=colour, linewidth=2)
        axis.plot(item.difference, k, "o", color=colour, markersize=5)
    axis.set_yticks(range(len(found)), [item.algorithm for item in found], fontsize=8)
    for tick, item in zip(axis.get_yticklabels(), found, strict=True):
        tick.set_fontweight("bold" if item.algorithm == "RC-Align" else "normal")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlabel(f"accuracy less ERM's ({table.figures['ERM', AVERAGE].mean:.1f} %), points, 95 % interval")
    axis.spines[["top", "right"]].set_visible(False)
    _save(figure, file)


# --- the theory -------------------------------------------------------------------------------------------------------


def _gap(file: Path, out: Path) -> str:
    rows: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for line in records.lines_of(file):
        for step, target, alignment, gap in line.get("tracking", []):
            rows.setdefault((line["label"], target), []).append((step, alignment, gap))
    labels = list(dict.fromkeys(label for label, _ in rows))
    figure, axes = plt.subplots(1, len(labels), figsize=(3.6 * len(labels), 3.2), sharex=True, sharey=True)
    lines = []
    for axis, label in zip(np.atleast_1d(axes), labels, strict=True):
        for vendor in plans.TESTED:
            points = np.array(rows[label, vendor])
            axis.scatter(points[:, 1], 100 * points[:, 2], s=8, alpha=0.6, label=vendor, linewidths=0)
            lines.append([label, vendor, *_correlation(points)])
        together = np.concatenate([np.array(rows[label, vendor]) for vendor in plans.TESTED])
        lines.append([label, "all four", *_correlation(together)])
        axis.set_title(label, fontsize=10)
        axis.set_xlabel("alignment loss of the unseen vendor")
        axis.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("generalisation gap (points)")
    np.atleast_1d(axes)[0].legend(fontsize=7)
    _save(figure, out / "gap.png")
    header = ["method", "unseen vendor", "r", "p", "r after the first 30 steps", "p", "measurements"]
    return "\n".join(
        [
            "## Alignment loss against generalisation gap",
            "Every 10 steps of 300, three seeds: the unseen vendor's alignment loss (that of Theorem 2) and the gap, "
            "its error less the mean error on the training vendors' validation parts. Measurements along one run are "
            "not independent, so p overstates the evidence.\n",
            tables.markdown(header, lines),
            "![alignment loss against gap](gap.png)\n",
        ]
    )


def _correlation(points: np.ndarray) -> list[str]:
    """points (n, 3): step, alignment, gap. Pearson's r and p, of all and of the later ones, and n."""
    found = []
    for part in (points, points[points[:, 0] > 30]):
        r, p = stats.pearsonr(part[:, 1], part[:, 2])
        found += [f"{r:+.2f}", f"{p:.0e}" if p < 0.001 else f"{p:.3f}"]
    return [*found, str(len(points))]


# --- images -----------------------------------------------------------------------------------------------------------


FINE_TUNING = {
    "fine-tuning": ("one vendor out", plans.fine_tuning),
    "fine-tuning-longer": ("one vendor out, longer", plans.fine_tuning_longer),
    "fine-tuning-long-tailed": ("long-tailed", plans.fine_tuning_long_tailed),
}


def _settings(plan: plans.Plan) -> str:
    batch, rate = (plan["hparams"][name] for name in ("batch_size", "learning_rate"))
    length = f"{plan['steps']} steps of {batch} images per vendor"
    return f"{length}, learning rate {rate:g}, {plan['seeds']} seeds, no search: the same settings for all."


def _fine_tuning(file: Path, out: Path) -> str:
    title, plan = FINE_TUNING[file.stem]
    report = f" Report: [{file.stem}.html]({file.stem}.html)." if file.stem in REPORTS else ""
    return "\n".join(
        [
            f"## Fine-tuning the whole backbone, {title}",
            f"{_settings(plan())}{report}\n",
            tables.main_table(tables.figures_of(records.load(file))),
        ]
    )


def _from_scratch(file: Path, out: Path) -> str:
    sweep = records.load(file)
    parts = [
        "## Without pretrained weights",
        "A vision transformer (`vit_tiny_patch16_224` at 64 px; its pretrained weights are on a model hub only) "
        f"and a ResNet-10 with trained batch norm. {_settings(plans.from_scratch())}\n",
    ]
    for backbone in ("ViT", "ResNet-10"):
        labels = (f"ERM, {backbone}", f"RC-Align, {backbone}")
        parts.append(tables.main_table(tables.figures_of(sweep, labels), baseline=labels[0]))
    return "\n".join(parts)


# --- the candidate, and cost ------------------------------------------------------------------------------------------


def candidates(folder: Path) -> list[tuple[str, float]]:
    """The variants of RC-Align that lie past the paper, with their mean validation accuracy, the best first."""
    settings = [tables.figures_of(records.load(folder / f"{name}.jsonl")) for name in ("lodo", "mdlt")]
    names = (*plans.AVERAGED, *plans.PAST_THE_PAPER)
    means = {name: float(np.mean([tables.validation(table, name) for table in settings])) for name in names}
    return sorted(means.items(), key=lambda item: -item[1])


def _plus(folder: Path) -> str:
    if not all((folder / f"{name}.jsonl").exists() for name in ("lodo", "mdlt")):
        return ""
    ranked = candidates(folder)
    best = ranked[0][0]
    rows = []
    for setting in ("lodo", "mdlt"):
        table = tables.figures_of(records.load(folder / f"{setting}.jsonl"))
        others = [name for name in ("RC-Align", "ERM", "SWAD", "BSoftmax + SWAD") if name in table.algorithms]
        for other, what in itertools.product(others, ("accuracy", "balanced")):
            found = tables.against(table, best, other, what)
            rows.append([setting, other, what, tables.difference(found), tables.verdict(found)])
    return "\n".join(
        [
            "## The candidate for rc-align-plus",
            "Validation accuracy, mean of lodo and mdlt:\n",
            tables.markdown(["variant", "validation"], [[name, f"{mean:.2f}"] for name, mean in ranked]),
            f"The candidate is therefore **{best}**. On the test parts:\n",
            tables.markdown(["setting", "against", "of", "difference (95 %)", ""], rows),
        ]
    )


def _cost() -> str:
    rows = [row for row in json.loads(BENCH.read_text()) if "RC-Align" in row["name"]]
    return "\n".join(
        [
            "## Cost",
            "From `bench/results.json`, measured by `make bench` in one interleaved run:\n",
            tables.markdown(
                ["measurement", "value", "goal"], [[r["name"], f"{r['value']:.3g}", r["goal"]] for r in rows]
            ),
        ]
    )


def _save(figure: plt.Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)
