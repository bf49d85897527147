"""What the page draws, as plain values that ``pages/charts.js`` turns into drawings.

Colours are tokens such as ``@up``, variables of the style sheet in the light and the dark theme, and are read only
where a colour is expected. Names come from the data; the script sets them as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rcalign.diagnosis.findings import (
    ClassShift,
    Contraction,
    Diagnosis,
    HeldOut,
    MixtureFit,
    Picture,
    PriorEstimates,
    Target,
    Tracking,
)

Chart = dict[str, Any]

LABEL_LENGTH = 16
MOST_CLASSES = 60  # in heat maps and tables; JSON has all
MOST_CELL_TEXTS = 120  # beyond, a heat map says its numbers on hover only


def label(name: str, length: int = LABEL_LENGTH) -> str:
    """A name cut to a length.

    >>> label("a very long class name indeed")
    'a very long cla…'
    """
    return name if len(name) <= length else name[: length - 1] + "…"


def figure(data: list[Chart], height: int, **layout: Any) -> Chart:
    """One chart: its traces, its layout, its height in pixels."""
    return {"data": data, "layout": layout, "height": height}


def axis(names: Sequence[str], **more: Any) -> Chart:
    """An axis with the names at 0, 1, 2, ...; names may repeat once they are cut."""
    return {"ticktext": [label(n) for n in names], **more}


def parts(reports: Sequence[HeldOut]) -> Chart:
    """The gap of every domain, by what it comes from."""
    kinds: list[tuple[str, str, Callable[[HeldOut], float]]] = [
        ("prior shift", "@prior", lambda one: one.prior_part),
        ("feature shift", "@feature", lambda one: one.feature_part),
    ]
    if any(one.unsupported_mass for one in reports):
        kinds.append(("classes without support", "@unsupported", lambda one: one.unsupported_part))
    names = [one.domain for one in reports]
    rows = list(range(len(reports)))
    data: list[Chart] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [value(one) for one in reports],
            "y": rows,
            "marker": {"color": color},
            "hover": [f"{label(one.domain, 60)}\n{name} {value(one):+.4f}" for one in reports],
        }
        for name, color, value in kinds
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "gap",
            "x": [one.gap for one in reports],
            "y": rows,
            "marker": {"color": "@text", "symbol": "upright", "size": 22},
            "hover": [f"{label(one.domain, 60)}\ngap {one.gap:+.4f}" for one in reports],
        }
    )
    return figure(
        data,
        90 + 38 * len(reports),
        barmode="relative",
        xaxis={"title": "risk minus support risk", "zeroline": True, "format": "signed"},
        yaxis=axis(names, autorange="reversed"),
        showlegend=False,
    )


def _waterfall(steps: Sequence[tuple[str, str, float]]) -> Chart:
    """steps: (label, "total" or "relative", value)."""
    level, texts, heights = 0.0, [], []
    for _, kind, value in steps:
        level = value if kind == "total" else level + value
        heights.append(level)
        texts.append(f"{value:.3g}" if kind == "total" else f"{value:+.3g}")
    return {
        "type": "waterfall",
        "x": list(range(len(steps))),
        "measure": ["absolute" if at == 0 else kind for at, (_, kind, _) in enumerate(steps)],
        "y": [value for _, _, value in steps],
        "text": texts,
        "colors": {"increasing": "@up", "decreasing": "@down", "totals": "@total"},
        "hover": [f"{_on_one_line(name)}\n{text}" for (name, _, _), text in zip(steps, texts, strict=True)],
    }


def _on_one_line(name: str) -> str:
    return name.replace("\n", " ")


def _steps_figure(steps: Sequence[tuple[str, str, float]], title: str) -> Chart:
    highest = 0.0
    lowest, level = 0.0, 0.0
    for _, kind, value in steps:
        level = value if kind == "total" else level + value
        highest, lowest = max(highest, level), min(lowest, level)
    spread = max(highest - lowest, 1e-12)
    return figure(
        [_waterfall(steps)],
        320,
        xaxis={"ticktext": [name for name, _, _ in steps]},
        yaxis={"title": title, "range": [lowest - 0.02 * spread, highest + 0.14 * spread]},
        showlegend=False,
    )


def exact(one: HeldOut) -> Chart:
    """From the support's risk to the domain's, exactly."""
    steps = [
        ("support", "total", one.support_risk),
        ("prior\nshift", "relative", one.prior_part),
        ("feature\nshift", "relative", one.feature_part),
    ]
    if one.unsupported_mass:
        steps.append(("no\nsupport", "relative", one.unsupported_part))
    return _steps_figure([*steps, ("risk", "total", one.risk)], "risk")


def up_to_the_bound(one: HeldOut) -> Chart:
    """From the domain's risk to the bound: what is lost on the way."""
    prior = one.prior_bound - one.prior_part
    constant = one.bound - one.tight_bound - prior
    steps = [
        ("risk", "total", one.risk),
        ("unused\ndistance", "relative", one.tight_bound - one.risk),
        ("tight\nbound", "total", one.tight_bound),
        ("sign of\npriors", "relative", prior),
        ("looser\nconstant", "relative", constant),
        ("bound", "total", one.bound),
    ]
    return _steps_figure(steps, "risk")


def _if_both(c: ClassShift, value: float) -> float | None:
    return value if c.samples and c.support_samples else None


def _if_supported(c: ClassShift, value: float) -> float | None:
    return value if c.support_samples else None


@dataclass(frozen=True)
class Term:
    """One heat map: its key, its name, what it shows, its colours, and its value for a class (None: there is none)."""

    key: str
    name: str
    meaning: str
    scale: str
    value: Callable[[ClassShift], float | None]


TERMS = (
    Term(
        "feature_part",
        "feature shift",
        "π (R − Rₛ): what looking different adds to the risk",
        "@diverging",
        lambda c: _if_both(c, c.feature_part),
    ),
    Term(
        "prior_part",
        "prior shift",
        "(π − πₛ) Rₛ: what being more or less frequent adds to the risk",
        "@diverging",
        lambda c: _if_supported(c, c.prior_part),
    ),
    Term(
        "unsupported_part",
        "no support",
        "π R of the classes that no other domain has",
        "@sequential",
        lambda c: c.unsupported_part if c.samples and not c.support_samples else None,
    ),
    Term("risk", "risk", "R: the mean loss on the class", "@sequential", lambda c: c.risk),
    Term("prior", "prior", "π: the share of the class in the domain", "@sequential", lambda c: c.prior),
    Term(
        "distance",
        "distance",
        "W₁ between the class here and in the support",
        "@sequential",
        lambda c: None if c.distance is None else c.distance.value,
    ),
    Term(
        "feature_bound",
        "feature bound",
        "L π W₁: the part of the class in the bound for features",
        "@sequential",
        lambda c: _if_both(c, c.feature_bound),
    ),
    Term(
        "prior_bound",
        "prior bound",
        "|π − πₛ| Rₛ: the part of the class in the bound for priors",
        "@sequential",
        lambda c: _if_supported(c, c.prior_bound),
    ),
)


def _written(rows: Sequence[Sequence[float | None]], digits: str) -> list[list[str]]:
    return [["" if value is None else format(value, digits) for value in row] for row in rows]


def classes_that_matter(diagnosis: Diagnosis, most: int = MOST_CLASSES) -> list[int]:
    """Positions of the classes with the largest parts in the gaps of all domains: at most so many, in their order."""

    def at_stake(c: int) -> float:
        each = [one.classes[c] for one in diagnosis.held_out]
        return sum(abs(item.prior_part) + abs(item.feature_part) + item.unsupported_part for item in each)

    count = len(diagnosis.classes)
    return sorted(sorted(range(count), key=lambda c: (-at_stake(c), c))[:most])


def heat_map(diagnosis: Diagnosis, term: Term) -> Chart:
    """One number for every class that matters and every domain; empty where it does not exist."""
    reports, chosen = diagnosis.held_out, classes_that_matter(diagnosis)
    rows = [[term.value(one.classes[c]) for one in reports] for c in chosen]
    classes = [diagnosis.classes[c] for c in chosen]
    known = [number for row in rows for number in row if number is not None]
    most = max((abs(number) for number in known), default=0.0) or 1.0
    low = -most if term.scale == "@diverging" else 0.0
    shown = len(reports) * len(rows) <= MOST_CELL_TEXTS
    names = [[f"{label(name, 60)}, {label(one.domain, 60)}" for one in reports] for name in classes]
    return figure(
        [
            {
                "type": "heatmap",
                "z": rows,
                "x": list(range(len(reports))),
                "y": list(range(len(rows))),
                "zmin": low,
                "zmax": most,
                "colorscale": term.scale,
                "text": _written(rows, ".3g") if shown else None,
                "hover": [
                    [f"{name}\n{text}" for name, text in zip(of_row, texts, strict=True)]
                    for of_row, texts in zip(names, _written(rows, ".5g"), strict=True)
                ],
            }
        ],
        90 + max(24, min(34, 900 // len(rows))) * len(rows),
        xaxis=axis([one.domain for one in reports], side="top"),
        yaxis=axis(classes, autorange="reversed"),
    )


def chain(one: HeldOut) -> Chart:
    """The inequalities of Theorem 2, each at most the next."""
    assert one.chain is not None
    steps = one.chain.steps
    return figure(
        [
            {
                "type": "bar",
                "orientation": "h",
                "x": [step.value for step in steps],
                "y": list(range(len(steps))),
                "marker": {"color": ["@feature", *["@total"] * (len(steps) - 1)]},
                "text": [f"{step.value:.3g}" for step in steps],
                "hover": [f"{step.formula}\n{step.value:.5g}" for step in steps],
            }
        ],
        60 + 34 * len(steps),
        xaxis={"title": "distance"},
        yaxis={"ticktext": [step.name for step in steps], "autorange": "reversed"},
        showlegend=False,
    )


def _weights_of(name: str, fits: Sequence[MixtureFit]) -> list[float]:
    return [dict(zip(fit.sources, fit.weights, strict=True)).get(name, 0.0) for fit in fits]


def mixtures(fits: Sequence[MixtureFit], domains: Sequence[str]) -> Chart:
    """Each target as a mixture of sources, one bar in the colours of the domains."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(name),
            "x": _weights_of(name, fits),
            "y": list(range(len(fits))),
            "marker": {"color": f"@domain{at}"},
            "hover": [f"{label(name, 60)}: {weight:.1%}" for weight in _weights_of(name, fits)],
            "text": [f"{weight:.0%}" if weight >= 0.04 else "" for weight in _weights_of(name, fits)],
        }
        for at, name in enumerate(domains)
        if any(name in fit.sources for fit in fits)
    ]
    return figure(
        data,
        100 + 38 * len(fits),
        barmode="stack",
        xaxis={"format": "percent", "range": [0, 1]},
        yaxis=axis([fit.target for fit in fits], autorange="reversed"),
    )


def ruler(target: Target) -> Chart:
    """How far the target is, between what is inside and what is outside."""
    marks = [("fresh sample of the sources", target.floor, "@good"), ("farthest source", target.reference, "@total")]
    marks.append((target.name, target.left, "@bad" if target.verdict == "outside" else "@accent"))
    known = [(name, value, color) for name, value, color in marks if value is not None]
    return figure(
        [
            {
                "type": "bar",
                "orientation": "h",
                "x": [value for _, value, _ in known],
                "y": list(range(len(known))),
                "marker": {"color": [color for _, _, color in known]},
                "text": [f"{value:.3g}" for _, value, _ in known],
                "hover": [f"{name}\n{value:.5g}" for name, value, _ in known],
            }
        ],
        70 + 36 * len(known),
        xaxis={"title": "distance to the best mixture", "rangemode": "tozero"},
        yaxis={"ticktext": [label(name, 28) for name, _, _ in known], "autorange": "reversed"},
        showlegend=False,
    )


def priors_chart(estimates: PriorEstimates) -> Chart:
    """Priors of the target by both methods, with intervals, beside those of the sources; of the most frequent."""
    by_share = sorted(range(len(estimates.classes)), key=lambda c: (-estimates.em[c].value, c))
    estimates = estimates.of(sorted(by_share[:MOST_CLASSES]))
    rows = list(range(len(estimates.classes)))
    data: list[Chart] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "sources",
            "x": list(estimates.source),
            "y": rows,
            "marker": {"symbol": "upright", "size": 16, "color": "@muted"},
            "hover": [
                f"{label(name, 60)}\nsources {share:.1%}"
                for name, share in zip(estimates.classes, estimates.source, strict=True)
            ],
        }
    ]
    for name, values, color, shift in (
        ("EM", estimates.em, "@feature", -0.14),
        ("black-box shift", estimates.bbse, "@prior", 0.14),
    ):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [one.value for one in values],
                "y": [row + shift for row in rows],
                "marker": {"size": 9, "color": color},
                "error_x": {
                    "array": [one.high - one.value for one in values],
                    "arrayminus": [one.value - one.low for one in values],
                },
                "hover": [
                    f"{label(of, 60)}\n{name} {one.value:.1%} [{one.low:.1%}, {one.high:.1%}]"
                    for of, one in zip(estimates.classes, values, strict=True)
                ],
            }
        )
    return figure(
        data,
        110 + max(26, min(36, 900 // len(rows))) * len(rows),
        xaxis={"format": "percent", "rangemode": "tozero"},
        yaxis=axis(estimates.classes, autorange="reversed"),
    )


def picture_chart(shown: Picture, classes: Sequence[str]) -> Chart:
    """Samples on two axes, coloured by domain; a large mark at each domain's mean."""
    data: list[Chart] = []
    for at, name in enumerate(shown.domains):
        points = [(x, y, c) for x, y, d, c in shown.points if d == at]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(name),
                "x": [round(x, 5) for x, _, _ in points],
                "y": [round(y, 5) for _, y, _ in points],
                "marker": {"color": f"@domain{at}", "size": 5, "opacity": 0.55},
                "hover": [
                    f"{label(name, 60)}, {label(classes[c], 60) if c >= 0 else 'no label'}" for _, _, c in points
                ],
            }
        )
    for at, name in enumerate(shown.domains):
        points = [(x, y, c) for x, y, d, c in shown.points if d == at]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "showlegend": False,
                "x": [sum(x for x, _, _ in points) / len(points)],
                "y": [sum(y for _, y, _ in points) / len(points)],
                "marker": {"color": f"@domain{at}", "size": 17, "symbol": "diamond"},
                "hover": [f"mean of {label(name, 60)}"],
            }
        )
    first, second = shown.explained
    return figure(
        data,
        460,
        xaxis={"title": f"first axis, {first:.0%} of the variance"},
        yaxis={"title": f"second axis, {second:.0%}"},
    )


def contraction_chart(seen: Contraction) -> Chart:
    """J before and after the inner step, along training."""
    lines = (("before the inner step", seen.before, "@total"), ("after", seen.after, "@accent"))
    return figure(
        [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": list(seen.steps),
                "y": list(values),
                "line": {"color": color, "width": 1.6},
                "hover": [f"{name}\nstep {step}: {value:.4f}" for step, value in zip(seen.steps, values, strict=True)],
            }
            for name, values, color in lines
        ],
        320,
        xaxis={"title": "step"},
        yaxis={"title": "inner objective J"},
    )


def tracking_chart(seen: Tracking) -> Chart:
    """Alignment loss against the gap, with the line of all steps and that of the settled ones."""
    data: list[Chart] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "checkpoints",
            "showlegend": False,
            "x": list(seen.alignment),
            "y": list(seen.gap),
            "scale_title": "step",
            "marker": {"color": list(seen.steps), "colorscale": "@sequential", "size": 6, "opacity": 0.8},
            "hover": [
                f"step {step}\nalignment loss {alignment:.4f}\ngap {gap:+.4f}"
                for step, alignment, gap in zip(seen.steps, seen.alignment, seen.gap, strict=True)
            ],
        }
    ]
    ends = [min(seen.alignment), max(seen.alignment)]
    for name, found, color, dash in (
        ("all steps", seen.everything, "@accent", "solid"),
        (f"steps ≥ {seen.settled_from}", seen.settled, "@up", "dash"),
    ):
        if found.r is not None and found.slope is not None and found.intercept is not None:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{name}, r = {found.r:.3f}",
                    "x": ends,
                    "y": [found.intercept + found.slope * x for x in ends],
                    "line": {"color": color, "dash": dash, "width": 2},
                }
            )
    return figure(
        data,
        400,
        xaxis={"title": "alignment loss of the held-out domain"},
        yaxis={"title": "generalisation gap"},
    )
