"""CLIP end to end with tiny random towers of the real architecture: tokenizer, text tower, zero-shot head, training.

The weights are random (the published ones cannot be had here), so that what is tested is every step but their quality.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from rcalign import api
from rcalign.checkpoints import load_weights, save_weights
from rcalign.errors import InputError
from rcalign.models.backbones import build_backbone
from rcalign.training.averaging import BetaAverage
from rcalign.training.trained import load_trained

open_clip = pytest.importorskip("open_clip")
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the hub offers it, of a network that open_clip knows by the name tiny-for-tests."""
    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-for-tests.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(folder)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        save_weights(folder / "open_clip_model.safetensors", open_clip.create_model("tiny-for-tests").state_dict())
    return folder / "open_clip_model.safetensors"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for domain in ("a", "b", "c"):
        for k, label in enumerate(("alarm_clock", "bike", "zebra")):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for n in range(8):
                pixels = rng.integers(60 * k, 60 * k + 120, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")
    return root


def options(weights: Path, **more: Any) -> dict[str, Any]:
    return {
        "backbone": "clip:tiny-for-tests",
        "weights": str(weights),
        "image_size": 32,
        "steps": 4,
        "evaluate_every": 2,
        **more,
    }


def test_the_zero_shot_head_is_open_clips_own_arithmetic(weights: Path) -> None:
    made = build_backbone("clip:tiny-for-tests", (3, 32, 32), weights=weights)
    reference = open_clip.create_model("tiny-for-tests").eval()
    reference.load_state_dict(load_weights(weights))
    tokenizer = open_clip.get_tokenizer("tiny-for-tests")
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        texts = tokenizer(["a photo of a alarm clock.", "a photo of a bike."])
        assert texts.shape == (2, 77) and not torch.equal(texts[0], texts[1])
        _, expected = (reference.get_logits(x, texts)[k] for k in (1, 0))
        head = made.text.head(["alarm_clock", "bike"])
        torch.testing.assert_close(made.featurizer.eval()(x) @ head.T, expected)
        several = made.text.head(["bike"], ["a {}.", "the {}."])
        both = F.normalize(reference.encode_text(tokenizer(["a bike.", "the bike."])), dim=1).mean(0)
    torch.testing.assert_close(F.normalize(several[0], dim=0), F.normalize(both, dim=0))


def test_zero_shot_linear_probe_and_fine_tuning(weights: Path, photos: Path, tmp_path: Path) -> None:
    still = {"learning_rate": 0.0}
    zero = api.train(photos, "ERM", ["c"], out=tmp_path / "zero", linear_probe=True, **options(weights, hparams=still))
    same = api.train(photos, "ERM", ["c"], out=tmp_path / "same", **options(weights, hparams=still))
    assert zero["accuracy"] == same["accuracy"], "zero-shot, with features computed once and at every step"
    head = load_weights(tmp_path / "zero" / "best.safetensors")
    made = build_backbone("clip:tiny-for-tests", (3, 32, 32), weights=weights)
    torch.testing.assert_close(head["head.weight"], made.text.head(["alarm_clock", "bike", "zebra"]))
    assert {name for name in head if "featurizer" in name} == set(), "a linear probe has the head alone"

    fast = {"learning_rate": 1e-2, "batch_size": 4}
    probe = api.train(photos, "ERM", ["c"], out=tmp_path / "probe", linear_probe=True, **options(weights, hparams=fast))
    assert api.evaluate(tmp_path / "probe")["accuracy"] == pytest.approx(probe["accuracy"])
    random = api.train(photos, "ERM", ["c"], out=tmp_path / "r", head="random", **options(weights, hparams=fast))
    assert random["steps"] == 4


def test_a_fine_tuned_run_needs_neither_text_nor_published_weights(weights: Path, photos: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(weights, tmp_path / "copy.safetensors"))
    tuned = {"learning_rate": 1e-3, "batch_size": 4}
    more = options(copy, hparams=tuned, templates=["a drawing of a {}."], schedule="cosine")
    result = api.train(photos, "CLIPood", ["c"], out=tmp_path / "run", **more)
    copy.unlink()
    assert "Beta(0.5, 0.5)" in result["weights"]
    assert api.evaluate(tmp_path / "run")["accuracy"] == pytest.approx(result["accuracy"])
    assert len(api.predict(tmp_path / "run", [photos / "c" / "bike"])["rows"]) == 8
    assert api.export(tmp_path / "run", out=tmp_path / "model.pt")["difference"] < 1e-4
    trained = load_trained(tmp_path / "run", CPU).algorithm
    made = build_backbone("clip:tiny-for-tests", (3, 32, 32), weights=weights)
    text = made.text.head(["alarm_clock", "bike", "zebra"], ["a drawing of a {}."])
    torch.testing.assert_close(trained.head.weight, text)
    assert not torch.equal(trained.featurizer.network.conv1.weight, made.featurizer.network.conv1.weight)


def test_lora_changes_the_attention_of_the_image_tower(weights: Path, photos: Path, tmp_path: Path) -> None:
    tuned = {"learning_rate": 1e-2, "batch_size": 4}
    result = api.train(photos, "ERM", ["c"], out=tmp_path / "run", lora=2, **options(weights, hparams=tuned))
    kept = load_weights(tmp_path / "run" / "best.safetensors")
    assert any(name.endswith("attn.lora_up") and value.abs().max() > 0 for name, value in kept.items())
    assert api.evaluate(tmp_path / "run")["accuracy"] == pytest.approx(result["accuracy"])


def test_another_image_size_resamples_positions(weights: Path) -> None:
    made = build_backbone("clip:tiny-for-tests", (3, 48, 48), weights=weights)
    assert made.featurizer(torch.zeros(1, 3, 48, 48)).shape == (1, 16)


def test_the_beta_average_weighs_by_the_density() -> None:
    from scipy.stats import beta

    values = np.random.default_rng(0).normal(size=9)
    average = BetaAverage(steps=8, beta=0.5)
    average.take_start({"w": torch.tensor(values[0])})
    for value in values[1:]:
        average.update({"w": torch.tensor(value)})
    shares = beta(0.5, 0.5).pdf((np.arange(9) + 0.5) / 9)
    assert float(average.averaged()["w"]) == pytest.approx((shares * values).sum() / shares.sum())


def test_wrong_uses_are_said(weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(algorithm: str = "ERM", **more: Any) -> None:
        api.train(photos, algorithm, ["c"], out=tmp_path / "run", **{**options(weights), **more})

    with pytest.raises(InputError, match="did you mean 'ViT-B-32'"):
        train(backbone="clip:ViT-B-33")
    with pytest.raises(InputError, match="did you mean 'openai'"):
        train(backbone="clip:ViT-B-32/openay")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(
        InputError, match=r"get 'open_clip_model.safetensors' of 'timm/vit_base_patch32_clip_224.openai' from the"
    ):
        train(backbone="clip:ViT-B-32", weights=None)
    part = {name: value for name, value in load_weights(weights).items() if name.startswith("visual.")}
    save_weights(tmp_path / "half.safetensors", part)
    with pytest.raises(InputError, match="give those of both towers"):
        train(weights=str(tmp_path / "half.safetensors"))
    with pytest.raises(InputError, match=r"has no \{\} for the class name"):
        train(templates=["a photo."])
    with pytest.raises(InputError, match="give `linear_probe` instead"):
        train(freeze_backbone=True, head="zero-shot")
    with pytest.raises(InputError, match="takes a backbone with a text tower"):
        train(backbone="test_vit", weights="none", head="zero-shot")
    with pytest.raises(InputError, match="ADRMX has a head of its own"):
        train("ADRMX")
    assert not (tmp_path / "run").exists()
