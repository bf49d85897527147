"""The ten lines of docs/results/README.md: every figure in them is computed here, from the records."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from rcalign import spaces
from rcalign.algorithms.rc_align import RCAlign
from rcalign.fit.portfolio import recommended
from rcalign.reports.figures import AVERAGE, Results
from results import __main__ as command
from results import confirm, pages, plans, records, step_pages, step_study, tables

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
RECORDS = FOLDER / "records"
PLUS = "RC-Align, ema, adjusted + SWAD"
OURS, PAPER, EQUAL = "RC-Align (ours)", "RC-Align (paper)", "RC-Align (ours), equal shares"
SHIPPED = confirm.THIRD.ours_averaged  # the third candidate with its averaging: RC-Align's defaults


@cache
def study(name: str) -> Results:
    return tables.figures_of(records.load(RECORDS / f"{name}.jsonl"))


def mean(name: str, label: str, column: str = AVERAGE) -> str:
    return f"{study(name).figures[label, column].mean:.1f}"


def gap(name: str, label: str, other: str = "ERM") -> str:
    return f"{tables.against(study(name), label, other).difference:+.1f}".replace("-", "−")


def verdict(name: str, label: str, other: str = "ERM") -> str:
    return tables.verdict(tables.against(study(name), label, other))


def kept_out() -> list[tuple[float, float]]:
    """The other finalists against the default on the vendor kept out of the decision: difference, standard error."""
    final = tables.readings(records.load(RECORDS / "final.jsonl"), plans.KEPT_OUT)
    own = next(reading for reading in final if reading.name == plans.SHIPPED)
    return [tables.paired(reading.kept_out, own.kept_out) for reading in final if reading is not own]


def correlation(*vendors: str) -> str:
    """Of alignment loss and gap along ERM's runs, these vendors together (none named: all)."""
    lines = [line for line in records.lines_of(RECORDS / "gap.jsonl") if line["label"] == "ERM"]
    rows = [row for line in lines for row in line["tracking"] if not vendors or row[1] in vendors]
    points = np.array([[alignment, loss] for _, _, alignment, loss in rows])
    return f"{np.corrcoef(points.T)[0, 1]:.2f}".replace("-", "−")


@cache
def table(what: str = "accuracy") -> step_pages.Figures:
    lines = [line for row in step_study.ROWS for line in step_study.chosen(RECORDS / f"table-{row}.jsonl")]
    return step_pages.Figures(lines, step_study.METHODS, what)


@cache
def confirmed(what: str = "accuracy") -> step_pages.Figures:
    return step_pages.Figures(step_study.lines_of(RECORDS / "confirm.jsonl"), confirm.SECOND.methods, what)


@cache
def third(what: str = "accuracy") -> step_pages.Figures:
    return step_pages.Figures(step_study.lines_of(RECORDS / "confirm-third.jsonl"), confirm.THIRD.methods, what)


def signed(found: step_pages.Difference) -> str:
    return f"{found.mean:+.1f}".replace("-", "−")


def second(label: str, row: str | None = None) -> str:
    """The difference to ERM in the second look."""
    return signed(confirmed().against(label, "ERM", None if row is None else [row]))


def final(label: str, other: str = "ERM") -> str:
    """Mean difference over the final table."""
    return f"{table().against(label, other).mean:+.1f}".replace("-", "−")


def order(row: str) -> str:
    """Rank correlation of the methods' accuracy in the paper and here."""
    pairs = step_pages.beside_the_paper(table(), row)
    return f"{stats.spearmanr([a for a, _, _ in pairs], [b for _, b, _ in pairs]).statistic:+.2f}".replace("-", "−")


# methods of which late stages, or all of the network, were trained on PACS, as line 8 has them
LATE = ("ERM", PAPER, OURS, "CORAL", "Fish", "SAGM", "BSoftmax")
WHOLE = {
    6: ("ERM", PAPER, "CORAL"),
    2: ("Fish", "SAGM", "BSoftmax", EQUAL, confirm.THIRD.ours),
}  # by their number of runs


def tuned(kind: str, label: str, average: str, runs: int = 2) -> str:
    """Late stages or the whole backbone fine-tuned: mean over PACS's tested domains and the seeds, so many runs."""
    lines = step_study.lines_of(RECORDS / f"table-{kind}.jsonl")
    own = [line for line in lines if (line["method"], line["average"]) == (label, average)]
    assert len(own) == runs
    return f"{np.mean([100 * line['accuracy'][line['held_out']] for line in own]):.1f}"


def pacs_correlations(first: int = 30) -> dict[str, float]:
    """Of alignment loss and gap along ERM's run on PACS after some steps, of each unseen domain and of all."""
    points: dict[str, list[list[float]]] = {}
    for line in step_study.lines_of(RECORDS / "gap-pacs.jsonl"):
        for step, domain, alignment, difference in line["tracking"] if line["label"] == "ERM" else ():
            if step > first:
                for name in (domain, "all"):
                    points.setdefault(name, []).append([alignment, difference])
    return {name: float(np.corrcoef(np.array(found).T)[0, 1]) for name, found in points.items()}


def test_every_figure_is_that_of_the_records() -> None:
    text = (FOLDER / "README.md").read_text()
    found = {int(k): line for k, line in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^$)", text, re.MULTILINE | re.DOTALL)}
    gaps = [difference for difference, _ in kept_out()]
    both, long_tailed = ("lodo", "mdlt"), "fine-tuning-long-tailed"
    expected = {
        1: [mean("lodo", label) for label in ("RC-Align + SWAD", "SWAD", "ERM")],
        2: [
            *(mean("mdlt", label) for label in ("BSoftmax", "ERM", "BSoftmax + SWAD")),
            *(mean(long_tailed, label) for label in ("BSoftmax", "ERM")),
            *(signed(third().against(label, "ERM")) for label in ("BSoftmax", "BSoftmax + SWAD")),
        ],
        3: [mean("compound", label) for label in ("BSoftmax + SWAD", "ERM", PLUS, "RC-Align")],
        4: [
            *(gap(name, "RC-Align") for name in (*both, "compound")),
            *(gap("mdlt", label) for label in ("M", "RC-Align")),
            *(order(row) for row in step_pages.ORDERS),
        ],
        5: [
            *(final(label) for label in (OURS, f"{OURS} + SWAD", PAPER, EQUAL)),
            final(EQUAL, PAPER),
            *(final(f"{label} + SWAD") for label in (EQUAL, "CORAL", "BSoftmax")),
            "1.5",  # the goal
            *(second(label) for label in (confirm.SECOND.ours_averaged, PAPER, "ERM + SWAD", "Fish + SWAD")),
            second(confirm.SECOND.ours_averaged, "gas"),
            *(second(label, "students") for label in (confirm.SECOND.ours_averaged, "BSoftmax")),
            *(f"{table('balanced').mean(label):.1f}" for label in (f"{EQUAL} + SWAD", "ERM")),
            *(f"{confirmed('balanced').mean(label):.1f}" for label in (f"{confirm.SECOND.ours} + SWAD", "ERM")),
            *(signed(third().against(label, "ERM")) for label in (SHIPPED, PAPER, "ERM + SWAD", f"{PAPER} + SWAD")),
            *(signed(third().against(SHIPPED, "ERM", [row])) for row in ("hotels", "airlines")),
            signed(third().against(SHIPPED, "ERM", confirm.THIRD.compound)),
        ],
        6: [
            f"{min(gaps):.1f}",
            f"{max(gaps):.1f}",
            *(mean("mdlt", label, "few") for label in ("RC-Align", "RC-Align, adjusted")),
            *(gap(name, PLUS, "RC-Align") for name in ("mdlt", "compound", "lodo")),
        ],
        7: [
            correlation(),
            f"{pacs_correlations()['all']:.2f}",
            *(correlation(vendor) for vendor in ("windows", "samsung", "twitter", "apple")),
        ],
        8: [
            *(mean("fine-tuning", label) for label in ("RC-Align", "ERM")),
            *(mean(long_tailed, label) for label in ("RC-Align", "ERM")),
            mean("fine-tuning", "RC-Align + SWA"),
            *(mean("fine-tuning-longer", label) for label in ("RC-Align", "ERM")),
            *(mean("from-scratch", f"{name}, {net}") for net in ("ViT", "ResNet-10") for name in ("RC-Align", "ERM")),
            *(tuned("late", label, average) for average in ("", "swad") for label in LATE),
            *(
                tuned("whole", label, a, runs)
                for runs, labels in WHOLE.items()
                for a in ("", "swad")
                for label in labels
            ),
        ],
        9: [],
        10: [],
    }
    assert {k: re.findall(r"[+−]?\d+\.\d+", line) for k, line in found.items()} == expected


def test_all_of_the_network_on_pacs_is_a_tie_but_for_coral() -> None:
    lines = step_study.lines_of(RECORDS / "table-whole.jsonl")
    found = {
        (line["method"], line["held_out"], line["seed"]): 100 * line["accuracy"][line["held_out"]]
        for line in lines
        if not line["average"]
    }
    for label, verdict in ((PAPER, "ties"), ("CORAL", "wins")):
        gaps = [value - found["ERM", *key] for (method, *key), value in found.items() if method == label]
        assert len(gaps) == 6 and step_pages.weighted(gaps, [1 / 6] * 6).verdict == verdict


def test_the_changed_step_is_judged_by_the_rule() -> None:
    figures = table()
    rows = figures.rows
    assert len(rows) == len(step_study.ROWS) and len(figures.seeds) >= 2
    # the candidate: not ahead of ERM, so that it is no default; nothing loses beyond the interval in any row
    assert figures.against(OURS, "ERM").mean < 0 and figures.against(f"{OURS} + SWAD", "ERM").verdict == "ties"
    for label in (EQUAL, f"{EQUAL} + SWAD"):
        assert all(figures.against(label, "ERM", [row]).verdict != "loses" for row in rows)
    assert [row for row in rows if figures.against(PAPER, "ERM", [row]).verdict == "loses"] == ["emoji", "emoji-mlt"]
    labels = [label for label in figures.values if label.split(" + SWAD")[0] in step_study.METHODS]
    assert max(labels, key=figures.mean).startswith(EQUAL)
    p = {label: figures.against(label, "ERM").p for label in labels if label != "ERM"}
    assert min(step_pages.holm(p).values()) > 0.05
    paper = spaces.defaults(RCAlign.Hparams, "rc-align")
    assert {name: getattr(paper, name) for name in step_study.PAPER} == step_study.PAPER
    within = {domain: r for domain, r in pacs_correlations().items() if domain != "all"}
    assert [domain for domain, r in within.items() if r > 0] == ["sketch"]


def test_the_second_candidate_is_judged_by_the_rule() -> None:
    figures = confirmed()
    assert figures.rows == ["gas", "spam", "reviews", "students", "digits"] and figures.seeds == [0, 1, 2]
    assert len({key[:2] for key in figures.keys}) == sum(map(len, confirm.SECOND.rows.values()))
    assert figures.against(confirm.SECOND.ours_averaged, "ERM").mean < 0  # so it is no default
    verdicts = {row: figures.against(confirm.SECOND.ours_averaged, "ERM", [row]).verdict for row in figures.rows}
    assert verdicts == {"gas": "wins", "students": "loses", "spam": "ties", "reviews": "ties", "digits": "ties"}
    for found, best in (
        (table("balanced"), f"{EQUAL} + SWAD"),
        (confirmed("balanced"), f"{confirm.SECOND.ours} + SWAD"),
    ):
        whole = [label for label, values in found.values.items() if len(values) == len(found.keys)]
        assert max(whole, key=found.mean) == best


def test_the_third_candidate_is_judged_by_the_rule_and_the_default() -> None:
    figures, look = third(), confirm.THIRD
    assert figures.rows == list(look.rows) and figures.seeds == [0, 1, 2]
    assert len({key[:2] for key in figures.keys}) == sum(map(len, look.rows.values()))
    assert figures.against(SHIPPED, "ERM").verdict == "wins" and figures.against(SHIPPED, PAPER).mean > 0
    verdicts = {row: figures.against(SHIPPED, "ERM", [row]).verdict for row in figures.rows}
    assert {row for row, found in verdicts.items() if found == "wins"} == {"airlines", "hotels"}
    assert "loses" not in verdicts.values()
    assert max(figures.values, key=figures.mean) == SHIPPED
    others = [label for label in figures.values if not label.startswith(look.ours)]
    gaps = {label: figures.against(SHIPPED, label, look.compound) for label in others}
    assert all(gap.mean > 0 for gap in gaps.values())
    assert {gaps[f"{label} + SWAD"].verdict for label in ("ERM", "CORAL", "Fish", PAPER)} == {"ties"}
    p = {label: figures.against(label, "ERM").p for label in figures.values if label != "ERM"}
    assert min(step_pages.holm(p).values()) > 0.05
    defaults = RCAlign.Hparams()
    assert {name: getattr(defaults, name) for name in look.candidate} == look.candidate and defaults.weight_average


def test_what_fit_recommends_without_comparing_is_what_the_records_say() -> None:
    """Best of the table where shares of classes differ, and ahead of plain training in it and where they do not."""
    labels = {"SWAD": "ERM + SWAD", "RC-Align": SHIPPED}
    figures, look = third(), confirm.THIRD
    shifted, alike = (labels[recommended(4, shift, images=False)[0].name] for shift in (0.8, 0.0))
    in_shifted = {label: figures.against(label, "ERM", look.compound).mean for label in figures.values}
    assert max(in_shifted, key=in_shifted.__getitem__) == shifted
    rest = [row for row in figures.rows if row not in look.compound]
    assert figures.against(alike, "ERM", rest).mean > 0 and figures.against(alike, "ERM").mean > 0
    assert figures.against("BSoftmax + SWAD", "ERM").verdict == "loses"


def test_wins_and_ties_are_those_of_the_records() -> None:
    lodo = study("lodo")
    assert {name for name in lodo.algorithms if name != "ERM" and verdict("lodo", name) == "wins"} == {
        "RC-Align + SWAD",
        "Fish",
    }
    assert {verdict(name, "RC-Align") for name in ("lodo", "mdlt", "compound")} == {"ties"}
    assert {verdict("lodo", name) for name in plans.ABLATION} == {"ties"}
    assert verdict("mdlt", "M") == verdict("compound", "BSoftmax + SWAD") == verdict("compound", PLUS) == "wins"
    assert {verdict(name, "RC-Align, outer alignment", "RC-Align") for name in ("lodo", "mdlt")} == {"ties"}
    assert verdict("fine-tuning", "RC-Align") == verdict("fine-tuning-long-tailed", "RC-Align") == "loses"
    assert verdict("fine-tuning-longer", "RC-Align") == "ties"
    assert verdict("from-scratch", "RC-Align, ViT", "ERM, ViT") == "loses"
    assert verdict("from-scratch", "RC-Align, ResNet-10", "ERM, ResNet-10") == "ties"
    assert all(difference < 2 * error for difference, error in kept_out())


def test_the_candidate_is_shipped_only_if_it_wins_in_both_settings() -> None:
    assert pages.candidates(RECORDS)[0][0] == PLUS
    assert [verdict(name, PLUS, "RC-Align") for name in ("lodo", "mdlt")] == ["ties", "wins"]


def test_numbers_of_runs() -> None:
    runs = {name: len(records.lines_of(RECORDS / f"{name}.jsonl")) for name in command.STUDIES}
    images = sum(count for name, count in runs.items() if name.startswith(("fine", "from")))
    text = (FOLDER / "README.md").read_text()
    assert f"{sum(runs.values()) - images:,} runs on frozen features, {images} on images" in text
    short = sum(len(step_study.lines_of(file)) for file in RECORDS.glob("table-*.jsonl")) // 2  # with and without SWAD
    assert f"{short:,} short\nruns for the changed step" in text
    more = sum(len(step_study.lines_of(RECORDS / f"{name}.jsonl")) for name in ("confirm", "confirm-afterwards")) // 3
    more += len(step_study.lines_of(RECORDS / "confirm-third.jsonl")) // 2
    assert f"{more:,} more on new data" in text
