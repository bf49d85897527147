"""The page that ``fit`` leaves: one HTML file without scripts, charts drawn as SVG."""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from rcalign.fit.expectation import RULE_WORDS
from rcalign.sweeps.progress import duration

if TYPE_CHECKING:
    from rcalign.fit.pipeline import Fitted

MOST_DOMAINS = 40  # rows of a chart


def render_page(fitted: Fitted) -> str:
    """The whole page, well under 1.5 MB."""
    return _template().render(
        fitted=fitted,
        domains=fitted.look.domains,
        expectation_chart=None if fitted.expectation is None else _expectation_chart(fitted),
        shares=_shares(fitted),
        abstention_chart=_abstention_chart(fitted.abstention),
        spent=duration(fitted.seconds),
        budget="none" if math.isinf(fitted.budget) else duration(fitted.budget),
        rule_words="" if fitted.choice is None else RULE_WORDS[fitted.choice.rule],
    )


def _expectation_chart(fitted: Fitted) -> Markup:
    """Each left-out domain as a dot, the interval for the next one as a band, what is expected as a line."""
    found = fitted.expectation
    assert found is not None
    items = list(found.nested.items())[:MOST_DOMAINS]
    left, width, row = 118, 400, 26  # as wide as a telephone, so that its text can be read there
    height = row * (len(items) + 1) + 46

    def at(value: float) -> float:
        return left + (width - left - 44) * value  # the figure of a dot at 100 % stands beside it

    low, high = found.interval
    band = row * (len(items) + 1) + 8
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Accuracy on each left-out domain and the interval '
        'for the next one">'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="4" y2="{band}"/>'
            f'<text class="tick" x="{at(tick):.1f}" y="{band + 18}" text-anchor="middle">{100 * tick:g} %</text>'
        )
    parts.append(
        f'<rect class="band" x="{at(low):.1f}" y="4" width="{max(1.0, at(high) - at(low)):.1f}" height="{band - 4}"/>'
        f'<line class="expected" x1="{at(found.expected):.1f}" x2="{at(found.expected):.1f}" y1="4" y2="{band}"/>'
    )
    for k, (name, value) in enumerate(items):
        y = 18 + row * k
        parts.append(
            f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(_short(name, 15))}</text>'
            f'<circle class="dot" cx="{at(value):.1f}" cy="{y}" r="5"><title>{escape(name)}: {100 * value:.1f} %'
            f'</title></circle><text class="value" x="{at(value) + 9:.1f}" y="{y + 4}">'
            f"{100 * value:.0f} %</text>"
        )
    y = 18 + row * len(items)
    parts.append(
        f'<text class="name strong" x="{left - 10}" y="{y + 4}" text-anchor="end">the next one</text>'
        f'<line class="interval" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}"/>'
        f'<circle class="next" cx="{at(found.expected):.1f}" cy="{y}" r="6"/>'
    )
    return Markup("".join(parts) + "</svg>")


def _abstention_chart(rows: Any) -> Markup | None:
    """Accuracy of the answers over the share of rows that are answered."""
    if len(rows) < 2:
        return None
    width, height, left, bottom = 400, 220, 52, 40
    lowest = min(0.5, min(row["accuracy"] for row in rows))

    def x(value: float) -> float:
        return left + (width - left - 24) * value

    def y(value: float) -> float:
        return 10 + (height - bottom - 10) * (1 - value) / (1 - lowest)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Accuracy of answers over the share of rows '
        'answered">'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{height - 20}" text-anchor="middle">{100 * tick:g} %</text>'
        )
    for k in range(5):
        value = lowest + (1 - lowest) * k / 4
        parts.append(
            f'<line class="grid" x1="{left}" x2="{width - 24}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text class="tick" x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{100 * value:.0f} %</text>'
        )
    points = " ".join(f"{x(row['answered']):.1f},{y(row['accuracy']):.1f}" for row in rows)
    parts.append(f'<polyline class="curve" points="{points}"/>')
    for row in rows:
        parts.append(
            f'<circle class="dot" cx="{x(row["answered"]):.1f}" cy="{y(row["accuracy"]):.1f}" r="3.5"><title>'
            f"threshold {row['threshold']:.2f}: {100 * row['answered']:.0f} % answered, "
            f"{100 * row['accuracy']:.1f} % right</title></circle>"
        )
    parts.append(f'<text class="tick" x="{x(0.5):.1f}" y="{height - 3}" text-anchor="middle">rows answered</text>')
    return Markup("".join(parts) + "</svg>")


def _shares(fitted: Fitted) -> list[dict[str, Any]]:
    """Per domain: rows and the share of each class, of at most twelve classes."""
    rows = []
    for name, counts in zip(fitted.look.domains, fitted.look.counts, strict=True):
        total = max(1, sum(counts))
        rows.append({"domain": name, "rows": sum(counts), "shares": [count / total for count in counts[:12]]})
    return rows[:MOST_DOMAINS]


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        percent=lambda value, digits=1: f"{100 * value:.{digits}f} %",
        short=_short,
        sentence=lambda text: text[:1].upper() + text[1:],
    )
    text = resources.files("rcalign.fit").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(text)
