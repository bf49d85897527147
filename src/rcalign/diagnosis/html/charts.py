"""What the page draws: Plotly figures as plain dicts.

Colours are tokens such as ``@up``; the script of the page gives them their value in the light or the dark theme, and
only where a colour is expected. Names come from the data: they are escaped here, because Plotly reads labels as HTML.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rcalign.diagnosis.results import (
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

Figure = dict[str, Any]

LABEL_LENGTH = 16
MOST_CELL_TEXTS = 120  # beyond, a heat map says its numbers on hover only


def label(name: str, length: int = LABEL_LENGTH) -> str:
    """A name as Plotly may show it: cut, and with nothing that it would read as HTML.

    >>> label("<b>bold</b>"), label("a very long class name indeed")
    ('&lt;b&gt;bold&lt;/b&gt;', 'a very long cla…')
    """
    return html.escape(name if len(name) <= length else name[: length - 1] + "…", quote=False)


def figure(data: list[Figure], height: int, **layout: Any) -> Figure:
    """One chart: its traces, its layout, its height in pixels."""
    return {"data": data, "layout": {"height": height, **layout}}


def axis(names: Sequence[str], **more: Any) -> Figure:
    """An axis with the names at 0, 1, 2, ...; names may repeat once they are cut."""
    return {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [label(n) for n in names], **more}


def parts(reports: Sequence[HeldOut]) -> Figure:
    """The gap of every domain, by what it comes from."""
    kinds: list[tuple[str, str, Callable[[HeldOut], float]]] = [
        ("prior shift", "@prior", lambda one: one.prior_part),
        ("feature shift", "@feature", lambda one: one.feature_part),
    ]
    if any(one.unsupported_mass for one in reports):
        kinds.append(("classes without support", "@unsupported", lambda one: one.unsupported_part))
    names = [one.domain for one in reports]
    rows = list(range(len(reports)))
    data: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [value(one) for one in reports],
            "y": rows,
            "marker": {"color": color},
            "hovertext": [label(n, 60) for n in names],
            "hovertemplate": f"%{{hovertext}}<br>{name} %{{x:+.4f}}<extra></extra>",
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
            "marker": {"color": "@text", "symbol": "line-ns-open", "size": 22, "line": {"width": 3, "color": "@text"}},
            "hovertext": [label(n, 60) for n in names],
            "hovertemplate": "%{hovertext}<br>gap %{x:+.4f}<extra></extra>",
        }
    )
    return figure(
        data,
        90 + 38 * len(reports),
        barmode="relative",
        xaxis={
            "title": {"text": "risk minus support risk"},
            "zeroline": True,
            "tickformat": "+.2~g",
        },
        yaxis=axis(names, autorange="reversed"),
        showlegend=False,
    )


def _waterfall(steps: Sequence[tuple[str, str, float]]) -> Figure:
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
        "textposition": "outside",
        "cliponaxis": False,
        "connector": {"line": {"color": "@grid", "width": 1}},
        "increasing": {"marker": {"color": "@up"}},
        "decreasing": {"marker": {"color": "@down"}},
        "totals": {"marker": {"color": "@total"}},
        "hovertemplate": "%{customdata}<br>%{text}<extra></extra>",
        "customdata": [html.escape(name.replace("<br>", " ")) for name, _, _ in steps],
    }


def _steps_figure(steps: Sequence[tuple[str, str, float]], title: str) -> Figure:
    highest = 0.0
    lowest, level = 0.0, 0.0
    for _, kind, value in steps:
        level = value if kind == "total" else level + value
        highest, lowest = max(highest, level), min(lowest, level)
    spread = max(highest - lowest, 1e-12)
    return figure(
        [_waterfall(steps)],
        320,
        xaxis={
            "tickmode": "array",
            "tickvals": list(range(len(steps))),
            "ticktext": [name for name, _, _ in steps],
            "tickangle": 0,
        },
        yaxis={"title": {"text": title}, "range": [lowest - 0.02 * spread, highest + 0.14 * spread]},
        showlegend=False,
    )


def exact(one: HeldOut) -> Figure:
    """From the support's risk to the domain's, exactly."""
    steps = [
        ("support", "total", one.support_risk),
        ("prior<br>shift", "relative", one.prior_part),
        ("feature<br>shift", "relative", one.feature_part),
    ]
    if one.unsupported_mass:
        steps.append(("no<br>support", "relative", one.unsupported_part))
    return _steps_figure([*steps, ("risk", "total", one.risk)], "risk")


def up_to_the_bound(one: HeldOut) -> Figure:
    """From the domain's risk to the bound: what is lost on the way."""
    prior = one.prior_bound - one.prior_part
    constant = one.bound - one.tight_bound - prior
    steps = [
        ("risk", "total", one.risk),
        ("unused<br>distance", "relative", one.tight_bound - one.risk),
        ("tight<br>bound", "total", one.tight_bound),
        ("sign of<br>priors", "relative", prior),
        ("looser<br>constant", "relative", constant),
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


def heat_map(diagnosis: Diagnosis, term: Term) -> Figure:
    """One number for every class and held-out domain; empty where it does not exist."""
    reports = diagnosis.held_out
    rows = [[term.value(one.classes[c]) for one in reports] for c in range(len(diagnosis.classes))]
    known = [number for row in rows for number in row if number is not None]
    most = max((abs(number) for number in known), default=0.0) or 1.0
    low = -most if term.scale == "@diverging" else 0.0
    shown = len(reports) * len(rows) <= MOST_CELL_TEXTS
    names = [[f"{label(name, 60)}, {label(one.domain, 60)}" for one in reports] for name in diagnosis.classes]
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
                "xgap": 2,
                "ygap": 2,
                "hoverongaps": False,
                "customdata": names,
                "texttemplate": "%{z:.3g}" if shown else "",
                "hovertemplate": "%{customdata}<br>%{z:.5g}<extra></extra>",
                "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.9, "nticks": 5},
            }
        ],
        90 + max(24, min(34, 900 // len(rows))) * len(rows),
        xaxis=axis([one.domain for one in reports], side="top", showgrid=False),
        yaxis=axis(diagnosis.classes, autorange="reversed", showgrid=False),
        margin={"t": 40},
    )


def chain(one: HeldOut) -> Figure:
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
                "textposition": "inside",
                "textangle": 0,
                "textfont": {"color": "@onfill"},
                "customdata": [step.formula for step in steps],
                "hovertemplate": "%{customdata}<br>%{x:.5g}<extra></extra>",
            }
        ],
        60 + 34 * len(steps),
        xaxis={"title": {"text": "distance"}},
        yaxis={
            "tickmode": "array",
            "tickvals": list(range(len(steps))),
            "ticktext": [step.name for step in steps],
            "autorange": "reversed",
        },
        showlegend=False,
    )


def _weights_of(name: str, fits: Sequence[MixtureFit]) -> list[float]:
    return [dict(zip(fit.sources, fit.weights, strict=True)).get(name, 0.0) for fit in fits]


def mixtures(fits: Sequence[MixtureFit], domains: Sequence[str]) -> Figure:
    """Each target as a mixture of sources, one bar in the colours of the domains."""
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(name),
            "x": _weights_of(name, fits),
            "y": list(range(len(fits))),
            "marker": {"color": f"@domain{at}"},
            "hovertemplate": f"{label(name, 60)}: %{{x:.1%}}<extra></extra>",
            "text": [f"{weight:.0%}" if weight >= 0.04 else "" for weight in _weights_of(name, fits)],
            "textfont": {"color": "@onfill"},
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
        }
        for at, name in enumerate(domains)
        if any(name in fit.sources for fit in fits)
    ]
    return figure(
        data,
        100 + 38 * len(fits),
        barmode="stack",
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis=axis([fit.target for fit in fits], autorange="reversed"),
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        margin={"t": 36},
    )


def ruler(target: Target) -> Figure:
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
                "textposition": "inside",
                "textangle": 0,
                "textfont": {"color": "@onfill"},
                "hovertemplate": "%{x:.5g}<extra></extra>",
            }
        ],
        70 + 36 * len(known),
        xaxis={"title": {"text": "distance to the best mixture"}, "rangemode": "tozero"},
        yaxis={
            "tickmode": "array",
            "tickvals": list(range(len(known))),
            "ticktext": [label(name, 28) for name, _, _ in known],
            "autorange": "reversed",
        },
        showlegend=False,
    )


def priors(estimates: PriorEstimates) -> Figure:
    """Priors of the target by both methods, with intervals, beside those of the sources."""
    rows = list(range(len(estimates.classes)))
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "sources",
            "x": list(estimates.source),
            "y": rows,
            "marker": {
                "symbol": "line-ns-open",
                "size": 16,
                "color": "@muted",
                "line": {"width": 2, "color": "@muted"},
            },
            "hovertemplate": "sources %{x:.1%}<extra></extra>",
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
                    "type": "data",
                    "symmetric": False,
                    "array": [one.high - one.value for one in values],
                    "arrayminus": [one.value - one.low for one in values],
                    "color": color,
                    "thickness": 2,
                    "width": 0,
                },
                "customdata": [[one.low, one.high] for one in values],
                "hovertemplate": f"{name} %{{x:.1%}} [%{{customdata[0]:.1%}}, %{{customdata[1]:.1%}}]<extra></extra>",
            }
        )
    return figure(
        data,
        110 + max(26, min(36, 900 // len(rows))) * len(rows),
        xaxis={"tickformat": ".0%", "rangemode": "tozero"},
        yaxis=axis(estimates.classes, autorange="reversed"),
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
    )


def picture(shown: Picture, classes: Sequence[str]) -> Figure:
    """Samples on two axes, coloured by domain; a large mark at each domain's mean."""
    data: list[Figure] = []
    for at, name in enumerate(shown.domains):
        points = [(x, y, c) for x, y, d, c in shown.points if d == at]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(name),
                "legendgroup": str(at),
                "x": [round(x, 5) for x, _, _ in points],
                "y": [round(y, 5) for _, y, _ in points],
                "marker": {"color": f"@domain{at}", "size": 5, "opacity": 0.55},
                "customdata": [label(classes[c], 60) if c >= 0 else "no label" for _, _, c in points],
                "hovertemplate": f"{label(name, 60)}, %{{customdata}}<extra></extra>",
            }
        )
    for at, name in enumerate(shown.domains):
        points = [(x, y, c) for x, y, d, c in shown.points if d == at]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "showlegend": False,
                "legendgroup": str(at),
                "x": [sum(x for x, _, _ in points) / len(points)],
                "y": [sum(y for _, y, _ in points) / len(points)],
                "marker": {
                    "color": f"@domain{at}",
                    "size": 17,
                    "symbol": "diamond",
                    "line": {"width": 2, "color": "@surface"},
                },
                "hovertemplate": f"mean of {label(name, 60)}<extra></extra>",
            }
        )
    first, second = shown.explained
    return figure(
        data,
        460,
        xaxis={"title": {"text": f"first axis, {first:.0%} of the variance"}, "zeroline": False},
        yaxis={"title": {"text": f"second axis, {second:.0%}"}, "zeroline": False},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
    )


def contraction(seen: Contraction) -> Figure:
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
                "hovertemplate": "step %{x}: %{y:.4f}<extra></extra>",
            }
            for name, values, color in lines
        ],
        320,
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": "inner objective J"}},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
    )


def tracking(seen: Tracking) -> Figure:
    """Alignment loss against the gap, with the line of all steps and that of the settled ones."""
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "checkpoints",
            "showlegend": False,
            "x": list(seen.alignment),
            "y": list(seen.gap),
            "marker": {
                "color": list(seen.steps),
                "colorscale": "@sequential",
                "size": 6,
                "opacity": 0.8,
                "colorbar": {"title": {"text": "step"}, "thickness": 10, "outlinewidth": 0},
            },
            "customdata": list(seen.steps),
            "hovertemplate": "step %{customdata}<br>alignment loss %{x:.4f}<br>gap %{y:+.4f}<extra></extra>",
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
                    "hoverinfo": "skip",
                }
            )
    return figure(
        data,
        400,
        xaxis={"title": {"text": "alignment loss of the held-out domain"}},
        yaxis={"title": {"text": "generalisation gap"}},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        margin={"t": 36},
    )
