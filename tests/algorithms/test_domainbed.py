"""What each DomainBed method must do, apart from agreeing with recorded steps: limits, symmetries, who is updated."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign import registry, spaces
from rcalign.algorithms.arm import ARM
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.algorithms.mixup import Mixup
from rcalign.algorithms.sagnet import SagNet
from rcalign.errors import InputError
from rcalign.models.backbones import Rows, Series
from rcalign.types import Batch, DataSpec
from toy import ConvStages, batch, make, spec, vector_network, weights


def gradient_of(model: Algorithm, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [*model.featurizer.parameters(), *model.head.parameters()]))


def gradients_left(model: Algorithm) -> list[Tensor]:
    """What the last backward pass of a step left on the network."""
    return [p.grad.clone() for p in (*model.featurizer.parameters(), *model.head.parameters())]


def changed(before: dict[str, Tensor], model: Algorithm) -> set[str]:
    """The parts of the model of which something moved."""
    return {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def assert_all_close(ours: list[Tensor], expected: list[Tensor], atol: float = 1e-6) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def domain_losses(network: Any, data: Batch) -> list[Tensor]:
    return [F.cross_entropy(network(x)[1], y) for x, y in zip(data.split(data.x), data.split(data.y), strict=True)]


# --- ERM ---------------------------------------------------------------------------------------------------------


def test_erm_is_a_step_of_softmax_regression() -> None:
    data, rate = batch(0), 1e-2
    model = registry.get("ERM").algorithm(
        spec(), Network(nn.Identity(), 6, 3), spaces.defaults(registry.get("ERM").algorithm.Hparams, learning_rate=rate)
    )
    weight = model.head.weight.detach().clone()
    errors = model.predict(data.x).softmax(1) - F.one_hot(data.y, 3)
    gradient = errors.T @ data.x / len(data)
    model.step(data)
    torch.testing.assert_close(model.head.weight.grad, gradient)
    torch.testing.assert_close(model.head.weight.detach(), weight - rate * gradient / (gradient.abs() + 1e-8))


def test_erm_does_not_depend_on_the_order_of_domains_and_samples() -> None:
    data = batch(0, (4, 2, 5))
    parts = list(zip(data.split(data.x), data.split(data.y), strict=True))
    shuffled = Batch.from_domains([(x.flip(0), y.flip(0)) for x, y in reversed(parts)])
    first, second = make("ERM"), make("ERM")
    first.step(data), second.step(shuffled)
    assert_all_close(gradients_left(first), gradients_left(second))


# --- IRM, VREx, GroupDRO -------------------------------------------------------------------------------------------


def test_irm_weight_and_adams_restart_at_the_end_of_annealing() -> None:
    model = make("IRM", penalty_weight=50.0, anneal_steps=2)
    for t in range(4):
        logs = model.step(batch(t))
        weight = 1.0 if t < 2 else 50.0
        assert float(logs["loss"]) == pytest.approx(float(logs["risk"] + weight * logs["penalty"]), rel=1e-4)
        steps = {float(state["step"]) for state in model.optimizer.state.values()}
        assert steps == {1.0 + t % 2}  # counted anew from step 2 on


@pytest.mark.parametrize("name", ["VREx", "CORAL", "MMD"])
def test_equal_domains_leave_plain_training(name: str) -> None:
    one = batch(0, (6,), domains=1)
    data = Batch.from_domains([(one.x, one.y)] * 3)
    changes = {"estimator": "biased"} if name == "MMD" else {}
    model, plain = make(name, **changes), make("ERM")
    plain.load_state_dict(model.state_dict())
    logs = model.step(data)
    plain.step(data)
    assert abs(float(logs["penalty"])) < 1e-5
    assert_all_close(gradients_left(model), gradients_left(plain), atol=1e-5)


def test_group_dro_keeps_equal_domains_equal_and_prefers_the_worst() -> None:
    one = batch(0, (6,), domains=1)
    model = make("GroupDRO", weight_rate=0.5)
    model.step(Batch.from_domains([(one.x, one.y)] * 3))
    torch.testing.assert_close(model.log_weights.exp(), torch.full((3,), 1 / 3))
    wrong = (one.y + 1) % 3
    for _ in range(30):
        model.step(Batch.from_domains([(one.x, one.y), (one.x, one.y), (one.x, wrong)]))
    assert model.log_weights.argmax() == 2 and model.log_weights.exp().sum().item() == pytest.approx(1)


# --- Mixup ---------------------------------------------------------------------------------------------------------


class Fixed(Mixup):
    """Pairs (0, 1), (1, 2), (2, 0) with given weights."""

    lam = (1.0, 1.0, 1.0)

    def draw_pairs(self) -> list[tuple[int, int, float]]:
        return [(k, (k + 1) % 3, self.lam[k]) for k in range(3)]


def fixed(lam: tuple[float, float, float]) -> Fixed:
    with seeded(0):
        model = Fixed(spec(), vector_network())
    model.lam = lam
    return model


def test_mixup_with_weight_one_is_the_mean_over_domains_of_cut_batches() -> None:
    data = batch(0, (6, 2, 5))
    model = fixed((1.0, 1.0, 1.0))
    x, y = data.split(data.x), data.split(data.y)
    rows = (2, 2, 5)  # each cut to its partner's size
    expected = sum(F.cross_entropy(model(x[k][:n])[1], y[k][:n]) for k, n in enumerate(rows)) / 3
    torch.testing.assert_close(model.loss(data).loss, expected)


def test_mixup_is_cross_entropy_with_mixed_labels() -> None:
    data, lam = batch(0), (0.3, 0.8, 0.5)
    model = fixed(lam)
    x, y = data.split(data.x), data.split(data.y)
    total = 0.0
    for k, weight in enumerate(lam):
        j = (k + 1) % 3
        soft = weight * F.one_hot(y[k], 3) + (1 - weight) * F.one_hot(y[j], 3)
        total = total + F.cross_entropy(model(weight * x[k] + (1 - weight) * x[j])[1], soft) / 3
    torch.testing.assert_close(model.loss(data).loss, total)


def test_mixup_with_one_domain_is_plain_training() -> None:
    data = batch(0, (6,), domains=1)
    model = make("Mixup", domains=1)
    torch.testing.assert_close(model.loss(data).loss, F.cross_entropy(model(data.x)[1], data.y))


# --- MLDG ----------------------------------------------------------------------------------------------------------


def expected_direction(model: Algorithm, data: Batch, episodes: list, share: float, inner: Any) -> list[Tensor]:
    """Sum over episodes of G_S + w G_T', with a copied network moved by a real optimizer."""
    total = None
    for train, test in episodes:
        ahead = copy.deepcopy(nn.ModuleList([model.featurizer, model.head]))
        forward = lambda x, net=ahead: (None, net[1](net[0](x)))  # noqa: E731
        mean = lambda domains, run=forward: torch.stack([domain_losses(run, data)[k] for k in domains]).mean()  # noqa: E731
        optimizer = inner(ahead.parameters())
        first = torch.autograd.grad(mean(train), list(ahead.parameters()))
        for p, g in zip(ahead.parameters(), first, strict=True):
            p.grad = g.clone()
        optimizer.step()
        second = torch.autograd.grad(mean(test), list(ahead.parameters()))
        both = [share * (a + model.hparams.meta_weight * b) for a, b in zip(first, second, strict=True)]
        total = both if total is None else [a + b for a, b in zip(total, both, strict=True)]
    return total


@pytest.mark.parametrize("episodes", ["joint", "ring", "split"])
@pytest.mark.parametrize("inner", ["adam_first", "sgd"])
def test_mldg_looks_ahead_as_a_copied_network_would(episodes: str, inner: str) -> None:
    model = make("MLDG", episodes=episodes, inner=inner, inner_rate=0.3, meta_weight=0.7, weight_decay=0.01)
    data = batch(3)
    drawn = model._episodes()
    model._episodes = lambda: drawn
    make_inner = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
        "adam_first": lambda p: torch.optim.Adam(p, lr=model.hparams.learning_rate, weight_decay=0.01),
    }[inner]
    share = 1.0 if episodes == "joint" else 1 / 3
    expected = expected_direction(model, data, drawn, share, make_inner)
    model.step(data)
    assert_all_close(gradients_left(model), expected)


def test_mldg_with_inner_rate_zero_adds_plain_gradients() -> None:
    model = make("MLDG", episodes="ring", inner="sgd", inner_rate=0.0, meta_weight=2.0)
    data = batch(0)
    # every domain is once in meta-train (weight 1) and once in meta-test (weight 2)
    expected = gradient_of(model, 3 * torch.stack(domain_losses(model, data)).mean())
    model.step(data)
    assert_all_close(gradients_left(model), expected)


def test_mldg_uses_every_domain_and_never_copies_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("MLDG", domains=4, meta_test_domains=2)
    (episode,) = model._episodes()
    assert sorted(episode[0] + episode[1]) == [0, 1, 2, 3] and len(episode[1]) == 2
    monkeypatch.setattr(copy, "deepcopy", lambda *_: pytest.fail("a network was copied"))
    model.step(batch(0, domains=4))


# --- Fish ----------------------------------------------------------------------------------------------------------


def test_fish_with_rate_one_is_sequential_training_and_with_rate_zero_stands_still() -> None:
    model, still = make("Fish", meta_rate=1.0), make("Fish", meta_rate=0.0)
    plain = make("ERM")
    plain.load_state_dict(model.state_dict())
    start = weights(still)
    for t in range(3):
        data = batch(t, (6, 2, 4))
        model.step(data)
        still.step(data)
        for x, y in zip(data.split(data.x), data.split(data.y), strict=True):
            plain.descend(F.cross_entropy(plain(x)[1], y))
    assert not changed(weights(plain), model)
    assert not changed(start, still)


def test_fish_keeps_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer builds a new pretrained network in each step; here nothing is built or copied."""
    model = make("Fish")
    model.step(batch(0))
    before = [(id(p), p.data_ptr()) for p in model.parameters()]
    theta = [value.data_ptr() for value in model._theta]
    monkeypatch.setattr(copy, "deepcopy", lambda *_: pytest.fail("a network was copied"))
    monkeypatch.setattr(nn.Module, "__init__", lambda *_, **__: pytest.fail("a network was built"))
    model.step(batch(1))
    assert [(id(p), p.data_ptr()) for p in model.parameters()] == before
    assert [value.data_ptr() for value in model._theta] == theta


def test_fish_shuffles_domains_on_request() -> None:
    fixed_order, shuffled = make("Fish"), make("Fish", shuffle_domains=True)
    for t in range(3):
        fixed_order.step(batch(t)), shuffled.step(batch(t))
    assert changed(weights(fixed_order), shuffled)


# --- ARM -----------------------------------------------------------------------------------------------------------


def arm(kind: str = "rows", **changes: Any) -> ARM:
    shapes = {"rows": (6,), "series": (2, 20), "images": (3, 8, 8)}
    featurizers = {"rows": lambda: Rows(6, 8), "series": lambda: Series(2, 16), "images": ConvStages}
    features = {"rows": 8, "series": 16, "images": 12}[kind]
    data = DataSpec(("ant", "bee", "cat"), ("one", "two"), ((9, 9, 9),) * 2, shapes[kind])
    with seeded(0):
        network = Network(featurizers[kind](), features, 3)
    return ARM(data, network, spaces.defaults(ARM.Hparams, **changes))


def arm_batch(kind: str, sizes: tuple[int, int] = (4, 6)) -> Batch:
    generator = torch.Generator().manual_seed(3)
    shape = {"rows": (6,), "series": (2, 20), "images": (3, 8, 8)}[kind]
    return Batch.from_domains([(torch.randn(n, *shape, generator=generator), torch.arange(n) % 3) for n in sizes])


@pytest.mark.parametrize("kind", ["rows", "series", "images"])
@pytest.mark.parametrize("stride", [1, 4])
def test_arm_trains_context_and_network_on_any_kind_of_input(kind: str, stride: int) -> None:
    model = arm(kind, context_stride=stride, learning_rate=1e-2)
    before = weights(model)
    model.step(arm_batch(kind))
    assert changed(before, model) == {"featurizer", "head", "context", "context_input"}
    assert model.predict(arm_batch(kind).x).shape == (10, 3)


def test_arm_prediction_depends_on_the_group_but_not_on_its_order() -> None:
    model = arm("images", batch_size=5)
    with seeded(1):
        nn.init.normal_(model.context_input.weight, std=5.0)  # an untrained context says little
    x = arm_batch("images").x  # ten rows: groups 0-4 and 5-9
    logits = model.predict(x)
    order = torch.tensor([3, 1, 4, 0, 2, 5, 6, 7, 8, 9])
    torch.testing.assert_close(model.predict(x[order]), logits[order])
    mixed = model.predict(x[[0, 5, 6, 7, 8, 9, 1, 2, 3, 4]])
    assert not torch.allclose(mixed[0], logits[0], atol=1e-4)
    torch.testing.assert_close(model.predict(x[:5]), logits[:5])
    alone = model.predict(x[:1])  # its own context
    assert alone.shape == (1, 3) and not torch.allclose(alone[0], logits[0], atol=1e-4)


def test_arm_is_a_network_with_one_more_input_channel() -> None:
    """The added layer is what a first convolution over [x, context] would compute."""
    model = arm("images", context_stride=1)
    data = arm_batch("images")
    first = model.featurizer.stages[0][0]
    context = model.contexts(data.x, data.sizes).repeat_interleave(torch.tensor(data.sizes), 0)
    wide = torch.cat([first.weight, model.context_input.weight], 1)  # (out, 3 + 1, 3, 3)
    assert torch.equal(wide[:, 3], wide[:, 0])
    literal = F.conv2d(torch.cat([data.x, context], 1), wide, first.bias, stride=2, padding=1)
    seen = {}
    first.register_forward_hook(lambda layer, inputs, output: seen.update(output=output))
    model(data.x, data.sizes)
    torch.testing.assert_close(seen["output"], literal)


def test_arm_groups_are_domains_also_when_batches_are_unequal() -> None:
    model = arm("rows")
    data = arm_batch("rows", (3, 7))
    contexts = model.eval().contexts(data.x, data.sizes)
    torch.testing.assert_close(contexts[0], model.context(data.x)[:3].mean(0))
    torch.testing.assert_close(contexts[1], model.context(data.x)[3:].mean(0))


def test_arm_says_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match=r"has 1 of domain 'two': use a batch_size of at least 2\.$"):
        arm("images").step(arm_batch("images", (4, 1)))
    with pytest.raises(InputError, match="batch_size' is 1, but must be at least 2"):
        spaces.defaults(ARM.Hparams, batch_size=1)
    with pytest.raises(InputError, match="first layer is no convolution or linear layer"):
        ARM(spec(), Network(nn.Identity(), 6, 3))


def test_arm_can_be_copied() -> None:
    """Averaging copies models: the copy's hook must see the copy's context."""
    model = arm("images")
    twin = copy.deepcopy(model)
    x = arm_batch("images").x
    expected = model.predict(x)
    model.step(arm_batch("images"))
    torch.testing.assert_close(twin.predict(x), expected)


# --- MTL -----------------------------------------------------------------------------------------------------------


def test_mtl_rows_of_a_domain_share_an_embedding_that_carries_gradient() -> None:
    model = make("MTL", batch_share=1.0)
    data = batch(0)
    features = model.featurizer(data.x)
    means = torch.stack([part.mean(0) for part in data.split(features)])
    shown = torch.cat([features, means[data.domain]], 1)
    losses = [F.cross_entropy(model.head(z), y) for z, y in zip(data.split(shown), data.split(data.y), strict=True)]
    expected = gradient_of(model, torch.stack(losses).sum())
    model.step(data)
    assert_all_close(gradients_left(model), expected)


def test_mtl_with_full_batch_share_forgets_its_embeddings() -> None:
    model, other = make("MTL", batch_share=1.0, start_at_zero=True), make("MTL", batch_share=1.0, start_at_zero=True)
    with torch.no_grad():
        other.embeddings.fill_(7.0)
    torch.testing.assert_close(model.loss(batch(0)).loss, other.loss(batch(0)).loss)


def test_mtl_with_published_noise_still_predicts_the_same_twice_and_draws_nothing() -> None:
    model = make("MTL", published_noise=True)
    model.step(batch(0))
    before, x = str(model.rng.bit_generator.state), batch(1).x
    assert torch.equal(model.predict(x), model.predict(x))
    assert str(model.rng.bit_generator.state) == before


# --- SagNet --------------------------------------------------------------------------------------------------------


class Watched(SagNet):
    """Notes which parts each of a step's updates moved."""

    def _update(self, loss: Tensor, *names: str) -> None:
        before = weights(self)
        super()._update(loss, *names)
        self.moved = [*getattr(self, "moved", []), changed(before, self)]


@pytest.mark.parametrize(
    ("updates", "moved"),
    [
        ("three", [{"featurizer", "head"}, {"style_head"}, {"featurizer"}]),
        ("joint", [{"style_head"}, {"featurizer", "head"}]),
    ],
)
def test_sagnet_updates_move_only_their_own_networks(updates: str, moved: list[set[str]]) -> None:
    with seeded(0):
        model = Watched(
            spec(), vector_network(), spaces.defaults(SagNet.Hparams, "arrays", updates=updates, dropout=0.1)
        )
    model.step(batch(0))
    assert model.moved == moved


def test_sagnet_passes_through_the_network_as_often_as_its_updates_need() -> None:
    for updates, passes in (("joint", 1), ("three", 2)):
        model = make("SagNet", updates=updates)
        calls: list[int] = []
        model.featurizer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model.step(batch(0))
        assert len(calls) == passes


# --- RSC -----------------------------------------------------------------------------------------------------------


def test_rsc_mutes_the_label_rows_largest_weights_of_a_share_of_samples() -> None:
    model = make("RSC", feature_drop=0.4, sample_drop=0.3)
    data = batch(0, (20, 20, 20))
    features = model.featurizer(data.x).detach()
    kept = model.mask(features, data.y)
    hit = ~kept.all(1)
    assert hit.float().mean().item() == pytest.approx(0.3, abs=0.02)
    rows = model.head.weight.detach()[data.y]
    threshold = torch.quantile(rows, 0.6, dim=1, keepdim=True)
    assert torch.equal(kept[hit], (rows < threshold)[hit])


# --- DANN, CDANN ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_adversaries_take_turns(name: str, turns: int) -> None:
    model = make(name, discriminator_steps=turns)
    classifier = {"featurizer", "head"}
    for t in range(1, 8):
        before = weights(model)
        model.step(batch(t))
        if t % (1 + turns) < turns:
            assert changed(before, model) == {"discriminator", "class_embeddings"} & {p.split(".")[0] for p in before}
        else:
            assert changed(before, model) == classifier


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
def test_adversary_weight_zero_gives_plain_gradients(name: str) -> None:
    model, plain = make(name, adversary_weight=0.0), make("ERM")
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in plain.state_dict()})
    model.step(batch(0))  # with one discriminator step in turn, the first step is the classifier's
    plain.step(batch(0))
    assert_all_close(gradients_left(model), gradients_left(plain))


def test_an_untrained_discriminator_is_at_chance() -> None:
    model = make("DANN")
    for layer in model.discriminator:
        nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    data = batch(0)
    assert model.discriminator_loss(model.featurizer(data.x), data.y, data.domain).item() == pytest.approx(
        torch.tensor(3.0).log()
    )


def test_cdann_without_embeddings_on_balanced_classes_is_dann() -> None:
    conditional, plain = make("CDANN"), make("DANN")
    plain.load_state_dict({key: v for key, v in conditional.state_dict().items() if key in plain.state_dict()})
    nn.init.zeros_(conditional.class_embeddings.weight)
    data = batch(0)
    balanced = Batch(data.x, torch.arange(len(data)) % 3, data.domain, data.index, data.sizes)
    features = plain.featurizer(data.x)
    losses = [model.discriminator_loss(features, balanced.y, balanced.domain) for model in (conditional, plain)]
    torch.testing.assert_close(*losses)


def test_cdann_does_not_see_how_often_the_batch_is_repeated() -> None:
    model, data = make("CDANN"), batch(0)
    twice = Batch.from_domains(
        [(x.repeat(2, 1), y.repeat(2)) for x, y in zip(data.split(data.x), data.split(data.y), strict=True)]
    )
    losses = [model.discriminator_loss(model.featurizer(part.x), part.y, part.domain) for part in (data, twice)]
    torch.testing.assert_close(*losses)


# --- all -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GroupDRO", "CORAL", "MMD", "MTL", "Mixup"])
@pytest.mark.parametrize("trained", [False, True])
def test_domains_pass_together_unless_batch_norm_is_trained(name: str, trained: bool) -> None:
    class Normed(nn.Sequential):
        def train(self, mode: bool = True) -> Normed:
            super().train(mode)
            self[1].train(mode and trained)
            return self

    cls = registry.get(name).algorithm
    network = Network(Normed(nn.Linear(6, 8), nn.BatchNorm1d(8)), 8, 3)
    model = cls(spec(), network)
    passes: list[int] = []
    model.featurizer[0].register_forward_hook(lambda layer, inputs, output: passes.append(len(output)))
    model.step(batch(0))
    assert passes == ([6, 6, 6] if trained else [18])
