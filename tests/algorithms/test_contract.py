"""The contract: every registered algorithm, on the CPU, in seconds. Exceptions are declared traits, never names."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm
from rcalign.checkpoints import load_state, save_state
from rcalign.errors import InputError
from toy import CLASSES, advance, batch, make, make_with, samples, takes_images, training_set, weights

NAMES = registry.names(parts=True)
PAGES = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
each = pytest.mark.parametrize("name", NAMES)


def run(model: Algorithm, steps: range, sizes: tuple[int, ...] | None = None) -> list[dict]:
    images = takes_images(model)
    domains = model.spec.num_domains
    return [advance(model, batch(t, sizes, domains=domains, images=images)) for t in steps]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


@each
def test_defaults_and_twenty_draws_build_and_step(name: str) -> None:
    hparams = registry.get(name).algorithm.Hparams
    for preset in ("default", "arrays", "mdlt"):
        make_with(name, spaces.defaults(hparams, preset))
    for seed in range(20):
        model = make_with(name, spaces.draw(hparams, "arrays", seed))
        logs = run(model, range(1))[0]
        assert np.isfinite(float(logs["loss"])), f"draw {seed}: {model.hparams}"


@each
def test_losses_are_finite_and_log_keys_stable(name: str) -> None:
    logs = run(make(name), range(8))
    assert all(row.keys() == logs[0].keys() for row in logs)
    assert "loss" in logs[0]
    assert all(np.isfinite(float(value)) for row in logs for value in row.values())


@each
def test_same_seed_same_bits_and_no_touch_on_global_randomness(name: str) -> None:
    torch.manual_seed(5), np.random.seed(5), random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = make(name, dropout=0.1)
    run(first, range(4))
    first.predict(batch(0, images=takes_images(first)).x)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()
    torch.manual_seed(99)
    second = make(name, dropout=0.1)
    run(second, range(4))
    assert_same(weights(first), weights(second))


@each
def test_save_load_and_go_on_equals_never_stopped(name: str, tmp_path: Path) -> None:
    straight = make(name, dropout=0.1)
    shapes = {key: value.shape for key, value in straight.state_dict().items()}
    run(straight, range(4))
    save_state(tmp_path / "state", straight.training_state())
    assert {key: value.shape for key, value in straight.state_dict().items()} == shapes, "state changes its shape"
    run(straight, range(4, 9))

    resumed = make(name, dropout=0.1)
    run(resumed, range(20, 22))  # somewhere else: loading must replace all of it
    resumed.load_training_state(load_state(tmp_path / "state"))
    run(resumed, range(4, 9))
    assert_same(weights(straight), weights(resumed))
    x = batch(50, images=takes_images(straight)).x
    assert torch.equal(straight.predict(x), resumed.predict(x))


@each
def test_predict_changes_nothing_and_is_a_function_of_each_row(name: str) -> None:
    model = make(name, dropout=0.5)
    run(model, range(3))
    x = batch(7, images=takes_images(model)).x
    state = weights(model)
    modes = [part.training for part in model.modules()]
    first = model.predict(x)
    assert first.shape == (len(x), CLASSES) and torch.isfinite(first).all()
    assert torch.equal(first, model.predict(x))
    assert_same(state, weights(model))
    assert modes == [part.training for part in model.modules()]
    alone = torch.cat([model.predict(row[None]) for row in x])
    if model.traits.batch_dependent:
        assert not torch.allclose(first, alone, atol=1e-4)
    else:
        torch.testing.assert_close(first, alone, atol=1e-5, rtol=1e-4)


@each
@pytest.mark.parametrize("domains", [1, 2, 4])
def test_number_of_domains_works_or_says_why_not(name: str, domains: int) -> None:
    needed = registry.get(name).traits.min_domains
    if domains < needed:
        with pytest.raises(InputError, match=rf"at least {needed} source domains.*domain0"):
            make(name, domains=domains)
    else:
        logs = run(make(name, domains=domains), range(3))
        assert np.isfinite(float(logs[-1]["loss"]))


@each
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4, 9), (5, 2, 3)])
def test_odd_batches_work_or_say_why_not(name: str, sizes: tuple[int, ...]) -> None:
    model = make(name)
    try:
        logs = run(model, range(3), sizes)
    except InputError as error:
        assert str(error).endswith(".") and len(str(error)) > 40
    else:
        assert np.isfinite(float(logs[-1]["loss"]))
        assert all(torch.isfinite(value).all() for value in weights(model).values())


@each
def test_a_class_missing_from_a_domain_costs_nothing(name: str) -> None:
    model = make(name)
    images = takes_images(model)
    rng = np.random.default_rng(0)
    for _ in range(4):
        parts = []
        for k, present in enumerate(([0, 1], [1, 2], [0, 2])):
            y = np.array(present * 3)
            parts.append((samples(y, k, rng, images), torch.from_numpy(y)))
        logs = advance(model, type(batch(0)).from_domains(parts))
        assert np.isfinite(float(logs["loss"]))


@each
def test_an_empty_domain_is_named(name: str) -> None:
    model = make(name)
    with pytest.raises(InputError, match="domain1"):
        model.step(batch(0, (4, 0, 4), images=takes_images(model)))


@each
def test_weight_zero_is_plain_training_where_declared(name: str) -> None:
    declared = registry.get(name).traits.erm_when
    if declared is None:
        pytest.skip("no hyperparameters turn it into plain training")
    model, plain = make(name, **dict(declared)), make("ERM")
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in plain.state_dict()})
    for t in range(5):
        advance(model, batch(t))
        plain.step(batch(t))
    ours = weights(model)
    for key, value in weights(plain).items():
        torch.testing.assert_close(ours[key], value, atol=2e-6, rtol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


@each
def test_learns_a_separable_task(name: str) -> None:
    if registry.get(name).traits.recipe_part:
        pytest.skip("a first stage learns no labels")
    model = make(name, learning_rate=5e-3)
    run(model, range(250))
    test = training_set(model)
    accuracy = (model.predict(test.x).argmax(1) == test.y).double().mean()
    assert accuracy > 0.9


@each
def test_has_a_page(name: str) -> None:
    entry = registry.get(name)
    page = PAGES / f"{entry.algorithm.__module__.rpartition('.')[2]}.md"
    assert page.is_file(), f"{page.name} is missing"
    text = page.read_text()
    for heading in ("## Idea", "## Formula", "## Paper", "## Departures", "## When to use it"):
        assert heading in text, f"{page.name} has no section {heading}"
    assert entry.summary and entry.paper and entry.family
