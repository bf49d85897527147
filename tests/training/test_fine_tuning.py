"""Fine-tuning options: the learning rates as documented, for any algorithm, and resumed to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcalign import api, registry
from rcalign.algorithms.base import Network
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError
from rcalign.models.backbones import build_backbone
from rcalign.training.fine_tuning import FineTuning
from toy import advance, batch, make, spec, takes_images, weights

EVERYTHING: dict[str, Any] = {
    "adamw": True,
    "schedule": "cosine",
    "schedule_warm_up": 2,
    "layer_decay": 0.5,
    "clip_gradient": 1.0,
    "warm_up_head": 2,
    "label_smoothing": 0.1,
}


@pytest.mark.parametrize("name", registry.names(parts=True))
def test_every_algorithm_takes_every_option(name: str) -> None:
    model = make(name)
    options = {key: value for key, value in EVERYTHING.items() if key != "adamw"}
    tuning = FineTuning(model, steps=6, **options)
    before = weights(model)
    for step in range(6):
        tuning.before(step)
        if model.refresh_due():
            continue
        model.step(batch(step, domains=3, images=takes_images(model)))
        if step == 1 and name in ("ERM", "RC-Align", "MLDG", "SAGM"):
            now = weights(model)
            assert all(torch.equal(now[key], before[key]) for key in now if key.startswith("featurizer."))
            assert not torch.equal(now["head.weight"], before["head.weight"])
    assert all(torch.isfinite(value).all() for value in weights(model).values())


@pytest.mark.parametrize("name", registry.names(parts=True))
def test_smoothed_labels_reach_every_loss_with_labels(name: str) -> None:
    plain, smoothed = make(name), make(name)
    FineTuning(smoothed, steps=6, label_smoothing=0.2)
    for step in range(3):
        for model in (plain, smoothed):
            advance(model, batch(step, domains=3, images=takes_images(model)))
    ours, theirs = weights(smoothed), weights(plain)
    same = all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert same == (not registry.get(name).traits.cross_entropy)


def test_smoothed_labels_are_a_mixture_with_all_classes() -> None:
    model, data = make("ERM"), batch(0)
    logits = model.predict(data.x)
    hard = [model.cross_entropy(logits, torch.full_like(data.y, label)) for label in range(3)]
    expected = 0.7 * model.cross_entropy(logits, data.y) + 0.3 * torch.stack(hard).mean()
    FineTuning(model, steps=1, label_smoothing=0.3)
    torch.testing.assert_close(model.cross_entropy(logits, data.y), expected)


def test_a_step_with_a_clipped_gradient_and_plain_sgd_has_that_length() -> None:
    model = make("ERM")
    model.optimizers = {"main": torch.optim.SGD(model.parameters(), lr=1.0)}
    tuning = FineTuning(model, steps=3, clip_gradient=1e-3)
    before = weights(model)
    tuning.before(0)
    model.step(batch(0))
    moved = torch.cat([(value - before[key]).flatten() for key, value in weights(model).items()])
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_adamw_is_torchs_own() -> None:
    model, literal = make("ERM", weight_decay=0.1), make("ERM", weight_decay=0.1)
    FineTuning(model, steps=5, adamw=True)
    literal.optimizers = {"main": torch.optim.AdamW(literal.parameters(), lr=1e-3, weight_decay=0.1, fused=True)}
    for step in range(5):
        model.step(batch(step))
        literal.step(batch(step))
    for key, value in weights(literal).items():
        torch.testing.assert_close(weights(model)[key], value)


@pytest.mark.parametrize("backbone", ["resnet10t", "vit_tiny_patch16_224"])
def test_rates_fall_from_the_head_to_the_input(backbone: str) -> None:
    made = build_backbone(backbone, (3, 32, 32), weights="none")
    model = registry.get("ERM").algorithm(spec(3, images=True), Network(made.featurizer, made.features, 3))
    FineTuning(model, steps=5, layer_decay=0.5).before(0)
    rate = {id(p): group["lr"] for group in model.optimizer.param_groups for p in group["params"]}
    assert len(rate) == len(list(model.parameters())), "every parameter is in one group"
    names = {name: rate[id(p)] for name, p in model.named_parameters()}
    assert names["head.weight"] == max(rate.values())
    first = next(name for name, _ in model.named_parameters() if "conv1" in name or "patch_embed" in name)
    assert names[first] == min(rate.values())


def test_a_run_with_all_options_resumes_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(120, 5)), y=np.arange(120) % 2, domain=np.arange(120) // 2 % 3)
    options = {**EVERYTHING, "evaluate_every": 5}

    def train(out: str, steps: int, **more: Any) -> None:
        api.train(tmp_path / "rows.npz", "RC-Align", ["2"], out=tmp_path / out, steps=steps, **options, **more)

    train("straight", 20)
    import rcalign.training.loop as loop

    saved = loop._save
    try:
        count = 0

        def stop_after_two(*arguments: Any) -> None:
            nonlocal count
            saved(*arguments)
            count += 1
            if count == 2:
                raise KeyboardInterrupt

        loop._save = stop_after_two  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            train("stopped", 20)
    finally:
        loop._save = saved
    train("stopped", 20, resume=True)
    a, b = (load_weights(tmp_path / out / "last.safetensors") for out in ("straight", "stopped"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_wrong_values_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`layer_decay` is 0\.0, but must be more than 0"):
        api.train("emoji", "ERM", ["windows"], layer_decay=0.0)
    with pytest.raises(InputError, match=r"`label_smoothing` is 1\.0, but must be at most 0\.99"):
        api.train("emoji", "ERM", ["windows"], label_smoothing=1.0)
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.ones((12, 2)), y=np.arange(12) % 2, domain=np.arange(12) // 4)
    with pytest.raises(InputError, match="the loss of Focal is no cross-entropy with class labels"):
        api.train(rows, "Focal", ["2"], label_smoothing=0.1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=r"`clip_gradient` is -1\.0"):
        api.train("emoji", "ERM", ["windows"], clip_gradient=-1.0)
