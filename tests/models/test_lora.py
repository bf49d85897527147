"""LoRA: only the changes and the head move, merging changes nothing, and a run with it is a run like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rcalign import api, registry
from rcalign.algorithms.base import Network, seeded
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError
from rcalign.models.backbones import build_backbone
from rcalign.models.lora import add_lora, merged
from rcalign.training.trained import load_trained
from toy import advance, batch, dark_and_light, make, spec, takes_images, vector_network, weights

VIT = "test_vit"  # timm's smallest transformer
OPTIONS = {"backbone": VIT, "weights": "none", "image_size": 32, "steps": 4, "evaluate_every": 2}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dark_and_light(tmp_path_factory.mktemp("photos"), each=8, gap=100, width=120)


@pytest.mark.parametrize("name", registry.names(parts=True))
def test_every_algorithm_moves_the_changes_and_not_the_backbone(name: str) -> None:
    like = make(name)
    if takes_images(like):
        pytest.skip("needs a convolutional backbone, which has no linear layers")
    with seeded(0):
        network = vector_network()
        add_lora(network.featurizer, rank=2)
    if like.traits.stage_one is not None:
        pytest.skip("tested by its first stage")
    model = registry.get(name).algorithm(spec(3), network, like.hparams, seed=0)
    before = weights(model)
    for step in range(4):
        advance(model, batch(step, domains=3))
    after = weights(model)
    backbone = [key for key in before if key.startswith("featurizer.") and "lora" not in key]
    assert backbone and all(torch.equal(before[key], after[key]) for key in backbone)
    assert all(torch.isfinite(value).all() for value in after.values())


@pytest.mark.parametrize("attention", [False, True])
def test_the_merged_network_is_the_same_function(attention: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.attention(x, x, x, need_weights=False)[0] if attention else x)

    torch.manual_seed(0)
    network, plain, x = Block(), Block(), torch.randn(3, 5, 8)
    plain.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(x), plain(x), rtol=0, atol=0)
    assert add_lora(network, rank=3, alpha=5.0) == 2, "the projection out of attention is left alone"
    torch.testing.assert_close(network(x), plain(x))
    for name, value in network.named_parameters():
        if value.requires_grad:
            nn.init.normal_(value, std=0.3)
        assert value.requires_grad == ("lora" in name)
    assert (network(x) - plain(x)).abs().max() > 0.1
    gradient = torch.autograd.grad(network(x).sum(), network.attention.lora_up, allow_unused=not attention)
    assert not attention or float(gradient[0].abs().max()) > 0
    for mode in (True, False):
        plain.load_state_dict(merged(network.state_dict()))
        with torch.no_grad():
            torch.testing.assert_close(plain.train(mode)(x), network.train(mode)(x), rtol=0, atol=1e-6)


def test_a_run_is_merged_where_it_is_used_and_resumes(photos: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "lora": 4, "hparams": {"learning_rate": 1e-2, "batch_size": 4}}
    result = api.train(photos, "ERM", ["c"], out=tmp_path / "run", **options)
    kept = load_weights(tmp_path / "run" / "best.safetensors")
    names = [name for name in kept if name.endswith("lora_up")]
    assert names and all(kept[name].abs().max() > 0 for name in names)
    trained = load_trained(tmp_path / "run", torch.device("cpu"))
    assert not any("lora" in name for name in trained.algorithm.state_dict())
    made = build_backbone(VIT, (3, 32, 32), weights="none")
    add_lora(made.featurizer, 4)
    unmerged = registry.get("ERM").algorithm(trained.config.spec, Network(made.featurizer, made.features, 2))
    unmerged.load_state_dict(kept)
    x = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(trained.logits(x), unmerged.predict(x), rtol=0, atol=1e-5)
    assert api.evaluate(tmp_path / "run")["accuracy"] == pytest.approx(result["accuracy"])
    assert len(api.predict(tmp_path / "run", [photos / "c" / "dark"])["rows"]) == 8
    exported = api.export(tmp_path / "run", format="torchscript", out=tmp_path / "model.pt")
    assert exported["difference"] < 1e-4

    from rcalign.training import loop

    saved, count = loop._save, 0

    def stop_after_one(*arguments: object) -> None:
        nonlocal count
        saved(*arguments)  # type: ignore[arg-type]
        count += 1
        if count == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_save", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            api.train(photos, "ERM", ["c"], out=tmp_path / "stopped", **options)
    api.train(photos, "ERM", ["c"], out=tmp_path / "stopped", resume=True, **options)
    again = load_weights(tmp_path / "stopped" / "last.safetensors")
    straight = load_weights(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(again[name], straight[name]) for name in straight)

    api.soup([tmp_path / "run", tmp_path / "stopped"], out=tmp_path / "soup")
    mean = load_weights(tmp_path / "soup" / "best.safetensors")
    for name, value in merged(kept).items():
        torch.testing.assert_close(mean[name], value)  # both runs are the same
    assert api.evaluate(tmp_path / "soup")["accuracy"] == pytest.approx(result["accuracy"])


def test_wrong_uses_are_said(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the backbone has none, only convolutions"):
        api.train(photos, "ERM", ["c"], out=tmp_path / "run", **{**OPTIONS, "backbone": "test_resnet"}, lora=4)
    with pytest.raises(InputError, match="leave one of them out"):
        api.train(photos, "ERM", ["c"], out=tmp_path / "run", **OPTIONS, lora=4, freeze_backbone=True)
    with pytest.raises(InputError, match="`lora_alpha` is given without `lora`"):
        api.train(photos, "ERM", ["c"], out=tmp_path / "run", **OPTIONS, lora_alpha=4)
    np.savez(tmp_path / "rows.npz", x=np.ones((12, 2)), y=np.arange(12) % 2, domain=np.arange(12) // 4)
    with pytest.raises(InputError, match="`lora` needs images"):
        api.train(tmp_path / "rows.npz", "ERM", ["2"], out=tmp_path / "run", lora=4)
    assert not (tmp_path / "run").exists()
