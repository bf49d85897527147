"""RC-Align against a slow, literal, loop-by-loop reading of the paper's Algorithms 1 and 2, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from rcalign import spaces
from rcalign.algorithms.base import Network, seeded
from rcalign.algorithms.rc_align import RCAlign
from rcalign.errors import InputError
from rcalign.functional.alignment import alignment_loss, centroids, shrunk_centroids
from rcalign.types import Batch, DataSpec
from toy import batch, make, weights

Pair = tuple[int, int]
COUNTS = ((9, 3, 1), (2, 9, 5), (9, 9, 9), (1, 1, 20))  # training samples of each domain and class


# --- Algorithm 2, sample by sample ------------------------------------------------------------------------------


def literal_centroids(z: Tensor, y: Tensor, d: Tensor) -> dict[Pair, Tensor]:
    found: dict[Pair, list[Tensor]] = {}
    for row, label, domain in zip(z.detach(), y.tolist(), d.tolist(), strict=True):
        found.setdefault((domain, label), []).append(row / row.norm())
    means = {pair: sum(rows) / len(rows) for pair, rows in found.items()}
    return {pair: mean / mean.norm() for pair, mean in means.items()}


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean; a sample on its own centroid (equal up to rounding) is at zero, without gradient."""
    if (a - b).abs().max() < 1e-13:
        return torch.zeros((), dtype=a.dtype)
    return torch.sqrt(((a - b) ** 2).sum())


def literal_alignment(z: Tensor, y: Tensor, d: Tensor, mu: dict[Pair, Tensor], t: float, denominator: str) -> Tensor:
    terms = []
    for row, label, domain in zip(z, y.tolist(), d.tolist(), strict=True):
        unit = row / row.norm()
        logit = {pair: -distance(unit, m) / t for pair, m in mu.items()}
        positives = [pair for pair in mu if pair[1] == label and pair[0] != domain]
        if denominator == "negatives":
            below = [pair for pair in mu if pair not in positives]
        else:
            below = [pair for pair in mu if pair != (domain, label)]
        if not below:
            continue
        log_sum = torch.log(sum(torch.exp(logit[pair]) for pair in below))
        terms += [log_sum - logit[pair] for pair in positives]
    return sum(terms) / len(terms) if terms else z.sum() * 0


def literal_expectation(counts: Tensor) -> Tensor:
    """Class by class: the domains' mean log share (centred), shrunk by its squared standard error over its spread."""
    domains, classes = counts.shape
    logs = [
        [math.log(counts[d, c]) - sum(math.log(n) for n in counts[d]) / classes for c in range(classes)]
        for d in range(domains)
    ]
    means = [sum(row[c] for row in logs) / domains for c in range(classes)]
    within = sum((row[c] - means[c]) ** 2 for row in logs for c in range(classes)) / (domains - 1) / classes
    kept = max(0.0, 1 - within / domains / (sum(m * m for m in means) / (classes - 1)))
    return torch.tensor([kept * m for m in means], dtype=torch.float64)


def literal_cross_validation(counts: Tensor) -> Tensor:
    """The domains' mean log share (centred) to the power under which the others' foretell each domain's shares best."""
    logs = torch.log(counts) - torch.log(counts).mean(1, keepdim=True)

    def misfit(power: float) -> float:
        total = 0.0
        for k in range(len(counts)):
            others = torch.stack([row for i, row in enumerate(logs) if i != k]).mean(0)
            foretold = torch.exp(power * others) / torch.exp(power * others).sum()
            total -= float((counts[k] / counts[k].sum() * torch.log(foretold)).sum())
        return total

    found = minimize_scalar(misfit, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
    power = min((0.0, 1.0, float(found.x)), key=misfit)
    return power * logs.mean(0)


LITERAL_TARGETS = {
    "equal": lambda counts: 0.0,
    "expected": literal_expectation,
    "cross_validated": literal_cross_validation,
}


# --- Algorithm 1, with its random draws made in the same order ----------------------------------------------------


class Literal:
    """The same update on plain parameter lists: theta = (w1, b1, w2, b2, head w, head b), Adam by hand."""

    def __init__(self, theta: list[Tensor], hparams: Any, seed: int, domains: int) -> None:
        self.theta = [p.detach().clone().requires_grad_() for p in theta]
        self.h = hparams
        self.rng = np.random.default_rng([seed, 0x5C])
        self.domains = domains
        self.queue: list[int] = []
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in theta]
        self.time = 0  # updates
        self.steps = 0

    @staticmethod
    def features(theta: list[Tensor], x: Tensor) -> Tensor:
        return torch.relu(x @ theta[0].T + theta[1]) @ theta[2].T + theta[3]

    def cross_entropy(self, theta: list[Tensor], z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        counts = torch.tensor(COUNTS[: self.domains], dtype=torch.float64)
        goal = LITERAL_TARGETS[self.h.target_prior](counts)
        logits = z @ theta[4].T + theta[5] + self.h.logit_adjustment * (torch.log(counts)[d] - goal)
        return sum(torch.log(torch.exp(row).sum()) - row[k] for row, k in zip(logits, y.tolist(), strict=True)) / len(y)

    def inner(self, theta: list[Tensor], parts: dict[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, dict[Pair, Tensor]]:
        z = {k: self.features(theta, x) for k, (x, _) in parts.items()}
        y = {k: labels for k, (_, labels) in parts.items()}
        domain = {k: torch.full_like(labels, k) for k, labels in y.items()}
        mu = literal_centroids(*(torch.cat(list(v.values())) for v in (z, y, domain)))
        order = [sorted(parts)[k] for k in self.rng.permutation(len(parts))] if self.h.mixup_alpha > 0 else []
        pairs = [(order[k], order[(k + 1) % len(order)]) for k in range(len(order))]
        pairs = [] if len(order) < 2 else pairs[:1] if len(order) == 2 else pairs
        warmth = min(1.0, (self.steps + 1) / max(1, self.h.warm_up))
        w = self.h.alignment_weight * warmth
        everything = [torch.cat(list(v.values())) for v in (z, y, domain)]
        da = literal_alignment(*everything, mu, self.h.temperature, self.h.denominator)
        plain = self.cross_entropy(theta, *everything) + w * da
        if not pairs:
            return plain, mu
        total = torch.zeros((), dtype=torch.float64)
        for a, b in pairs:
            lam = self.rng.beta(self.h.mixup_alpha, self.h.mixup_alpha)
            rows = min(len(y[a]), len(y[b]))
            mixed = lam * z[a][:rows] + (1 - lam) * z[b][:rows]
            for k, weight in ((a, lam), (b, 1 - lam)):
                ce = self.cross_entropy(theta, mixed, y[k][:rows], domain[k][:rows])
                da = literal_alignment(mixed, y[k][:rows], domain[k][:rows], mu, self.h.temperature, self.h.denominator)
                total = total + weight * (ce + w * da)
        return (1 - warmth) * plain + warmth * total / len(pairs), mu

    def step(self, data: Batch) -> None:
        parts = {k: (part.x, part.y) for k, part in enumerate(data.per_domain())}
        if not self.queue:
            self.queue = [int(k) for k in self.rng.permutation(self.domains)]
        turn = [self.queue.pop(0) for _ in range(self.domains if self.h.episodes == "all" else 1)]
        for query in turn:
            support = {k: part for k, part in parts.items() if k != query}
            x, y = parts[query]
            exact = self.h.meta_gradient == "exact"
            loss, mu = self.inner(self.theta, support)
            g = torch.autograd.grad(loss, self.theta, create_graph=exact)
            ahead = [p - self.h.inner_rate * q for p, q in zip(self.theta, g, strict=True)]
            if self.h.meta_step == "optimizer":
                ahead = [p for p, _, _ in self.adam_step(list(g))]
            if not exact:
                ahead = [p.detach().requires_grad_() for p in ahead]
            z = self.features(ahead, x)
            domain = torch.full_like(y, query)
            outer = self.cross_entropy(ahead, z, y, domain)
            if self.h.outer_alignment:
                da = literal_alignment(z, y, domain, mu, self.h.temperature, self.h.denominator)
                outer = outer + self.h.outer_alignment * da
            g_outer = torch.autograd.grad(outer, self.theta if exact else ahead)
            weight = self.h.outer_weight
            if self.h.episode_weights == "balanced":
                weight *= len(y) / sum(len(labels) for _, labels in support.values())
            if self.h.meta_gradient == "mldg":
                self.adam([a + weight * b for a, b in zip(g, g_outer, strict=True)])
            else:
                self.adam(list(g_outer))
        self.steps += 1

    @torch.no_grad()
    def adam_step(self, gradients: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each parameter and its two moments after a step of Adam from where they are, which changes none of them."""
        t, found = self.time + 1, []
        for p, gradient, (m, v) in zip(self.theta, gradients, self.moments, strict=True):
            g = gradient + self.h.weight_decay * p
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            m_hat, v_hat = m / (1 - 0.9**t), v / (1 - 0.999**t)
            found.append((p - self.h.learning_rate * m_hat / (torch.sqrt(v_hat) + 1e-8), m, v))
        return found

    @torch.no_grad()
    def adam(self, gradients: list[Tensor]) -> None:
        after = self.adam_step(gradients)
        self.time += 1
        self.moments = [(m, v) for _, m, v in after]
        for p, (moved, _, _) in zip(self.theta, after, strict=True):
            p.copy_(moved)


def double_batch(step: int, sizes: tuple[int, ...], classes: list[list[int]]) -> Batch:
    rng = np.random.default_rng([77, step])
    parts = []
    for n, present in zip(sizes, classes, strict=True):
        y = rng.choice(present, size=n)
        parts.append((torch.from_numpy(rng.standard_normal((n, 5)) + y[:, None]), torch.from_numpy(y)))
    return Batch.from_domains(parts)


def both(domains: int, seed: int = 3, preset: str = "rc-align", **changes: Any) -> tuple[RCAlign, Literal]:
    """Ours and the literal one with the paper's settings (or those of another preset) and some changes."""
    names = tuple(f"d{k}" for k in range(domains))
    spec = DataSpec(("a", "b", "c"), names, COUNTS[:domains], (5,))
    with seeded(seed):
        body = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4))
        network = Network(body, 4, 3).double()
    given = {"learning_rate": 1e-2, "weight_decay": 0.0, "inner_rate": 0.1, **changes}
    hparams = spaces.defaults(RCAlign.Hparams, preset, **given)
    ours = RCAlign(spec, network, hparams, seed=seed)
    theta = [body[0].weight, body[0].bias, body[2].weight, body[2].bias, network.head.weight, network.head.bias]
    return ours, Literal(theta, hparams, seed, domains)


READINGS = [
    {},
    {"mixup_alpha": 0.0},
    {"meta_gradient": "outer"},
    {"meta_gradient": "exact", "mixup_alpha": 0.0},
    {"meta_gradient": "exact"},
    {"denominator": "all_but_own", "temperature": 0.3},
    {"episodes": "all", "meta_gradient": "outer"},
    {"outer_alignment": 0.7, "outer_weight": 2.0},
    {"logit_adjustment": 0.5},
    {"logit_adjustment": 1.0, "mixup_alpha": 0.0},
    {"alignment_weight": 0.0, "mixup_alpha": 0.0},
    {"meta_step": "optimizer"},
    {"meta_step": "optimizer", "weight_decay": 0.1, "episode_weights": "balanced", "mixup_alpha": 0.0},
    {"meta_step": "optimizer", "meta_gradient": "outer", "episodes": "all"},
    {"episode_weights": "balanced", "outer_weight": 3.0},
    {"warm_up": 3},
    {"warm_up": 3, "mixup_alpha": 0.0, "episodes": "all"},
    {"logit_adjustment": 1.0, "target_prior": "expected"},
    {"logit_adjustment": 1.0, "target_prior": "cross_validated"},
    {"preset": "arrays"},  # the defaults
]


@pytest.mark.parametrize("domains", [2, 3, 4])
@pytest.mark.parametrize("changes", READINGS, ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()) or "default")
@pytest.mark.parametrize("kind", ["equal", "unequal", "missing"])
def test_equals_the_literal_reading(domains: int, changes: dict[str, Any], kind: str) -> None:
    sizes = (5,) * domains if kind == "equal" else tuple(range(4, 4 + domains))
    classes = [[0, 1, 2]] * domains if kind != "missing" else [[0, 1], [1, 2], [0], [2]][:domains]
    ours, literal = both(domains, **changes)
    for t in range(4):
        data = double_batch(t, sizes, classes)
        ours.step(data)
        literal.step(data)
        for mine, theirs in zip(ours.parameters(), literal.theta, strict=True):
            torch.testing.assert_close(mine.detach(), theirs.detach(), atol=1e-10, rtol=0)


def test_a_wrong_reading_is_noticed() -> None:
    """The comparison above can fail: another temperature moves the parameters by far more than its tolerance."""
    ours, _ = both(3, temperature=1.0)
    _, literal = both(3, temperature=1.1)
    for t in range(4):
        data = double_batch(t, (5, 5, 5), [[0, 1, 2]] * 3)
        ours.step(data)
        literal.step(data)
    gaps = [(a - b).detach().abs().max() for a, b in zip(ours.parameters(), literal.theta, strict=True)]
    assert max(gaps) > 1e-6


@pytest.mark.parametrize("decoupled", [False, True], ids=["Adam", "AdamW"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_of_the_optimizer_ahead_changes_nothing_but_the_buffer(
    fused: bool, decoupled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-ahead is the optimizer's own next step to the bit, in however many blocks; state and weights stay."""
    from rcalign.algorithms import lookahead
    from rcalign.algorithms.lookahead import LookAhead

    monkeypatch.setattr(lookahead, "BLOCK", 20_000)  # the large weight in pieces, the small ones together
    net = nn.Sequential(nn.Conv2d(3, 40, 3), nn.Flatten(), nn.Linear(40 * 4, 700)).to(memory_format=torch.channels_last)
    net[2].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(
        [p for p in net.parameters() if p.requires_grad],
        lr=1e-2,
        weight_decay=0.1,
        fused=fused,
        decoupled_weight_decay=decoupled,
    )
    ahead = LookAhead(net)
    exact = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # others round products in another place
    rounding = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-6, "atol": 1e-7}
    for t in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 3, 4, 4)).square().mean().backward()
        before = [p.detach().clone() for p in net.parameters()]
        moments = [{k: v.clone() for k, v in state.items()} for state in optimizer.state.values()]
        ahead.move_by(optimizer)
        assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)), t
        for state, old in zip(optimizer.state.values(), moments, strict=True):
            assert all(torch.equal(state[k], old[k]) for k in old), t
        optimizer.step()
        named = dict(net.named_parameters())
        assert "2.bias" not in ahead.parameters
        for name, value in ahead.parameters.items():
            torch.testing.assert_close(value.detach(), named[name].detach(), msg=f"{t}, {name}", **rounding)


def test_a_look_ahead_by_an_unknown_optimizer_is_refused() -> None:
    from rcalign.algorithms.lookahead import LookAhead

    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    with pytest.raises(NotImplementedError, match="RMSprop"):
        LookAhead(net).move_by(torch.optim.RMSprop(net.parameters()))


def test_second_order_through_the_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="meta_step=sgd"):
        make("RC-Align", meta_gradient="exact", meta_step="optimizer")


def test_the_preset_is_the_paper() -> None:
    """Whatever the defaults become: the preset rc-align is Algorithm 1 and 2."""
    paper = spaces.defaults(RCAlign.Hparams, "rc-align")
    assert (paper.meta_step, paper.episode_weights, paper.warm_up) == ("sgd", "equal", 0)
    assert (paper.logit_adjustment, paper.outer_alignment, paper.mixup_alpha) == (0.0, 0.0, 0.2)
    assert (paper.target_prior, paper.weight_average) == ("equal", False)
    assert spaces.draw(RCAlign.Hparams, "rc-align", 1).mixup_alpha >= 0.1


def test_predictions_assume_the_shares_that_logits_are_adjusted_for() -> None:
    """What a model trained by the adjusted loss knows of a row is its class-conditional density times these shares: by
    Bayes' rule the adjusted logits of a domain then give its own posterior."""
    counts = torch.tensor(COUNTS[:3], dtype=torch.float64)
    density = torch.tensor([0.2, 0.5, 0.1], dtype=torch.float64)  # p(x | c) of some row
    for target in ("equal", "expected", "cross_validated"):
        for t in (0.5, 1.0):
            model = both(3, logit_adjustment=t, target_prior=target)[0]
            shares = model.assumed_shares
            assert shares is not None
            assert float(shares.sum()) == pytest.approx(1)
            if t == 1:  # below one, what is left of a domain's own shares is the domains' mean
                logits = (density * shares).log()
                for k in range(3):
                    adjusted = (logits + model.log_prior[k]).softmax(0)
                    expected = density * counts[k]
                    torch.testing.assert_close(adjusted, expected / expected.sum())
    assert both(3)[0].assumed_shares is None


def test_balanced_episodes_weigh_every_row_the_same() -> None:
    """Without look-ahead, mixup and alignment, the balanced update is plain training on all rows: that of ERM."""
    plain = make("ERM")
    nothing = {"inner_rate": 0.0, "mixup_alpha": 0.0, "alignment_weight": 0.0, "logit_adjustment": 0.0}
    episodes = make("RC-Align", episode_weights="balanced", meta_step="sgd", **nothing)
    data = batch(0)
    plain.step(data), episodes.step(data)
    for (name, p), q in zip(plain.named_parameters(), episodes.parameters(), strict=True):
        torch.testing.assert_close(p.grad / p.grad.norm(), q.grad / q.grad.norm(), atol=1e-6, rtol=1e-5, msg=name)


def test_bank_momentum_has_the_precision_of_the_network() -> None:
    ours, _ = both(3, centroids="ema", centroid_momentum=0.9, meta=False)
    data = double_batch(0, (5, 5, 5), [[0, 1, 2]] * 3)
    ours.bank_seen.fill_(True)
    ours.bank.fill_(1.0)
    zero = torch.zeros(len(data), 4, dtype=torch.float64)
    ours._centroids(zero, data)
    found = ours.bank[0, int(data.y[0]), 0]
    assert float(found) == 0.9


def test_exact_gradient_agrees_with_finite_differences() -> None:
    ours, _ = both(3, meta_gradient="exact", mixup_alpha=0.0, outer_alignment=0.5)
    rng = np.random.default_rng(8)
    y = torch.tensor([0, 0, 1, 1, 2, 2])  # two of each: the loss has a kink where a sample is its own centroid
    data = Batch.from_domains([(torch.from_numpy(rng.standard_normal((6, 5))) + y[:, None], y)] * 3)
    query = int(np.random.default_rng([3, 0x5C]).permutation(3)[0])
    with torch.no_grad():  # centroids are constants of the method: fix them where it computes them
        support = data.select([k for k in range(3) if k != query])
        mu, present = centroids(ours(support.x)[0], support.y, support.domain, 3, 3)

    def outer(theta: dict[str, Tensor]) -> Tensor:
        z, logits = torch.func.functional_call(ours, theta, (support.x,))
        aligned = alignment_loss(z, support.y, support.domain, mu, present)
        inner = nn.functional.cross_entropy(logits, support.y) + ours.hparams.alignment_weight * aligned
        g = torch.autograd.grad(inner, list(theta.values()))
        ahead = {name: p - ours.hparams.inner_rate * q for (name, p), q in zip(theta.items(), g, strict=True)}
        held_out = data.select([query])
        return ours._outer(torch.func.functional_call(ours, ahead, (held_out.x,)), held_out, mu, present)

    theta = {name: p.detach().clone().requires_grad_() for name, p in ours.named_parameters()}
    ours.optimizer.zero_grad()
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    ours.step(data)
    gradient = {name: p.grad for name, p in ours.named_parameters()}
    ours.load_state_dict(before)
    for name, p in theta.items():
        for _ in range(4):
            index = tuple(int(rng.integers(size)) for size in p.shape)
            values = []
            for sign in (1, -1):
                moved = {key: q.detach().clone() for key, q in theta.items()}
                moved[name][index] += sign * 1e-5
                values.append(float(outer({key: q.requires_grad_() for key, q in moved.items()})))
            assert float(gradient[name][index]) == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-7)


# --- by hand ------------------------------------------------------------------------------------------------------


def two_by_two() -> dict[str, Tensor]:
    """Two domains, two classes; class centroids: domain 0 at (1,0) and (0,1), domain 1 at (0,1) and (-1,0)."""
    mu = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)
    return {"mu": mu, "present": torch.ones(2, 2, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("denominator", "expected"),
    [
        # sample at (1,0) of domain 0, class 0: own distance 0, positive sqrt 2, others sqrt 2 and 2
        ("negatives", math.sqrt(2) + math.log(1 + math.exp(-math.sqrt(2)) + math.exp(-2))),
        ("all_but_own", math.sqrt(2) + math.log(2 * math.exp(-math.sqrt(2)) + math.exp(-2))),
    ],
)
def test_alignment_by_hand(denominator: Any, expected: float) -> None:
    z = torch.tensor([[5.0, 0.0]], dtype=torch.float64)  # its length does not matter
    zero = torch.tensor([0])
    loss = alignment_loss(z, zero, zero, **two_by_two(), denominator=denominator)
    assert float(loss) == pytest.approx(expected, abs=1e-12)


def test_the_mean_runs_over_positive_pairs_not_over_samples() -> None:
    """Three domains; a sample with two positives and one with one: three terms of equal weight."""
    mu = torch.nn.functional.normalize(torch.randn(3, 2, 4, dtype=torch.float64), dim=2)
    present = torch.tensor([[True, True], [True, True], [True, False]])
    z = torch.randn(2, 4, dtype=torch.float64)
    y, d = torch.tensor([0, 1]), torch.tensor([0, 0])
    singles = [alignment_loss(z[k : k + 1], y[k : k + 1], d[k : k + 1], mu, present) for k in range(2)]
    together = alignment_loss(z, y, d, mu, present)
    assert float(together) == pytest.approx(float((2 * singles[0] + singles[1]) / 3), abs=1e-12)


@pytest.mark.parametrize("denominator", ["negatives", "all_but_own"])
def test_no_positive_gives_exactly_zero_with_zero_gradient(denominator: Any) -> None:
    z = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    only = torch.tensor([[True, True], [False, False]])
    loss = alignment_loss(
        z, torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64), two_by_two()["mu"], only, denominator=denominator
    )
    loss.backward()
    assert float(loss.detach()) == 0 and torch.equal(z.grad, torch.zeros_like(z))


def test_nothing_in_the_denominator_is_not_infinite() -> None:
    """A query sample whose class is the only one supported: no negatives exist."""
    mu, present = two_by_two()["mu"][:, :1], torch.tensor([[True], [False]])
    z = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    loss = alignment_loss(z, torch.tensor([0]), torch.tensor([1]), mu, present, denominator="negatives")
    loss.backward()
    assert float(loss.detach()) == 0 and torch.isfinite(z.grad).all()


def test_gradient_is_finite_on_a_centroid() -> None:
    """A lone sample is its own centroid: the distance is zero, where the norm has no derivative."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y, d = torch.tensor([0, 0]), torch.tensor([0, 1])
    loss = alignment_loss(z, y, d, *centroids(z, y, d, 2, 1))
    loss.backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_on_a_centroid_makes_no_gradient(dtype: torch.dtype) -> None:
    """One ulp beside its centroid, a sample would else be pulled with full force in a direction of noise."""
    z = torch.randn(64, 5, dtype=dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y, d = torch.arange(64), torch.zeros(64, dtype=torch.int64)  # every pair has one sample
    mu, _ = centroids(z, y, d, 2, 64)
    mu = torch.cat([mu[:1], -mu[:1]])  # a positive at the antipode, whose own gradient is zero
    loss = alignment_loss(z[:1], y[:1], d[:1], mu[:, :1], torch.ones(2, 1, dtype=torch.bool))
    loss.backward()
    assert z.grad[0].norm() < 1e-2


def test_alignment_does_not_depend_on_the_names_of_domains() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(12, 4, dtype=torch.float64, generator=rng)
    y, d = torch.arange(12) % 3, torch.arange(12) % 4
    swap = torch.tensor([2, 0, 3, 1])
    a = alignment_loss(z, y, d, *centroids(z, y, d, 4, 3))
    b = alignment_loss(z, y, swap[d], *centroids(z, y, swap[d], 4, 3))
    assert float(a) == pytest.approx(float(b), abs=1e-12)


# --- centroids, turns, ablations ----------------------------------------------------------------------------------


def test_ema_bank_copies_first_then_blends() -> None:
    model = make("RC-Align", centroids="ema", centroid_momentum=0.75, meta=False)
    data = batch(0)
    z = torch.randn(len(data), 8)
    first, _ = model._centroids(z, data)
    torch.testing.assert_close(first, centroids(z, data.y, data.domain, 3, 3)[0])
    old = model.bank.clone()
    other = torch.randn(len(data), 8)
    model._centroids(other, data)
    unit = torch.nn.functional.normalize(other, dim=1)
    for k in range(3):
        for c in range(3):
            rows = unit[(data.domain == k) & (data.y == c)]
            if len(rows):
                torch.testing.assert_close(model.bank[k, c], 0.75 * old[k, c] + 0.25 * rows.mean(0))
            else:
                assert torch.equal(model.bank[k, c], old[k, c])


def test_a_bank_never_lends_the_query_domain_to_the_support() -> None:
    model = make("RC-Align", centroids="ema")
    data = batch(0)
    model._centroids(torch.randn(len(data), 8), data)
    support = data.select([0, 2])
    _, present = model._centroids(torch.randn(len(support), 8), support)
    assert not present[1].any() and present[0].any()


def test_shrinkage_moves_rare_pairs_most() -> None:
    bank = torch.nn.functional.normalize(torch.randn(3, 2, 6, dtype=torch.float64), dim=2)
    counts = torch.tensor([[1000, 1], [1000, 1000], [1000, 1000]])
    moved = (shrunk_centroids(bank, torch.ones(3, 2, dtype=torch.bool), counts, 10.0) - bank).norm(dim=2)
    assert moved[0, 1] > 10 * moved[0, 0]


def test_every_domain_has_its_turn_as_query() -> None:
    model = make("RC-Align", domains=4)
    rounds = [[model._turn()[0] for _ in range(4)] for _ in range(5)]
    assert all(sorted(turns) == [0, 1, 2, 3] for turns in rounds)
    assert len({tuple(turns) for turns in rounds}) > 1


def test_all_episodes_update_once_per_domain() -> None:
    one, every = make("RC-Align"), make("RC-Align", episodes="all")
    counted: Callable[[Any], float] = lambda m: float(next(iter(m.optimizer.state.values()))["step"])  # noqa: E731
    one.step(batch(0)), every.step(batch(0))
    assert (counted(one), counted(every)) == (1, 3)


def test_two_source_domains_have_no_pairs_and_no_positives() -> None:
    plain = make("RC-Align", domains=2, alignment_weight=0.0, mixup_alpha=0.0)
    full = make("RC-Align", domains=2)
    for t in range(3):
        plain._queries, full._queries = [t % 2], [t % 2]
        plain.step(batch(t, domains=2)), full.step(batch(t, domains=2))
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(full)[name])


def test_look_ahead_leaves_parameters_and_statistics_alone() -> None:
    """With trained batch norm the second pass must not move running statistics."""
    from rcalign.algorithms.lookahead import LookAhead

    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    net(torch.randn(6, 4)).square().sum().backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    ahead = LookAhead(net)
    ahead.move(0.1)
    ahead(torch.randn(6, 4) + 5).sum().backward()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_two_source_domains_leave_nothing_to_align_and_it_is_said() -> None:
    model = make("RC-Align", domains=2)
    (note,) = model.notes
    assert "no second support domain for alignment and mixup: they do nothing" in note
    assert float(model.step(batch(0, domains=2))["alignment"]) == 0.0
    without = make("RC-Align", domains=2, alignment_weight=0.0, mixup_alpha=0.0)
    without.load_state_dict(make("RC-Align", domains=2).state_dict())
    both = make("RC-Align", domains=2)
    for t in range(4):
        both.step(batch(t, domains=2)), without.step(batch(t, domains=2))
    assert all(torch.equal(a, b) for a, b in zip(both.parameters(), without.parameters(), strict=True))
    assert not make("RC-Align", domains=3).notes and not make("RC-Align", domains=2, meta=False).notes
    assert float(make("RC-Align", domains=2, meta=False).step(batch(0, domains=2))["alignment"]) > 0
