"""A diagnosis for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rcalign.diagnosis.advice import answers
from rcalign.diagnosis.findings import Correlation, Diagnosis, HeldOut, MixtureFit, PriorEstimates, Target
from rcalign.diagnosis.transport import Distance

SIGNS = {
    "headline": ("●", "bold red"),
    "good": ("●", "bold green"),
    "feature": ("◆", "magenta"),
    "prior": ("◆", "yellow"),
    "unsupported": ("◆", "red"),
    "support": ("◆", "blue"),
    "target": ("▲", "cyan"),
}


def render_terminal(diagnosis: Diagnosis) -> RenderableType:
    """What ``rich.print`` shows: findings, then the numbers of each domain, the target, the run, the notes."""
    parts: list[RenderableType] = [_findings(diagnosis)]
    if diagnosis.target is not None:
        parts = [_answers(diagnosis), *parts]
    if diagnosis.held_out:
        parts += [_split(diagnosis), _bounds(diagnosis)]
        if any(one.chain is not None for one in diagnosis.held_out):
            parts.append(_chains(diagnosis))
    fits = [one.mixture for one in diagnosis.held_out if one.mixture is not None]
    if diagnosis.target is None and fits:
        parts.append(_mixtures(fits))
    if diagnosis.target is not None:
        parts.append(_target(diagnosis.target))
    if diagnosis.contraction is not None or diagnosis.tracking is not None:
        parts.append(_along_training(diagnosis))
    if diagnosis.notes:
        parts.append(Panel(Text("\n".join(f"· {note}" for note in diagnosis.notes)), title="Notes", title_align="left"))
    return Group(*parts)


def _findings(diagnosis: Diagnosis) -> Panel:
    text = Text()
    for at, finding in enumerate(diagnosis.advice):
        sign, style = SIGNS[finding.kind]
        text.append(("\n" if at else "") + f"{sign} ", style)
        text.append(finding.title + "\n", "bold")
        text.append(f"  {finding.text}\n")
    title = f"{diagnosis.samples:,} samples, {len(diagnosis.domains)} sources, {len(diagnosis.classes)} classes"
    text.rstrip()
    return Panel(text, title=title, title_align="left", padding=(1, 2))


def _answers(diagnosis: Diagnosis) -> Panel:
    """The plain words for a target."""
    assert diagnosis.target is not None
    text = Text()
    for one in answers(diagnosis):
        text.append(f"{one.question} ", "dim")
        text.append(f"{one.answer}\n", {"good": "bold green", "bad": "bold red"}.get(one.kind, "bold"))
        if one.detail:
            text.append(f"  {one.detail}\n")
    if diagnosis.target.unusual:
        listed = ", ".join(f"{one.name} (x {one.times:.1f})" for one in diagnosis.target.unusual[:5])
        text.append("Its most unusual samples: ", "dim")
        text.append(f"{listed}{' ...' if len(diagnosis.target.unusual) > 5 else ''}\n")
    text.rstrip()
    return Panel(text, title=Text(f"The model on {diagnosis.target.name}"), title_align="left", padding=(1, 2))


def _table(title: str, caption: str, *columns: str) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for at, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if at == 0 else "right", overflow="fold")
    return table


def _split(diagnosis: Diagnosis) -> Table:
    """The exact split of every gap."""
    table = _table(
        "Risk of each domain, compared with the others",
        "risk = support + prior + feature + unsupported, exactly (cross-entropy, natural logarithm)"
        + ("" if diagnosis.trained is None else "; * the model was not trained on it"),
        "domain",
        "samples",
        "accuracy",
        "support",
        "+ prior",
        "+ feature",
        "+ unsupp.",
        "= risk",
    )
    for one in diagnosis.held_out:
        new = diagnosis.trained is not None and not diagnosis.is_trained(one.domain)
        table.add_row(
            Text(one.domain + " *" * new),
            f"{one.samples:,}",
            f"{one.accuracy:.1%}",
            _short(one.support_risk),
            _signed(one.prior_part),
            _signed(one.feature_part),
            _signed(one.unsupported_part) if one.unsupported_mass else "–",
            Text(_short(one.risk), "bold"),
        )
    return table


def _bounds(diagnosis: Diagnosis) -> Table:
    lipschitz = diagnosis.lipschitz
    table = _table(
        "Theorem 1: what the risk can be at most",
        f"in the {lipschitz.space}, L = {lipschitz.constant:.4g}; B = largest loss seen = {diagnosis.largest_loss:.4g}",
        "domain",
        "risk",
        "tight bound",
        "bound",
        "Σ|Δπ| R",
        "L Σπ W₁",
        "B × unsupp.",
    )
    for one in diagnosis.held_out:
        table.add_row(
            Text(one.domain),
            _short(one.risk),
            _short(one.tight_bound),
            _short(one.bound),
            _short(one.prior_bound),
            _short(one.feature_bound),
            _short(one.unsupported_bound) if one.unsupported_mass else "–",
        )
    return table


def _chains(diagnosis: Diagnosis) -> Table:
    reports: list[HeldOut] = [one for one in diagnosis.held_out if one.chain is not None]
    chains = [one.chain for one in reports if one.chain is not None]
    table = _table(
        "Theorem 2: from the alignment loss to the distance, each line at most the next",
        f"in the unit features, T = {diagnosis.temperature:g}"
        + (
            "" if any(chain.chained for chain in chains) else "; not chained to Theorem 1: the head reads another space"
        ),
        "",
        *(one.domain for one in reports),
    )
    for at, step in enumerate(chains[0].steps):
        table.add_row(f"{step.name}", *(_short(chain.steps[at].value) for chain in chains))
    table.add_section()
    table.add_row("alignment loss L_DA", *(_short(chain.alignment_loss) for chain in chains))
    table.add_row("Φ measured ≥ Φ bounded", *(f"{chain.phi:.3f} ≥ {chain.phi_bound:.3f}" for chain in chains))
    if any(chain.risk_bound is not None for chain in chains):
        table.add_row("final bound on the risk", *(_short(chain.risk_bound or 0.0) for chain in chains))
    return table


def _mixtures(fits: list[MixtureFit]) -> Table:
    names = list(dict.fromkeys(name for fit in fits for name in fit.sources))
    table = _table(
        "Theorem 3: each domain as a mixture of the others",
        "guarantee = risk of the mixture + L × distance; labels count in the distance",
        "domain",
        *names,
        "distance left",
        "guarantee",
    )
    for fit in fits:
        weight = dict(zip(fit.sources, fit.weights, strict=True))
        shares = [f"{weight[name]:.0%}" if name in weight else "–" for name in names]
        table.add_row(Text(fit.target), *shares, _bracket(fit.distance), _short(fit.guarantee))
    return table


def _target(target: Target) -> Panel:
    fit = target.mixture
    parts: list[RenderableType] = []
    verdict = Text(f"{target.verdict} the sources", "bold red" if target.verdict == "outside" else "bold green")
    line = Text.assemble(f"{target.samples:,} samples, {'labelled' if target.labelled else 'unlabelled'}: ", verdict)
    parts += [line, Text(target.rule, "dim")]
    table = _table("", "", "source", "weight")
    for weight, name in sorted(zip(fit.weights, fit.sources, strict=True), reverse=True):
        table.add_row(Text(name), f"{weight:.1%}")
    parts.append(table)
    known = "" if fit.risk is None else f" (it is {fit.risk:.3f})"
    parts.append(
        Text(
            f"distance left {_bracket(fit.distance)}; risk of the mixture {fit.source_risk:.3f}; "
            f"guarantee: risk ≤ {fit.guarantee:.3f}{known}\nassumption: {fit.assumption}"
        )
    )
    if target.priors is not None:
        parts.append(_priors(target.priors))
    return Panel(Group(*parts), title=Text(f"Target: {target.name}"), title_align="left", padding=(1, 2))


def _priors(priors: PriorEstimates) -> Table:
    table = _table(
        f"Class priors of the target, estimated ({priors.confidence:.0%} bootstrap intervals)",
        "the two agree" if priors.agree else "the two disagree: the target differs by more than its priors",
        "class",
        "sources",
        "EM",
        "black-box shift",
    )
    for name, source, em, bbse in zip(priors.classes, priors.source, priors.em, priors.bbse, strict=True):
        intervals = (f"{one.value:.1%} [{one.low:.1%}, {one.high:.1%}]" for one in (em, bbse))
        table.add_row(Text(name), f"{source:.1%}", *(Text(interval) for interval in intervals))
    return table


def _along_training(diagnosis: Diagnosis) -> Panel:
    lines = []
    if diagnosis.contraction is not None:
        seen = diagnosis.contraction
        lines.append(f"The inner step lowered its objective in {seen.share:.1%} of {len(seen.steps):,} steps.")
        if seen.ratios is not None:
            low, middle, high = seen.ratios
            lines.append(f"After / before: median {middle:.4f}, 10 % below {low:.4f}, 10 % above {high:.4f}.")
        if seen.alignment_holds is not None:
            lines.append(f"Weight × alignment loss after the step was at most J in {seen.alignment_holds:.1%} of them.")
    if diagnosis.tracking is not None:
        track = diagnosis.tracking
        lines.append(f"Alignment loss against gap: all steps {correlation_text(track.everything)}.")
        lines.append(f"Steps from {track.settled_from} on: {correlation_text(track.settled)}.")
    return Panel(Text("\n".join(lines)), title="Along training", title_align="left")


def correlation_text(found: Correlation) -> str:
    """A correlation in words: its size, its p-value and its number of points.

    >>> correlation_text(Correlation(12, 0.5, 0.0123, 1.0, 0.0))
    'r = 0.500, p = 0.012, 12 points'
    >>> correlation_text(Correlation(2, None, None, None, None, "2 points"))
    'no correlation: 2 points'
    """
    if found.r is None or found.p is None:
        return f"no correlation: {found.reason}"
    p = "p < 1e-300" if found.p < 1e-300 else f"p = {found.p:.2g}"
    return f"r = {found.r:.3f}, {p}, {found.n} points"


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def _signed(value: float) -> Text:
    style = "red" if value > 5e-4 else "green" if value < -5e-4 else "dim"
    return Text(f"{value:+.3f}", style)


def _bracket(distance: Distance) -> str:
    return f"{distance.value:.4g}" if distance.exact else f"{distance.value:.4g} ± {distance.error:.2g}"
