"""Files that are safe to write and safe to read: state and weights as safetensors, JSON, never pickle.

A file appears whole or not at all: it is written beside its place, flushed to disk, then renamed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from rcalign.errors import InputError, unknown

_TREE = "rcalign.tree"
_UMASK = os.umask(0)
os.umask(_UMASK)  # reading it means setting it; done once, before there are threads


def save_state(path: Path | str, state: Mapping[str, Any]) -> None:
    """Writes nested dicts and lists of tensors, numbers, strings and None.

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
        raise InputError(f"'{path}' is a safetensors file without training state: expected one written by rcalign.")
    return _restore(json.loads(tree), tensors)


def write_whole(path: Path | str, content: bytes) -> None:
    """Writes a file that is never seen half-written, whatever happens."""
    with open_whole(path) as file:
        file.write(content)


@contextmanager
def open_whole(path: Path | str) -> Iterator[IO[bytes]]:
    """A file to write that gets its name when all of it is written and on the disk.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_whole(folder + "/a") as file:
    ...         _ = file.write(b"12"), print(Path(folder, "a").exists())
    ...     Path(folder, "a").read_bytes()
    False
    b'12'
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_UMASK)  # a temporary file is private, the result need not be
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_output(path: Path | str) -> Path:
    """The path, if a file can be written there: asked before the work whose result it is to hold.

    Makes the folder if it is missing. A folder, a device, or a place that cannot be written is an InputError.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = check_output(folder + "/new/a.csv"), print(Path(folder, "new").is_dir())
    ...     check_output(folder)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: '...' is a folder, but a file is to be written: name one, such as '...'.
    True
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder, but a file is to be written: name one, such as '{path / 'result'}'.")
    if path.exists() and not path.is_file():
        raise InputError(f"'{path}' is no regular file, so it cannot be written: name another.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written ({error.strerror or error}): choose another folder, or change its permissions."
        ) from None
    return path


def format_by_ending(
    format: str | None, out: Path | str | None, endings: Mapping[str, tuple[str, ...]], default: str
) -> str:
    """The format that was asked for, or else the one that the file's ending names, or else the default.

    endings: format -> endings of its files. A file whose ending belongs to another format, or to none, is an
    InputError; one without an ending is as good as any.

    >>> endings = {"json": (".json",), "html": (".html", ".htm")}
    >>> format_by_ending(None, "a.htm", endings, "json"), format_by_ending(None, None, endings, "json")
    ('html', 'json')
    >>> format_by_ending("json", "a.pdf", endings, "json")
    Traceback (most recent call last):
    rcalign.errors.InputError: 'a.pdf' ends in '.pdf', but json is written to '.json': rename it or change the format.
    """
    if format is not None and format not in endings:
        raise unknown("format", format, endings)
    ending = "" if out is None else Path(out).suffix.lower()
    if not ending:
        return format or default
    fitting = [name for name, known in endings.items() if ending in known]
    if format is None and not fitting:
        listed = ", ".join(known for several in endings.values() for known in several)
        raise InputError(f"'{out}' ends in '{ending}', which belongs to no format: use one of {listed}.")
    if format is not None and format not in fitting:
        expected = " or ".join(f"'{known}'" for known in endings[format])
        raise InputError(
            f"'{out}' ends in '{ending}', but {format} is written to {expected}: rename it or change the format."
        )
    return format or fitting[0]


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
            f"'{path}' cannot be read as weights ({first}): expected safetensors or a state dict."
        ) from None
    for wrapper in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(
            f"'{path}' holds no state dict (names with tensors): save one with torch.save(net.state_dict())."
        )
    return dict(found)
