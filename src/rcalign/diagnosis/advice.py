"""A diagnosis in plain words: what dominates, and what would help."""

from __future__ import annotations

from rcalign.diagnosis.results import Advice, HeldOut, Target

SMALL = 0.05  # a gap below this share of the support risk, or below TINY, is not worth acting on
TINY = 0.01


def advise(held_out: tuple[HeldOut, ...], target: Target | None) -> tuple[Advice, ...]:
    """Findings: the target's place, the headline, then the others by the risk at stake."""
    findings: list[Advice] = []
    if target is not None:
        findings.append(_about_target(target))
    subject = main_subject(held_out, target)
    if subject is not None:
        rest = [*_about_gap(subject), *_unsupported(held_out), *_about_support(subject)]
        findings += [_headline(subject, held_out), *sorted(rest, key=lambda finding: -finding.amount)]
    return tuple(findings)


def main_subject(held_out: tuple[HeldOut, ...], target: Target | None) -> HeldOut | None:
    """The domain that the report is about: a labelled target, else the one with the largest gap."""
    named = [one for one in held_out if target is not None and one.domain == target.name]
    return max(named or held_out, key=lambda one: one.gap, default=None)


def _matters(report: HeldOut) -> bool:
    return report.gap > max(SMALL * report.support_risk, TINY)


def _headline(hardest: HeldOut, held_out: tuple[HeldOut, ...]) -> Advice:
    largest = len(held_out) > 1 and hardest.gap == max(one.gap for one in held_out)
    numbers = (
        f"risk {hardest.risk:.3f} against {hardest.support_risk:.3f} on its support, "
        f"accuracy {hardest.accuracy:.1%} against {hardest.support_accuracy:.1%}"
    )
    if not _matters(hardest):
        alone = f"'{hardest.domain}' is not much harder than the sources"
        which = "No domain is much harder than the others" if largest else alone
        text = f"The gap of '{hardest.domain}': {numbers}. Shift between the domains costs little here."
        return Advice("good", which, text, 0.0)
    parts = sorted(
        [
            ("features that look different", hardest.feature_part),
            ("classes that are more or less frequent", hardest.prior_part),
            ("classes that no other domain has", hardest.unsupported_part),
        ],
        key=lambda part: -part[1],
    )
    made_of = ", ".join(f"{amount:+.3f} from {name}" for name, amount in parts if abs(amount) >= 5e-4)
    text = f"{numbers[0].upper()}{numbers[1:]}. The gap of {hardest.gap:+.3f} is made of {made_of}."
    title = f"'{hardest.domain}' is {'the domain with the largest gap' if largest else 'harder than the sources'}"
    return Advice("headline", title, text, hardest.gap)


def _about_gap(report: HeldOut) -> list[Advice]:
    """What would close the largest gap: features and priors."""
    if not _matters(report):
        return []
    found = []
    worst = max(report.classes, key=lambda item: item.feature_part)
    if report.feature_part > 0 and worst.feature_part > 0:
        found.append(
            Advice(
                "feature",
                f"Collect '{worst.name}' from '{report.domain}', or align",
                f"Class '{worst.name}' looks different in '{report.domain}' and adds {worst.feature_part:.3f} to the "
                f"risk there, more than any other class; all classes together add {report.feature_part:+.3f}. Samples "
                f"of that class from '{report.domain}', or from a domain like it, help most; an alignment loss works "
                "on all classes at once.",
                report.feature_part,
            )
        )
    most = max(report.classes, key=lambda item: item.prior_part)
    if report.prior_part > SMALL * abs(report.gap) and most.prior_part > 0:
        more = "more" if most.prior > most.support_prior else "less"
        found.append(
            Advice(
                "prior",
                f"Reweight: '{report.domain}' has other class frequencies",
                f"Class '{most.name}' is {more} frequent there ({most.prior:.1%} against {most.support_prior:.1%}), "
                f"which alone adds {most.prior_part:.3f}; all classes together add {report.prior_part:+.3f}. Balanced "
                "sampling, logit adjustment, or adapting the priors at prediction time address this part and no other.",
                report.prior_part,
            )
        )
    return found


def _unsupported(held_out: tuple[HeldOut, ...]) -> list[Advice]:
    cases = [
        (item.unsupported_part, item.name, report.domain)
        for report in held_out
        for item in report.classes
        if item.samples and not item.support_samples
    ]
    if not cases:
        return []
    cases.sort(reverse=True)
    listed = ", ".join(f"'{name}' (only in '{domain}')" for _, name, domain in cases[:5])
    more = f" and {len(cases) - 5} more" if len(cases) > 5 else ""
    return [
        Advice(
            "unsupported",
            f"Collect '{cases[0][1]}' from another domain than '{cases[0][2]}'",
            f"No other domain has {listed}{more}. Nothing learned elsewhere bounds the risk on such a class: "
            "only samples of it help.",
            sum(amount for amount, _, _ in cases),
        )
    ]


def _about_support(hardest: HeldOut) -> list[Advice]:
    risk, gap = hardest.support_risk, hardest.gap
    if risk <= max(gap, 0.0) or risk < SMALL:
        return []
    return [
        Advice(
            "support",
            "The model is not yet good on its own domains",
            f"The risk on the support, {risk:.3f}, is larger than the gap ({gap:+.3f}): a better model (longer "
            "training, a stronger backbone, more data of any kind) gains more than anything done about shift.",
            risk,
        )
    ]


def _yet(target: Target) -> str:
    """What a labelled target's risk says of features that fit a mixture: classes may still sit elsewhere in them."""
    risk, mixture = target.mixture.risk, target.mixture.source_risk
    if risk is None:
        return ": expect the risk of that mixture, unless its classes look different from theirs."
    if risk <= 1.1 * mixture:
        return f", and its risk is that of the mixture ({risk:.3g} against {mixture:.3g})."
    return f", yet its risk is {risk:.3g} against {mixture:.3g} there: its classes lie elsewhere within the same cloud."


def _about_target(target: Target) -> Advice:
    weights = sorted(zip(target.mixture.weights, target.mixture.sources, strict=True), reverse=True)
    nearest = ", ".join(f"{weight:.0%} '{name}'" for weight, name in weights if weight >= 0.005)
    reference = "" if target.reference is None else f"; the farthest source is {target.reference:.3g} from the others"
    floor = "" if target.floor is None else f"; a fresh sample of the sources would be {target.floor:.3g} away"
    close = "It is no farther from them than they are from one another: results on held-out sources are a fair guide."
    if target.reference is None:
        close = "It is farther away than a fresh sample of the source, but not twice as far."
        close = close if target.floor is not None else "There are too few samples to say more."
    distances = f"Its nearest mixture is {nearest}, {target.left:.3g} away{reference}{floor}."
    verdicts = {
        "outside": (
            f"'{target.name}' lies outside the sources",
            "No mixture of the sources looks like it, so results on held-out sources say little about it: "
            "collect samples from it or from domains between it and the sources before relying on the model there.",
        ),
        "near": (
            f"'{target.name}' lies near the sources",
            close,
        ),
        "inside": (
            f"'{target.name}' lies inside the sources",
            f"Its features as a whole cannot be told from a mixture of them{_yet(target)}",
        ),
    }
    title, meaning = verdicts[target.verdict]
    return Advice("target", title, f"{distances} {meaning}", target.mixture.source_risk)
