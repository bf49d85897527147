"""A diagnosis in plain words: what dominates, and what would help."""

from __future__ import annotations

from rcalign.diagnosis.findings import Advice, Answer, Diagnosis, HeldOut, PriorEstimates, Target

SMALL = 0.05  # a gap below this share of the support risk, or below TINY, is not worth acting on
TINY = 0.01


def advise(held_out: tuple[HeldOut, ...], target: Target | None) -> tuple[Advice, ...]:
    """Findings: the target's place, the headline, then the others by the risk at stake."""
    findings: list[Advice] = []
    if target is not None:
        findings.append(_about_target(target, next((one for one in held_out if one.domain == target.name), None)))
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


def falls_short(report: HeldOut) -> bool:
    """Whether accuracy was measured to be lower than on the support: by five points, and by two standard errors."""
    drop = report.support_accuracy - report.accuracy
    error = (report.accuracy * (1 - report.accuracy) / report.samples) ** 0.5
    return drop > max(0.05, 2 * error)


def _about_target(target: Target, measured: HeldOut | None) -> Advice:
    """Where the target lies, weighed by what was measured there."""
    weights = sorted(zip(target.mixture.weights, target.mixture.sources, strict=True), reverse=True)
    nearest = ", ".join(f"{weight:.0%} '{name}'" for weight, name in weights if weight >= 0.005)
    reference = "" if target.reference is None else f"; the farthest source is {target.reference:.3g} from the others"
    floor = "" if target.floor is None else f"; a fresh sample of the sources would be {target.floor:.3g} away"
    close = "It differs from them no more than they differ from one another."
    if target.reference is None:
        close = "It is farther away than a fresh sample of the source, but not twice as far."
        close = close if target.floor is not None else "There are too few samples to say more."
    distances = f"Its nearest mixture is {nearest}, {target.left:.3g} away{reference}{floor}."
    title, meaning = {
        "outside": (
            f"'{target.name}' lies outside the sources",
            "No mixture of the sources looks like it, so results on other domains say little about it: "
            "collect samples from it or from domains between it and the sources before relying on the model there.",
        ),
        "near": (f"'{target.name}' lies near the sources", close),
        "inside": (
            f"'{target.name}' lies inside the sources",
            "Its features as a whole cannot be told from a mixture of them.",
        ),
    }[target.verdict]
    if measured is None:
        if target.verdict == "inside":
            meaning += " Expect the risk of that mixture, unless its classes look different from theirs."
    elif falls_short(measured):
        meaning += (
            f" Yet accuracy there was measured to be {measured.accuracy:.1%}, against {measured.support_accuracy:.1%} "
            "on the sources: its classes look different within that cloud, and results on the sources are no guide."
        )
        if target.verdict != "outside":
            title += ", but the model does much worse there"
    else:
        meaning += (
            f" Accuracy there was measured to be {measured.accuracy:.1%}, against {measured.support_accuracy:.1%} on "
            "the sources."
        )
    return Advice("target", title, f"{distances} {meaning}", target.mixture.source_risk)


def answers(diagnosis: Diagnosis) -> tuple[Answer, ...]:
    """What someone with a new site asks, answered in plain words; nothing if there is no target."""
    target = diagnosis.target
    if target is None:
        return ()
    measured = next((one for one in diagnosis.held_out if one.domain == target.name), None)
    found = [_looks(target), _accuracy(target, measured)]
    if target.priors is not None:
        found.append(_shares(target.priors))
    weights = sorted(zip(target.mixture.weights, target.mixture.sources, strict=True), reverse=True)
    alike = ", ".join(f"'{name}' ({weight:.0%})" for weight, name in weights if weight >= 0.05)
    found.append(
        Answer("plain", "Which known site is it most like?", alike, "The mix of known sites that comes closest to it.")
    )
    return (*found, _what_to_do(target, measured))


def _looks(target: Target) -> Answer:
    kind, answer, detail = {
        "inside": ("good", "Yes.", "Its samples cannot be told from a mix of samples of the known sites."),
        "near": (
            "plain",
            "Not quite.",
            "It differs from the known sites, but no more than they differ from each other.",
        ),
        "outside": ("bad", "No.", "It is farther from the known sites than any of them is from the others."),
    }[target.verdict]
    if target.p is None:
        answer, detail = "Cannot be said.", "There are too few samples to compare."
    elif target.reference is None and target.verdict == "near":
        detail = "It differs from the one known site, though not by far."
    elif target.reference is None and target.verdict == "outside":
        detail = "It is more than twice as far from the one known site as a fresh sample of that site would be."
    return Answer(kind, "Does it look like what the model knows?", answer, detail)


def _accuracy(target: Target, measured: HeldOut | None) -> Answer:
    question = "How often will the model be right there?"
    if measured is not None:
        worse = falls_short(measured)
        return Answer(
            "bad" if worse else "good",
            question,
            f"{measured.accuracy:.1%}, measured",
            f"On {measured.samples:,} labelled samples; on the other sites it is {measured.support_accuracy:.1%}."
            + (" That is much worse, so results elsewhere are no guide to this site." if worse else ""),
        )
    expected = target.expected
    if expected is None:
        return Answer("plain", question, "Not known.", "")
    unlike = " No known site is like it, so it may well be lower." if target.verdict == "outside" else ""
    if expected.interval is None:
        return Answer(
            "bad",
            question,
            f"It thinks {expected.accuracy:.0%}; how far that can be trusted is not known.",
            "Every known site was trained on, so how wrong the model's confidence is elsewhere was never seen. "
            f"'rcalign evaluate DATA --leave-one-out' measures it.{unlike}",
        )
    low, high = expected.interval
    judges = ", ".join(f"'{name}'" for name in expected.domains[:4]) + (" and others" if expected.domains[4:] else "")
    few = " One site is little to judge by." if len(expected.domains) == 1 else ""
    return Answer(
        "plain",
        question,
        f"About {expected.accuracy:.0%}: {10 * expected.level:.0f} times in 10 between {low:.0%} and {high:.0%}.",
        f"From its confidence, and how far that was off on {judges}.{few}{unlike}",
    )


def _shares(priors: PriorEstimates) -> Answer:
    question = "How frequent are the classes there?"
    if priors.doubt is not None:
        return Answer(
            "bad", question, "Cannot be said without labels.", f"{priors.doubt[0].upper()}{priors.doubt[1:]}."
        )
    ordered = sorted(zip(priors.em, priors.source, priors.classes, strict=True), key=lambda item: -item[0].value)
    listed = "; ".join(f"'{name}' {one.value:.0%} ({one.low:.0%} to {one.high:.0%})" for one, _, name in ordered[:4])
    more = f"; {len(ordered) - 4} more below" if len(ordered) > 4 else ""
    moved = [name for one, source, name in ordered if priors.differ and (source < one.low or source > one.high)]
    named = ", ".join(f"'{name}'" for name in moved[:4])
    detail = f"Other than in training: {named}." if moved else "As in training."
    return Answer("plain", question, listed + more, detail)


def _what_to_do(target: Target, measured: HeldOut | None) -> Answer:
    if measured is not None:
        answer = (
            "Collect and label samples of it, and train again."
            if falls_short(measured)
            else "The model can be used there as it is used on the known sites."
        )
        return Answer("plain", "What to do?", answer, "")
    odd = " Begin with the unusual ones below." if target.unusual else ""
    answer = {
        "outside": f"Label 100 of its samples and test the model on them before relying on it.{odd}",
        "near": f"Label a few dozen of its samples and compare.{odd}",
        "inside": "Use the model, and have a look at the unusual samples below." if odd else "Use the model.",
    }[target.verdict]
    shares = target.priors
    differ = (
        shares is not None
        and shares.differ
        and any(source < one.low or source > one.high for one, source in zip(shares.em, shares.source, strict=True))
    )
    hint = "Its class shares differ: 'rcalign predict --adapt-priors' takes that into account."
    return Answer(
        "plain", "What to do?", answer, hint if differ and shares is not None and shares.doubt is None else ""
    )
