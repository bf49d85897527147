"""Training state and weights as files: safetensors with JSON in the header, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from rcalign.errors import InputError
from rcalign.files import write_whole

_TREE = "rcalign.tree"


def save_state(path: Path | str, state: Mapping[str, Any]) -> None:
    """Writes nested dicts and lists of tensors, numbers, strings and None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(folder + "/a", {"t": torch.ones(2), "n": {0: [1, 2.5, None]}})
    ...     load_state(folder + "/a")
    {'t': tensor([1., 1.]), 'n': {0: [1, 2.5, None]}}
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_flatten(state, tensors))
    write_whole(path, safetensors.torch.save(tensors, metadata={_TREE: tree}))


def load_state(path: Path | str) -> dict[str, Any]:
    """The inverse of ``save_state``; tensors on the CPU."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
            tree = (file.metadata() or {}).get(_TREE)
    except safetensors.SafetensorError as error:
        raise InputError(f"'{path}' is not a readable checkpoint ({error}): train again or restore the file.") from None
    if tree is None:
        raise InputError(
            f"'{path}' is a safetensors file without training state, but one that a run saved is expected: "
            "train again or restore the file."
        )
    return _restore(json.loads(tree), tensors)


def shortened(value: Tensor) -> Tensor:
    """A tensor in bf16, if it holds single-precision numbers; others as they are.

    >>> shortened(torch.ones(1)).dtype, shortened(torch.ones(1, dtype=torch.int64)).dtype
    (torch.bfloat16, torch.int64)
    """
    return value.to(torch.bfloat16) if value.dtype == torch.float32 else value


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        key = str(len(tensors))
        # a copy: safetensors wants plain layout and no shared storage
        tensors[key] = value.detach().to("cpu", copy=True).contiguous()
        return ["tensor", key]
    if isinstance(value, Mapping):
        return ["dict", [[key, _flatten(item, tensors)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["list", [_flatten(item, tensors) for item in value]]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    raise TypeError(f"state of type {type(value).__name__} cannot be saved")


def _restore(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    kind, content = node
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _restore(item, tensors) for key, item in content}
    if kind == "list":
        return [_restore(item, tensors) for item in content]
    return content


def save_weights(path: Path | str, weights: Mapping[str, Tensor]) -> None:
    """A ``state_dict`` as a plain safetensors file that any tool can read."""
    write_whole(
        path, safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in weights.items()})
    )


def load_weights(path: Path | str) -> dict[str, Tensor]:
    """Weights from safetensors, or from a torch file read without executing anything in it."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no weights file '{path}': give a safetensors or torch file.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file it refuses
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"'{path}' cannot be read as weights ({first}): give safetensors, or what "
            "torch.save(net.state_dict()) wrote."
        ) from None
    for wrapper in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(
            f"'{path}' holds no state dict (names with tensors): save one with torch.save(net.state_dict())."
        )
    return dict(found)
