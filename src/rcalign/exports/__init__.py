"""A trained model for other programs: ONNX, TorchScript or safetensors, checked, with a model card beside it."""

from rcalign.exports.card import model_card
from rcalign.exports.formats import FORMATS, SUFFIXES, Exported, export_model
from rcalign.exports.network import Deployed

__all__ = ["FORMATS", "SUFFIXES", "Deployed", "Exported", "export_model", "model_card"]
