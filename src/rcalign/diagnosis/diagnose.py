"""Why a model will fail on a new domain: every number of the paper's bound, from arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from rcalign.diagnosis.advice import advise
from rcalign.diagnosis.bound import (
    DENOMINATORS,
    are_unit,
    centred,
    head_lipschitz,
    logit_lipschitz,
    theorem_1,
    theorem_2,
    unit,
)
from rcalign.diagnosis.findings import (
    ClassShift,
    Diagnosis,
    Expected,
    HeldOut,
    Lipschitz,
    MixtureFit,
    Picture,
    PriorEstimates,
    Target,
    Unusual,
)
from rcalign.diagnosis.inputs import FeatureSet, Problem, Samples, checked_samples
from rcalign.diagnosis.mixture import RULE, fit_mixture, verdict
from rcalign.diagnosis.priors import estimate_priors
from rcalign.diagnosis.shift import SUPPORTS, Split, split_gap, support_weights
from rcalign.diagnosis.target import expected_accuracy, unusual_samples
from rcalign.diagnosis.transport import EXACT_PAIRS, Array, Distance, cloud, wasserstein
from rcalign.errors import InputError, unknown

PICTURE_SAMPLES = 250  # of each domain


def diagnose_features(
    features: ArrayLike,
    labels: ArrayLike,
    domains: ArrayLike,
    *,
    head_weight: ArrayLike | None = None,
    head_bias: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    domain_names: Sequence[str] | None = None,
    target: str | None = None,
    target_features: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    target_logits: ArrayLike | None = None,
    temperature: float = 1.0,
    denominator: str = "all_but_own",
    support: str = "domains",
    source_priors: ArrayLike | None = None,
    calibration: float = 1.0,
    trained_domains: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    target_priors: PriorEstimates | None = None,
    exact_pairs: int = EXACT_PAIRS,
    replicates: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    workers: int | None = None,
) -> Diagnosis:
    """Hold out every domain against the rest, and a target against all of them.

    features (n, d), labels (n,) and domains (n,) as whole numbers or names; logits (n, C), or (n,) of the second of two
    classes less the first, or a linear head (head_weight (C, d), head_bias (C,)) that reads the features. target: the
    name of a domain that is not a source, or, with target_features (m, d), the name to give to samples of their own,
    labelled or not.

    temperature, denominator: those of the alignment loss. support: how the support mixture weighs its samples
    (``support_weights``). source_priors (C,): the class shares that the model was trained on, for prior estimation
    (None: those of the sources). calibration: what logits are divided by before they are probabilities.
    trained_domains: the domains that the model was trained on (None: not known); the accuracy to expect on an
    unlabelled target is judged by the others. target_names: of the samples of target_features, for the list of unusual
    ones (None: their numbers). target_priors: the class shares of an unlabelled target if they were estimated already
    (None: estimated here, with the features as the check of label shift). exact_pairs: distances between classes of
    more than so many pairs are bracketed, not solved. workers: threads (None: one for each core, at most four). The
    result depends neither on them nor on the order of the samples.

    >>> rng = np.random.default_rng(0)
    >>> labels, domains = np.arange(60) % 2, np.arange(60) // 20
    >>> features = rng.normal(size=(60, 4)) + 2.0 * labels[:, None] + 0.5 * domains[:, None]
    >>> head = {"head_weight": [[-1.0] * 4, [1.0] * 4], "head_bias": [4.0, -4.0]}
    >>> report = diagnose_features(features, labels, domains, **head)
    >>> all(one.risk <= one.tight_bound <= one.bound for one in report.held_out)
    True
    >>> one = report.of("domain 2")
    >>> abs(one.gap - one.prior_part - one.feature_part - one.unsupported_part) < 1e-9
    True
    """
    for name, number in (("temperature", temperature), ("calibration", calibration)):
        if not number > 0 or not np.isfinite(number):
            raise InputError(f"the {name} is {number}: expected a number above zero.")
    if support not in SUPPORTS:
        raise unknown("support mixture", support, SUPPORTS)
    if denominator not in DENOMINATORS:
        raise unknown("denominator", denominator, DENOMINATORS)
    if exact_pairs < 16:
        raise InputError(f"exact_pairs is {exact_pairs}: expected at least 16.")
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}: expected a number between 0 and 1, such as 0.95.")
    if replicates < 2:
        raise InputError(f"replicates is {replicates}: expected at least 2.")
    own_target = None
    if target_features is not None:
        own_target = FeatureSet(target_features, target_labels, logits=target_logits)
    elif target_labels is not None or target_logits is not None:
        raise InputError("target_labels or target_logits were given without target_features: give those too.")
    arrays = FeatureSet(features, labels, domains, logits, head_weight, head_bias, class_names, domain_names)
    problem = checked_samples(arrays, target, own_target)
    count = len(problem.classes)
    lipschitz = logit_lipschitz(count) if problem.head is None else head_lipschitz(problem.head)
    cases = _cases(problem, support)
    chained = problem.head is not None and all(
        are_unit(side.features) for side in (problem.sources, problem.target) if side is not None
    )
    largest = max((float(case.query.losses.max()) for case in cases), default=0.0)
    largest = max(largest, float(problem.sources.losses.max()))
    settings = _Settings(lipschitz, largest, chained, problem.head is not None, temperature, denominator, exact_pairs)

    with ThreadPoolExecutor(workers or min(4, os.cpu_count() or 1)) as pool:
        # the network simplex and matrix products leave the interpreter free, so threads help
        distances = {
            (at, space, c): pool.submit(task)
            for at, case in enumerate(cases)
            for space, c, task in _distance_tasks(case, settings)
        }
        fits = {
            at: pool.submit(_mixture_task(case, settings))
            for at, case in enumerate(cases)
            if problem.target is None or case.name == problem.target_name  # a target is what mixtures are for
        }
        found = {key: future.result() for key, future in distances.items()}
        fitted = {at: future.result() for at, future in fits.items()}
    held_out = tuple(
        _report(case, problem, settings, {key[1:]: d for key, d in found.items() if key[0] == at}, fitted.get(at))
        for at, case in enumerate(cases)
    )

    about_target = None
    if problem.target is not None:
        priors = None if problem.target_labelled else target_priors
        if priors is None and not problem.target_labelled:
            given = None if source_priors is None else np.asarray(source_priors, dtype=np.float64)
            priors = estimate_priors(
                problem.sources.logits / calibration,
                problem.sources.labels,
                problem.target.logits / calibration,
                classes=problem.classes,
                source_priors=given,
                source_domains=problem.sources.domains,
                features=(problem.sources.features, problem.target.features),
                replicates=replicates,
                confidence=confidence,
                seed=seed,
            )
        of_target = next((report.mixture for report in held_out if report.domain == problem.target_name), None)
        about_target = _target_report(problem, settings, of_target, priors)
        if not problem.target_labelled:
            about_target = replace(
                about_target,
                expected=_expected(problem, about_target, trained_domains, calibration),
                unusual=_unusual(problem, target_features, target_names),
            )
    return Diagnosis(
        classes=problem.classes,
        domains=problem.domains,
        samples=len(problem.sources) + (0 if problem.target is None else len(problem.target)),
        width=problem.sources.features.shape[1],
        space=lipschitz.space,
        support=support,
        temperature=temperature,
        lipschitz=lipschitz,
        largest_loss=largest,
        held_out=held_out,
        target=about_target,
        picture=_picture(problem),
        advice=advise(held_out, about_target),
        notes=(*problem.notes, *_notes(held_out, about_target, settings)),
        trained=None if trained_domains is None else tuple(trained_domains),
    )


def _expected(problem: Problem, target: Target, trained: Sequence[str] | None, calibration: float) -> Expected:
    """Judged by the domains that the model was not trained on; inside the sources, by all of them."""
    assert problem.target is not None
    judges = [k for k, name in enumerate(problem.domains) if target.verdict == "inside" or name not in (trained or ())]
    return expected_accuracy(
        softmax(problem.target.logits / calibration, axis=1),
        softmax(problem.sources.logits / calibration, axis=1),
        problem.sources.labels,
        problem.sources.domains,
        names=problem.domains,
        judges=judges,
    )


def _unusual(problem: Problem, features: ArrayLike | None, names: Sequence[str] | None) -> tuple[Unusual, ...]:
    """Of the target as it was given: its own order tells which sample is which."""
    if features is None:
        return ()
    points = np.asarray(features, dtype=np.float64)
    if names is not None and len(names) != len(points):
        raise InputError(f"{len(names)} target names were given for {len(points)} samples: one for each is needed.")
    listed = [f"row {row}" for row in range(len(points))] if names is None else list(map(str, names))
    return unusual_samples(points, problem.sources.features, listed)


@dataclass(frozen=True)
class _Settings:
    lipschitz: Lipschitz
    largest_loss: float
    chained: bool
    has_head: bool
    temperature: float
    denominator: str
    exact_pairs: int

    def points(self, samples: Samples) -> Array:
        """The samples in the space of Theorems 1 and 3."""
        return samples.features if self.has_head else centred(samples.logits)


@dataclass(frozen=True)
class _Case:
    """One domain held out: its samples, those of its support, and their masses."""

    name: str
    query: Samples
    support: Samples
    support_names: tuple[str, ...]
    weights: Array
    split: Split

    @property
    def shared(self) -> list[int]:
        """Classes that both sides have."""
        return np.flatnonzero(self.split.supported & (self.split.prior > 0)).tolist()


def _cases(problem: Problem, support: str) -> list[_Case]:
    """Every source against the other sources; then a labelled target against all of them."""
    sources = problem.sources
    cases = []
    for k, name in enumerate(problem.domains if len(problem.domains) > 1 else ()):
        own = sources.domains == k
        others = problem.domains[:k] + problem.domains[k + 1 :]
        query, rest = sources.rows(np.flatnonzero(own)), sources.rows(np.flatnonzero(~own))
        cases.append(_case(name, query, rest, others, support, len(problem.classes)))
    if problem.target is not None and problem.target_labelled and problem.target_name is not None:
        cases.append(
            _case(problem.target_name, problem.target, sources, problem.domains, support, len(problem.classes))
        )
    return cases


def _case(name: str, query: Samples, rest: Samples, names: tuple[str, ...], support: str, classes: int) -> _Case:
    weights = support_weights(rest.labels, rest.domains, support)
    split = split_gap(query.losses, query.labels, rest.losses, rest.labels, weights, classes)
    return _Case(name, query, rest, names, weights, split)


def _distance_tasks(case: _Case, settings: _Settings) -> list[tuple[str, int, Callable[[], Distance]]]:
    """(space, class, task) for every distance that the reports of this case need."""
    wanted: list[tuple[str, Callable[[Samples], Array]]] = [("head", settings.points)]
    if settings.has_head:
        wanted.append(("logits", lambda samples: centred(samples.logits)))
    if not settings.chained:
        wanted.append(("unit", lambda samples: unit(samples.features)))

    def task(points: Callable[[Samples], Array], c: int) -> Callable[[], Distance]:
        def solve() -> Distance:
            own, rest = case.query.labels == c, case.support.labels == c
            x = cloud(points(case.query.rows(np.flatnonzero(own))))
            y = cloud(points(case.support.rows(np.flatnonzero(rest))), case.weights[rest])
            return wasserstein(x, y, exact_pairs=settings.exact_pairs)

        return solve

    return [(space, c, task(points, c)) for space, points in wanted for c in case.shared]


def _mixture_task(case: _Case, settings: _Settings) -> Callable[[], MixtureFit]:
    return lambda: _mixture(
        case.name, case.query, case.support, case.support_names, settings, float(case.query.losses.mean())
    )


def _mixture(
    name: str, target: Samples, sources: Samples, names: tuple[str, ...], settings: _Settings, risk: float | None
) -> MixtureFit:
    """Theorem 3; ``risk`` is None for a target without labels."""
    of_source = np.unique(sources.domains, return_inverse=True)[1].ravel()
    losses = sources.losses
    return fit_mixture(
        cloud(settings.points(target), None, None if risk is None else target.labels),
        cloud(settings.points(sources), None, sources.labels),
        of_source,
        np.array([losses[of_source == k].mean() for k in range(len(names))]),
        name=name,
        names=names,
        lipschitz=settings.lipschitz.constant,
        largest_difference=_largest_difference(sources),
        risk=risk,
        exact_pairs=settings.exact_pairs,
    )


def _largest_difference(samples: Samples) -> float:
    return float(np.ptp(samples.logits, axis=1).max())


def _report(
    case: _Case,
    problem: Problem,
    settings: _Settings,
    distances: dict[tuple[str, int], Distance],
    mixture: MixtureFit | None,
) -> HeldOut:
    split, lipschitz = case.split, settings.lipschitz
    count = len(problem.classes)
    known = np.where(split.supported, split.support_risk, 0.0)
    prior_bounds = np.abs(split.prior - split.support_prior) * known
    unsupported_bounds = np.where(split.supported, 0.0, split.prior) * settings.largest_loss
    feature_bounds, tightest = np.zeros(count), np.zeros(count)
    root_two = float(np.sqrt(2.0))
    for c in case.shared:
        head = distances["head", c]
        feature_bounds[c] = lipschitz.constant * split.prior[c] * head.upper
        options = [lipschitz.per_class[c] * head.upper]
        if settings.has_head:
            options.append(root_two * distances["logits", c].upper)
        tightest[c] = split.prior[c] * min(options)
    support_risk = float(case.weights @ case.support.losses)
    risk = float(case.query.losses.mean())
    bound = theorem_1(support_risk, prior_bounds, feature_bounds, unsupported_bounds)
    in_unit = {c: distances["head" if settings.chained else "unit", c] for c in case.shared}
    chain = theorem_2(
        unit(case.query.features),
        case.query.labels,
        unit(case.support.features),
        case.support.labels,
        case.support.domains,
        case.weights,
        in_unit,
        num_classes=count,
        temperature=settings.temperature,
        denominator=settings.denominator,
        risk_terms=(bound - float(feature_bounds.sum()), lipschitz.constant) if settings.chained else None,
    )
    right = case.support.logits.argmax(axis=1) == case.support.labels
    in_query = np.bincount(case.query.labels, minlength=count)
    in_support = np.bincount(case.support.labels, minlength=count)
    classes = tuple(
        ClassShift(
            name=name,
            samples=int(in_query[c]),
            support_samples=int(in_support[c]),
            prior=float(split.prior[c]),
            support_prior=float(split.support_prior[c]),
            risk=_number(split.risk[c]),
            support_risk=_number(split.support_risk[c]),
            prior_part=float(split.prior_part[c]),
            feature_part=float(split.feature_part[c]),
            unsupported_part=float(split.unsupported_part[c]),
            distance=distances.get(("head", c)),
            logit_distance=distances.get(("logits", c)),
            prior_bound=float(prior_bounds[c]),
            feature_bound=float(feature_bounds[c]),
            unsupported_bound=float(unsupported_bounds[c]),
        )
        for c, name in enumerate(problem.classes)
    )
    return HeldOut(
        domain=case.name,
        support=case.support_names,
        samples=len(case.query),
        accuracy=float((case.query.logits.argmax(axis=1) == case.query.labels).mean()),
        support_accuracy=float(case.weights @ right),
        risk=risk,
        support_risk=support_risk,
        gap=risk - support_risk,
        prior_part=float(split.prior_part.sum()),
        feature_part=float(split.feature_part.sum()),
        unsupported_part=float(split.unsupported_part.sum()),
        unsupported_mass=float(split.prior[~split.supported].sum()),
        prior_bound=float(prior_bounds.sum()),
        feature_bound=float(feature_bounds.sum()),
        unsupported_bound=float(unsupported_bounds.sum()),
        bound=bound,
        tight_bound=theorem_1(support_risk, split.prior_part, tightest, unsupported_bounds),
        classes=classes,
        chain=chain,
        mixture=mixture,
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _target_report(
    problem: Problem, settings: _Settings, mixture: MixtureFit | None, priors: PriorEstimates | None
) -> Target:
    assert problem.target is not None and problem.target_name is not None
    if mixture is None:
        mixture = _mixture(problem.target_name, problem.target, problem.sources, problem.domains, settings, None)
    points = settings.points(problem.sources)
    each = [points[problem.sources.domains == k] for k in range(len(problem.domains))]
    place, left, reference, floor, p = verdict(settings.points(problem.target), each, np.array(mixture.weights))
    return Target(
        name=problem.target_name,
        samples=len(problem.target),
        labelled=problem.target_labelled,
        mixture=mixture,
        verdict=place,
        rule=RULE,
        left=left,
        reference=reference,
        floor=floor,
        p=p,
        priors=priors,
    )


def _picture(problem: Problem) -> Picture:
    """The first samples of each domain on the two main axes of them all."""
    sides = [
        problem.sources.rows(np.flatnonzero(problem.sources.domains == k)[:PICTURE_SAMPLES])
        for k in range(len(problem.domains))
    ]
    names = problem.domains
    if problem.target is not None and problem.target_name is not None:
        sides.append(problem.target.rows(np.arange(min(PICTURE_SAMPLES, len(problem.target)))))
        names = (*names, problem.target_name)
    points = np.concatenate([side.features for side in sides])
    points = points - points.mean(axis=0)
    _, values, axes = np.linalg.svd(points, full_matrices=False)
    axes, power = axes[:2], values**2
    # an axis has no direction of its own: its largest entry points up
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    flat = points @ axes.T
    if flat.shape[1] < 2:
        flat = np.column_stack([flat, np.zeros(len(flat))])
    shares = [float(p / power.sum()) if power.sum() > 0 else 0.0 for p in power[:2]] + [0.0]
    domain = np.repeat(np.arange(len(sides)), [len(side) for side in sides])
    label = np.concatenate([side.labels for side in sides])
    return Picture(
        points=tuple((float(x), float(y), int(d), int(c)) for (x, y), d, c in zip(flat, domain, label, strict=True)),
        domains=names,
        explained=(shares[0], shares[1]),
    )


def _notes(held_out: tuple[HeldOut, ...], target: Target | None, settings: _Settings) -> list[str]:
    """What the numbers rest on, where it is not plain from the numbers."""
    notes = []
    rough = [d for report in held_out for item in report.classes if (d := item.distance) is not None and not d.exact]
    if rough:
        worst = max(d.error / max(d.value, 1e-300) for d in rough)
        notes.append(
            f"{len(rough)} distances between large classes are brackets, off by at most {worst:.1%}; "
            "bounds use the upper end."
        )
    if any(report.unsupported_mass > 0 for report in held_out):
        notes.append(
            f"Cross-entropy has no largest value: classes without support are bounded by the largest loss seen, "
            f"{settings.largest_loss:.4g}."
        )
    if not settings.has_head:
        notes.append("No linear head was given, so Theorems 1 and 3 are computed in the space of the logits.")
    elif not settings.chained:
        notes.append(
            "The head reads features that are not of unit length, so Theorem 2 speaks of another space than Theorem 1: "
            "both are reported, neither is chained to the other."
        )
    if target is not None and not target.labelled and target.priors is not None and not target.priors.agree:
        notes.append("The two prior estimates disagree: the target differs from the sources by more than its priors.")
    return notes
