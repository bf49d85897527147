"""A trained model for other programs: ONNX, TorchScript or safetensors, checked, with a model card beside it."""

from rcalign.exports.card import card_file, kept_findings, model_card
from rcalign.exports.formats import ENDINGS, FORMATS, Exported, export_model
from rcalign.exports.network import Deployed
from rcalign.exports.sample_inputs import some_inputs

__all__ = [
    "ENDINGS",
    "FORMATS",
    "Deployed",
    "Exported",
    "card_file",
    "export_model",
    "kept_findings",
    "model_card",
    "some_inputs",
]
