"""The file formats, and the check that what was written computes what was trained."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from rcalign.data.picture import to_stored
from rcalign.errors import InputError, unknown
from rcalign.exports.network import Deployed
from rcalign.exports.table_input import columns_text, feed, matrix_text, noise, with_columns
from rcalign.files import write_whole
from rcalign.training.trained import TrainedModel

TOLERANCE = 1e-4  # largest difference of a logit, relative to the largest logit where that is above one
RunExported = Callable[[np.ndarray], Sequence[np.ndarray]]  # inputs -> logits, probabilities


@dataclass(frozen=True)
class Exported:
    """file: what was written. input, output: how to call it. difference: the largest one of a logit or probability
    between the file and the trained model on ``samples`` inputs; None for weights alone, which are the same bytes."""

    file: Path
    format: str
    input: str
    output: str
    difference: float | None
    samples: int


def export_model(model: TrainedModel, format: str, out: Path, samples: Sequence[np.ndarray] = ()) -> Exported:
    """Writes a trained model (on the CPU) to a file and checks the file.

    samples: batches of real inputs to check on, of any sizes; without any, noise is used.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    entry = model.algorithm
    if entry.traits.batch_dependent and format != "safetensors":
        raise InputError(
            f"{entry.name} adapts to the batch that a sample comes with, which a fixed graph cannot do: export as "
            "safetensors, or train another algorithm."
        )
    network = Deployed(model)
    checked = list(samples) or _noise(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    run = FORMATS[format](network, model, checked[0], out)
    difference = None if run is None else _difference(network, run, checked)
    if run is not None and difference is not None and model.augmentation is not None and difference <= TOLERANCE:
        # what is claimed is measured from the picture on, along the way that predictions take
        difference = _difference(lambda batch: _predicted(model, batch), run, checked)
    elif difference is not None and not difference <= TOLERANCE:
        out.unlink()
        raise InputError(
            f"the exported {format} model differs from the trained one by {difference:.1e} in a logit (at most "
            f"{TOLERANCE:g} is expected), so it was not kept: please report the backbone '{model.config.backbone}'."
        )
    rows = sum(len(batch) for batch in checked)
    return Exported(out, format, _input_text(model, format), _output_text(model), difference, rows)


def _predicted(model: TrainedModel, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and probabilities of pictures (n, h, w, 3), as evaluation and prediction compute them."""
    assert model.augmentation is not None
    stored = np.stack([to_stored(picture, model.stored_size) for picture in pictures.numpy()])
    logits = model.logits(model.augmentation.evaluate(torch.from_numpy(stored)))
    return logits, torch.softmax(logits / model.temperature, 1)


def _difference(
    network: Callable[[Tensor], tuple[Tensor, Tensor]], run: RunExported, batches: Sequence[np.ndarray]
) -> float:
    worst = 0.0
    for batch in batches:
        with torch.inference_mode():
            expected = network(torch.from_numpy(batch))
        for ours, theirs in zip(expected, run(batch), strict=True):
            size = max(1.0, float(ours.abs().max()))
            worst = max(worst, float(np.abs(ours.numpy() - theirs).max()) / size)
    return worst


def _noise(model: TrainedModel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if model.encoding is not None:
        return [noise(model.encoding, n, rng) for n in (12, 1)]
    if model.augmentation is None:
        return [rng.normal(size=(n, *model.config.spec.input_shape)).astype(np.float32) for n in (3, 1)]
    side = model.stored_size
    shapes = ((3, side, side, 3), (1, side + 7, 2 * side, 3))
    return [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def _dynamic(model: TrainedModel) -> dict[int, Any]:
    dims: dict[int, Any] = {0: torch.export.Dim("n")}
    if model.augmentation is not None:
        dims |= {1: torch.export.Dim("height"), 2: torch.export.Dim("width")}
    return dims


def _example(model: TrainedModel, sample: np.ndarray) -> Tensor:
    """At least two rows: an axis of length one would be taken for one that never changes."""
    return torch.from_numpy(np.concatenate([sample[:1], sample[:1]]))


def _onnx(network: Deployed, model: TrainedModel, sample: np.ndarray, out: Path) -> RunExported:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"ONNX needs {', '.join(missing)}, which is not installed: pip install 'rcalign[onnx]'.")
    import onnx
    import onnxruntime

    try:
        with _quiet():
            program = torch.onnx.export(
                network,
                (_example(model, sample),),
                input_names=[_input_name(model)],
                output_names=["logits", "probabilities"],
                dynamic_shapes={"x": _dynamic(model)},
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        found = re.search(r"aten[.\w]+", str(error))
        raise InputError(
            f"{model.config.algorithm} with backbone '{model.config.backbone or 'default'}' computes something that "
            f"ONNX has no operation for ({found[0] if found else 'unknown'}): export as torchscript."
        ) from None
    assert program is not None
    graph = program.model_proto
    encoding = model.encoding
    if encoding is not None:
        graph = with_columns(graph, encoding)
    for key, value in _about(model, "onnx").items():
        graph.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    write_whole(out, content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    if encoding is not None:
        return lambda batch: session.run(None, feed(encoding, batch))
    return lambda batch: session.run(None, {_input_name(model): batch})


def _torchscript(network: Deployed, model: TrainedModel, sample: np.ndarray, out: Path) -> RunExported:
    with _quiet(), torch.no_grad():
        traced = torch.jit.trace(network, (_example(model, sample),), check_trace=False)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer, _extra_files={"rcalign.json": json.dumps(_about(model, "torchscript")).encode()})
        loaded = torch.jit.load(io.BytesIO(buffer.getvalue()))
    write_whole(out, buffer.getvalue())

    def run(batch: np.ndarray) -> list[np.ndarray]:
        with torch.inference_mode():
            return [value.numpy() for value in loaded(torch.from_numpy(batch))]

    return run


def _safetensors(network: Deployed, model: TrainedModel, sample: np.ndarray, out: Path) -> None:
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in network.state_dict().items()}
    write_whole(out, safetensors.torch.save(tensors, metadata=_about(model, "safetensors")))


FORMATS: dict[str, Callable[[Deployed, TrainedModel, np.ndarray, Path], RunExported | None]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
}
ENDINGS = {"onnx": (".onnx",), "torchscript": (".pt", ".pth", ".ts"), "safetensors": (".safetensors",)}


def _about(model: TrainedModel, format: str) -> dict[str, str]:
    """What the file says of itself: names with text, JSON where it is more than a word."""
    config = model.config
    about: dict[str, Any] = {
        "classes": json.dumps(config.spec.classes),
        "algorithm": config.algorithm,
        "temperature": repr(model.temperature),
        "calibrated": json.dumps(model.calibrated),
        "input": _input_text(model, format),
        "config": json.dumps(dataclasses.asdict(config)),
    }
    if model.augmentation is not None:
        augmentation = model.augmentation
        about["preprocessing"] = json.dumps(
            {
                "stored_size": model.stored_size,
                "size": augmentation.size,
                "mean": augmentation.mean,
                "std": augmentation.std,
            }
        )
    return about


def _input_name(model: TrainedModel) -> str:
    return "x" if model.augmentation is None else "images"


def _input_text(model: TrainedModel, format: str) -> str:
    if model.encoding is not None:
        return columns_text(model.encoding) if format == "onnx" else matrix_text(model.encoding)
    if model.augmentation is not None:
        return "images: uint8 (n, height, width, 3), RGB, any height and width; alpha composited on white"
    shape = ", ".join(map(str, model.config.spec.input_shape))
    return f"x: float32 (n, {shape}), in the units of the training data"


def _output_text(model: TrainedModel) -> str:
    classes = model.config.spec.num_classes
    calibrated = "calibrated" if model.calibrated else "not calibrated"
    return f"logits: float32 (n, {classes}); probabilities: float32 (n, {classes}), {calibrated}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters of torch speak of their own matters."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
