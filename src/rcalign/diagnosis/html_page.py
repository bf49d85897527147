"""The page of a diagnosis: template, style, scripts and figures in one string that asks nothing of the network."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from rcalign.diagnosis import charts
from rcalign.diagnosis.advice import answers, main_subject
from rcalign.diagnosis.findings import Diagnosis
from rcalign.diagnosis.terminal import correlation_text
from rcalign.diagnosis.transport import Distance
from rcalign.pages import chart_script, chart_style, embedded


def render_html(diagnosis: Diagnosis) -> str:
    """The whole report as one page that needs no network.

    The first screen answers in plain words; the theorems and their numbers are folded below where there is a target.
    """
    figures = _figures(diagnosis)
    return _template().render(
        diagnosis=diagnosis,
        answers=answers(diagnosis),
        shown=charts.classes_that_matter(diagnosis),
        subject=main_subject(diagnosis.held_out, diagnosis.target),
        fits=[one.mixture for one in diagnosis.held_out if one.mixture is not None],
        terms=_terms(diagnosis),
        figures=Markup(embedded(figures)),
        heights={name: figure["height"] for name, figure in figures.items()},
        style=Markup(chart_style() + _file("style.css")),
        script=Markup(chart_script() + _file("script.js")),
    )


def _terms(diagnosis: Diagnosis) -> list[charts.Term]:
    """The heat maps that have something to show."""
    missing = any(one.unsupported_mass for one in diagnosis.held_out)
    return [term for term in charts.TERMS if missing or term.key != "unsupported_part"]


def _figures(diagnosis: Diagnosis) -> dict[str, charts.Chart]:
    """Name of the chart -> figure."""
    reports = diagnosis.held_out
    found: dict[str, charts.Chart] = {"picture": charts.picture_chart(diagnosis.picture, diagnosis.classes)}
    if reports:
        found["parts"] = charts.parts(reports)
        found |= {f"heat-{term.key}": charts.heat_map(diagnosis, term) for term in _terms(diagnosis)}
    for at, one in enumerate(reports):
        found[f"exact-{at}"] = charts.exact(one)
        found[f"bound-{at}"] = charts.up_to_the_bound(one)
        if one.chain is not None:
            found[f"chain-{at}"] = charts.chain(one)
    fits = [one.mixture for one in reports if one.mixture is not None]
    if diagnosis.target is not None:
        found["mixtures"] = charts.mixtures([diagnosis.target.mixture], diagnosis.picture.domains)
        found["ruler"] = charts.ruler(diagnosis.target)
        if diagnosis.target.priors is not None:
            found["priors"] = charts.priors_chart(diagnosis.target.priors)
    elif fits:
        found["mixtures"] = charts.mixtures(fits, diagnosis.picture.domains)
    if diagnosis.contraction is not None:
        found["contraction"] = charts.contraction_chart(diagnosis.contraction)
    if diagnosis.tracking is not None:
        found["tracking"] = charts.tracking_chart(diagnosis.tracking)
    return found


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.4g}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _bracket(distance: Distance | None) -> str:
    if distance is None:
        return "–"
    return f"{distance.value:.4g}" if distance.exact else f"{distance.value:.4g} ± {distance.error:.2g}"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        number=_number,
        signed=_signed,
        bracket=_bracket,
        percent=lambda value: f"{value:.1%}",
        correlation=correlation_text,
    )
    return environment.from_string(_file("page.html"))
