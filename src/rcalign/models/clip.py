"""CLIP's image tower as a featurizer, and a head from class names by its text tower (``open_clip``).

    featurizer   f(x) / |f(x)|, (n, 3, s, s) -> (n, h)
    head         row c is exp(t) w_c / |w_c|, w_c = mean over templates of u / |u|, u the text tower's output for the
                 template with the name of class c; exp(t) is the published inverse temperature; no bias

With this head the network is CLIP's zero-shot classifier; training starts from there. Afterwards it is a network like
any other: neither the text tower nor the published weights are needed to use it.

Paper: Radford et al., Learning Transferable Visual Models From Natural Language Supervision (2021).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.checkpoints import load_weights
from rcalign.errors import InputError, unknown
from rcalign.models.weights import FROM_SCRATCH, weights_fingerprint

PREFIX = "clip:"
TEMPLATES = ("a photo of a {}.",)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP's own training
HUB_FILE = "open_clip_model.safetensors"  # what open_clip looks for in a repository of the hub


class ClipFeaturizer(nn.Module):
    """The image tower with its outputs brought to length one: (n, 3, s, s) -> (n, h)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.network(x), dim=1)


class TextTower:
    """Class vectors from names. model: an ``open_clip`` model. tokenizer: texts -> tokens (n, length)."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    @torch.no_grad()
    def head(self, classes: Sequence[str], templates: Sequence[str] = TEMPLATES) -> Tensor:
        """The weight (C, h) of the zero-shot head; underscores of class names are read as spaces."""
        self._model.eval()
        vectors = []
        for name in classes:
            texts = [template.replace("{}", name.replace("_", " ")) for template in templates]
            outputs = self._model.encode_text(self._tokenizer(texts), normalize=True)
            vectors.append(F.normalize(outputs.mean(0), dim=0))
        return self._model.logit_scale.exp() * torch.stack(vectors)


def is_clip(backbone: str | None) -> bool:
    """Whether the name of a backbone is that of a CLIP network.

    >>> is_clip("clip:ViT-B-32"), is_clip("resnet50"), is_clip(None)
    (True, False, False)
    """
    return backbone is not None and backbone.startswith(PREFIX)


def check_templates(templates: Sequence[str]) -> None:
    """Raises for a template without a place for the class name."""
    for template in templates:
        if "{}" not in template:
            raise InputError(f"the template '{template}' has no {{}} for the class name: write 'a photo of a {{}}.'.")


def build_clip(
    backbone: str, size: int, weights: str | Path | None
) -> tuple[ClipFeaturizer, TextTower, int, str, tuple[float, ...], tuple[float, ...]]:
    """The towers of ``clip:NETWORK`` or ``clip:NETWORK/WEIGHTS`` for images of a size.

    Both names are open_clip's; without the second one, OpenAI's weights where there are some. weights: a file of these
    weights, "none" for random ones, or None for the hub. Returns the featurizer, the text tower, the number of
    features, the fingerprint of the weights, and the mean and deviation of the pixels.
    """
    if importlib.util.find_spec("open_clip") is None:
        raise InputError(f"'{backbone}' needs open_clip, which is not installed: pip install 'rcalign[clip]'.")
    import open_clip

    name, _, tag = backbone.removeprefix(PREFIX).partition("/")
    if name not in open_clip.list_models():
        raise unknown("CLIP network", name, open_clip.list_models(), "Any of open_clip.list_models() will do.")
    tags = open_clip.list_pretrained_tags_by_model(name)
    if tag and tag not in tags:
        raise unknown(f"weights of {name}", tag, tags)
    tag = tag or ("openai" if "openai" in tags else tags[0] if tags else "")
    published = open_clip.pretrained.get_pretrained_cfg(name, tag) or {} if tag else {}
    with _quiet():
        model = open_clip.create_model(
            name, pretrained=None, force_image_size=size, force_quick_gelu=bool(published.get("quick_gelu"))
        )
        tokenizer = open_clip.get_tokenizer(name)
    used = FROM_SCRATCH
    if weights != FROM_SCRATCH:
        _load(model, Path(weights) if weights is not None else _downloaded(backbone, published))
        used = weights_fingerprint(model)
    featurizer = ClipFeaturizer(model.visual)
    with torch.no_grad():
        features = featurizer.eval()(torch.zeros(1, 3, size, size)).shape[1]
    mean, std = (tuple(published.get(key) or default) for key, default in (("mean", MEAN), ("std", STD)))
    return featurizer, TextTower(model, tokenizer), features, used, mean, std


def _downloaded(backbone: str, published: dict[str, Any]) -> Path:
    """The published weights from the Hugging Face hub or its cache."""
    import open_clip

    repository, _, file = published.get("hf_hub", "").rpartition("/")
    try:
        with _quiet():
            return Path(open_clip.pretrained.download_pretrained(published, prefer_hf_hub=True))
    except Exception as error:  # no network, no such weights: the hub raises many kinds
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
    source = f"get '{file or HUB_FILE}' of '{repository}' from the Hugging Face hub and " if repository else ""
    raise InputError(
        f"the weights of '{backbone}' are not here and cannot be downloaded ({why}): {source}give `weights=FILE`, or "
        "`weights=none` to start from random ones."
    )


def _load(model: nn.Module, file: Path) -> None:
    """Both towers from a file; position embeddings are resampled to the model's image size."""
    from open_clip.model import resize_pos_embed

    found = {name.removeprefix("module."): value for name, value in load_weights(file).items()}
    expected = model.state_dict()
    with _quiet(), contextlib.suppress(KeyError, RuntimeError):  # what does not fit is said below
        resize_pos_embed(found, model)
    for name, value in expected.items():
        if name not in found:
            if name in ("attn_mask", "visual.attn_mask"):  # made, not learned
                found[name] = value
                continue
            raise InputError(f"the weights from {file} lack '{name}': give those of both towers of this network.")
        if found[name].shape != value.shape:
            raise InputError(
                f"the weights from {file} have shape {tuple(found[name].shape)} for '{name}', expected "
                f"{tuple(value.shape)}: give weights of this very network."
            )
    model.load_state_dict({name: found[name].to(value.dtype) for name, value in expected.items()})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """open_clip logs to the root logger that no pretrained weights are loaded: what was asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
