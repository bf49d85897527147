"""What a diagnosis says: frozen values, every number named, nothing but numbers, names and sentences inside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcalign.diagnosis.transport import Distance
from rcalign.errors import unknown


@dataclass(frozen=True)
class Lipschitz:
    """How fast cross-entropy can change in a space: |loss(z, c) - loss(z', c)| <= per_class[c] ||z - z'||.

    constant = max over class pairs of ||w_c - w_c'||, the paper's one number. space: what z is.
    """

    constant: float
    per_class: tuple[float, ...]
    space: str


@dataclass(frozen=True)
class ClassShift:
    """One class of one held-out domain: its share of the gap as it is (part) and as Theorem 1 bounds it (bound).

    None: the number does not exist, because the domain or its support has no sample of the class.
    """

    name: str
    samples: int
    support_samples: int
    prior: float
    support_prior: float
    risk: float | None
    support_risk: float | None
    prior_part: float
    feature_part: float
    unsupported_part: float
    distance: Distance | None
    logit_distance: Distance | None
    prior_bound: float
    feature_bound: float
    unsupported_bound: float


@dataclass(frozen=True)
class Step:
    """One link of the chain: what it says, its value, and how much it adds to the link before (never negative)."""

    name: str
    formula: str
    value: float
    slack: float


@dataclass(frozen=True)
class Chain:
    """Theorem 2 for one held-out domain, in the space of unit features. Sums run over the supported classes only.

    distance: sum_c pi(c) W1. via_centroids: the same transport with a stop at the support's centroids. transport_cost:
    A. scatter: C_scat. alignment_loss: L_DA with the mixture's weights; alignment_loss_as_trained: each centroid of the
    class the same weight, mean over all (sample, centroid) pairs. phi, phi_bound: E Phi measured, and log N - R / T.
    steps: the inequalities in order. risk_bound: the paper's final bound, only where ``chained``: where the head reads
    unit features, so that both theorems speak of the same space.
    """

    space: str
    temperature: float
    denominator: str
    supported_mass: float
    distance: Distance
    via_centroids: float
    transport_cost: float
    scatter: float
    alignment_loss: float
    alignment_loss_as_trained: float
    phi: float
    phi_bound: float
    log_count: float
    diameter: float
    diameter_seen: float
    steps: tuple[Step, ...]
    chained: bool
    risk_bound: float | None


@dataclass(frozen=True)
class MixtureFit:
    """Theorem 3: the mixture of sources nearest to a target.

    weights: the nearest in the features, by a linear programme on ``weights_from`` = (target rows, source rows);
    ``weights_exact``: that was all of them. distance: W1 between the target and that mixture, on all samples;
    ``labelled``: it counts labels (``label_jump`` between different ones), and the guarantee is about the target's true
    labels; otherwise the guarantee rests on ``assumption``. guarantee = source_risk + L * distance.upper, source_risk =
    sum_k weight_k risk_k. risk: the target's, where known; guarantee >= risk.
    """

    target: str
    sources: tuple[str, ...]
    weights: tuple[float, ...]
    distance: Distance
    source_risk: float
    guarantee: float
    risk: float | None
    labelled: bool
    label_jump: float
    weights_from: tuple[int, int]
    weights_exact: bool
    assumption: str


@dataclass(frozen=True)
class HeldOut:
    """One domain held out against its support: risk = support_risk + prior_part + feature_part + unsupported_part.

    bound: Theorem 1 as in the paper. tight_bound: the same with the sign of the prior shift kept, each class's own
    Lipschitz constant, and for each class the better of the two spaces. Both are >= risk.
    """

    domain: str
    support: tuple[str, ...]
    samples: int
    accuracy: float
    support_accuracy: float
    risk: float
    support_risk: float
    gap: float
    prior_part: float
    feature_part: float
    unsupported_part: float
    unsupported_mass: float
    prior_bound: float
    feature_bound: float
    unsupported_bound: float
    bound: float
    tight_bound: float
    classes: tuple[ClassShift, ...]
    chain: Chain | None
    mixture: MixtureFit | None


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile-bootstrap interval."""

    value: float
    low: float
    high: float


COARSE = 0.2  # total variation; an estimate of class shares that may be off by more says little


@dataclass(frozen=True)
class PriorEstimates:
    """The class priors of an unlabelled target, twice. agree: no class where the two intervals are apart.

    left: how far the target's features are from those of the sources with these class shares; allowed: how far the
    sources are from one another, or samples of them. shift: the total variation between the shares by EM and the
    sources'. noise: how far EM is from the truth, in 19 of 20 samples of one known domain, as many as the target has.
    ``doubt`` says in a sentence why the estimate is not to be used.
    """

    classes: tuple[str, ...]
    source: tuple[float, ...]
    em: tuple[Interval, ...]
    bbse: tuple[Interval, ...]
    agree: bool
    confidence: float
    replicates: int
    condition_number: float
    left: float = 0.0
    allowed: float = 0.0
    shift: float = 1.0
    noise: float = 0.0

    def of(self, positions: Sequence[int]) -> PriorEstimates:
        """The same for some of the classes."""
        some: dict[str, Any] = {
            name: tuple(getattr(self, name)[c] for c in positions) for name in ("classes", "source", "em", "bbse")
        }
        return dataclasses.replace(self, **some)

    @property
    def doubt(self) -> str | None:
        """Why the class shares should not be used; None: nothing speaks against it."""
        if not self.agree:
            return "two ways of estimating the class shares disagree, so more than the shares has changed"
        if self.left > self.allowed:
            return (
                "more than the class shares has changed: with these shares, too, the features differ from the sources'"
            )
        if not self.differ and self.noise > COARSE:
            return (
                f"on as many samples of one known domain such an estimate is off by up to {100 * self.noise:.0f} "
                f"points, and here it is {100 * self.shift:.0f} from the shares in training"
            )
        return None

    @property
    def differ(self) -> bool:
        """Whether the true class shares are surely nearer to the estimate than to the sources'."""
        return self.shift > 2 * self.noise


@dataclass(frozen=True)
class Expected:
    """What accuracy to expect on an unlabelled target: the mean probability of the class that the model chooses.

    interval: in which the accuracy lies with probability ``level``; it comes from how far the same estimate was off on
    ``domains`` that the model was not trained on (or, for a target inside the sources, on all). None: there are none.
    """

    accuracy: float
    interval: tuple[float, float] | None
    level: float
    domains: tuple[str, ...]


@dataclass(frozen=True)
class Unusual:
    """A sample of the target that is far from every source sample: its row, its name, its distance to the nearest ones
    as a multiple of what is usual among the source samples, and, if it is a picture, a small copy (a data address)."""

    row: int
    name: str
    times: float
    image: str | None = None


@dataclass(frozen=True)
class Target:
    """What can be said of the target. verdict: inside, near or outside the sources, by ``rule``.

    left, reference, floor: distances to the best mixture in the features, at one sample size: of the target, of the
    source that is farthest from the others, of fresh samples of the sources. p: that the target is a sample of its
    mixture. None: too few domains or samples.
    """

    name: str
    samples: int
    labelled: bool
    mixture: MixtureFit
    verdict: str
    rule: str
    left: float
    reference: float | None
    floor: float | None
    p: float | None
    priors: PriorEstimates | None
    expected: Expected | None = None
    unusual: tuple[Unusual, ...] = ()


@dataclass(frozen=True)
class Picture:
    """Some samples of each domain on the first two principal axes of the features: (x, y, domain, class or -1)."""

    points: tuple[tuple[float, float, int, int], ...]
    domains: tuple[str, ...]
    explained: tuple[float, float]


@dataclass(frozen=True)
class Contraction:
    """The inner step along training: J before and after it, step by step.

    share: of steps with after < before. ratios: the 10th, 50th and 90th percentile of after / before. alignment_holds:
    the share of steps with weight * L_DA(after) <= J(after), which the Proposition rests on; None: not recorded.
    """

    steps: tuple[int, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    share: float
    ratios: tuple[float, float, float] | None
    alignment_holds: float | None


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of n pairs with its two-sided p-value; None where r is not defined, and why."""

    n: int
    r: float | None
    p: float | None
    slope: float | None
    intercept: float | None
    reason: str = ""


@dataclass(frozen=True)
class Tracking:
    """Alignment loss and generalisation gap along training, and how they go together."""

    steps: tuple[int, ...]
    alignment: tuple[float, ...]
    gap: tuple[float, ...]
    settled_from: int
    everything: Correlation
    settled: Correlation


@dataclass(frozen=True)
class Advice:
    """A finding in plain words, and the risk at stake.

    kind: headline, good, feature, prior, unsupported, support or target.
    """

    kind: str
    title: str
    text: str
    amount: float


@dataclass(frozen=True)
class Answer:
    """What someone who has not read the paper asks, and the answer. kind: good, plain or bad."""

    kind: str
    question: str
    answer: str
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    """The whole report. ``held_out``: every source against the other sources; then the target, if it has labels.

    trained: the domains that the model was trained on; None: not known. ``held_out`` means that a domain is compared
    with the others, not that the model has never seen it.
    """

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    samples: int
    width: int
    space: str
    support: str
    temperature: float
    lipschitz: Lipschitz
    largest_loss: float
    held_out: tuple[HeldOut, ...]
    target: Target | None
    picture: Picture
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    contraction: Contraction | None = None
    tracking: Tracking | None = None
    trained: tuple[str, ...] | None = None

    def is_trained(self, domain: str) -> bool:
        """Whether the model is known to have been trained on a domain (on other rows of it)."""
        return self.trained is not None and domain in self.trained

    def of(self, domain: str) -> HeldOut:
        """The report of one held-out domain."""
        found = {one.domain: one for one in self.held_out}
        if domain not in found:
            raise unknown("domain", domain, found)
        return found[domain]


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Nested dicts, lists, numbers, strings and None."""
    return _plain(dataclasses.asdict(diagnosis))


def to_json(diagnosis: Diagnosis, indent: int | None = 2) -> str:
    """The same as JSON; every number is finite."""
    return json.dumps(to_dict(diagnosis), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
