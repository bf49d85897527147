"""``sentiment``: 23,703 sentences of four sources with the mean of 20 people's ratings, as sentence embeddings.

Tweets, film reviews, reviews of goods and newspaper editorials (Hutto and Gilbert, ICWSM 2014). The classes are cut
from the mean rating, which lies between -4 and 4: below -0.5 negative, above 0.5 positive, neutral between and at the
bounds. The sources differ in how much is neutral: 5 % of the film reviews, 46 % of the editorials. Sentences of one
review or editorial, and sentences that are the same, are one group and never on both sides of a split.

A sentence is the network's input as 384 numbers of length 1: the mean-pooled output of all-MiniLM-L6-v2, which a pip
package carries. They are computed once, in shards, and lie with the texts.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcalign.data import sentences as encoders
from rcalign.data.benchmarks.archives import Source, is_archive, open_source
from rcalign.data.benchmarks.place import (
    compared,
    data_root,
    disk_errors,
    is_stand_in,
    locked,
    new_folder,
    stand_in_note,
)
from rcalign.data.source import Arrays, Dataset, fingerprint, from_names
from rcalign.errors import InputError
from rcalign.files import open_whole, write_whole

NAME = FOLDER = "sentiment"
SUMMARY = "negative, neutral or positive: sentences of four sources (embeddings)"
# licence: MIT (vaderSentiment); the texts belong to whoever wrote them
PAGE = "https://github.com/cjhutto/vaderSentiment"
GET = "pip download vaderSentiment==3.3.2 --no-binary :all: --no-deps"
FILES = {  # source -> file, sentences
    "amazon": ("amazonReviewSnippets_GroundTruth.txt", 3708),
    "movies": ("movieReviewSnippets_GroundTruth.txt", 10605),
    "nyt": ("nytEditorialSnippets_GroundTruth.txt", 5190),
    "tweets": ("tweets_GroundTruth.txt", 4200),
}
INNER = "hutto_ICWSM_2014.tar.gz"  # inside the package's archive
IN_DOCUMENTS = ("amazon", "nyt")  # whose ids are document_sentence
CUT = 0.5
CLASSES = ("negative", "neutral", "positive")
WIDTH = 384
EMBEDDINGS = f"{encoders.DEFAULT}.npy"
SHARD = 1024


@dataclass(frozen=True)
class Sentence:
    """source: one of ``FILES``. document: the review or editorial it is from, or itself."""

    source: str
    document: str
    rating: float
    text: str


def load(root: str | None = None, *, progress: bool = False) -> Dataset:
    """The sentences in the data root; embeds them first if that was not done or not finished."""
    folder = data_root(root) / FOLDER
    if any(not (folder / file).is_file() for file, _ in FILES.values()):
        raise InputError(
            f"sentiment is not in the data root, not all of its texts are in '{folder}': get them with '{GET}' and "
            "then 'rcalign data prepare sentiment --from vaderSentiment-3.3.2.tar.gz'."
        )
    sentences = read_sentences(folder)
    x = embeddings(folder, sentences, progress=progress)
    labels = [CLASSES[(s.rating > CUT) - (s.rating < -CUT) + 1] for s in sentences]
    domains = [s.source for s in sentences]
    notes = [stand_in_note(folder, NAME)] if is_stand_in(folder) else []
    notes.append(f"classes cut from the mean rating (-4 to 4): negative below -{CUT}, positive above {CUT}")
    parts = [
        x.tobytes(),
        *(f"{s.source} {s.document} {label}".encode() for s, label in zip(sentences, labels, strict=True)),
    ]
    return from_names(
        NAME,
        Arrays(x),
        labels,
        domains,
        fingerprint=fingerprint(parts),
        group=groups(sentences),
        notes=notes,
        class_order=CLASSES,
        domain_order=tuple(FILES),
    )


def read_sentences(folder: Path) -> list[Sentence]:
    """Every sentence of the four files, in their order."""
    return [sentence for source, (file, _) in FILES.items() for sentence in _read(source, folder / file)]


def _read(source: str, file: Path) -> Iterable[Sentence]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' cannot be read as text ({error}): get it again with '{GET}'.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        pieces = line.split("\t")
        try:
            identity, rating, text = pieces[0], float(pieces[1]), pieces[2].strip()
        except (IndexError, ValueError):
            raise InputError(
                f"line {number} of '{file}' is not an id, a rating and a sentence between tabs: get it again with "
                f"'{GET}'."
            ) from None
        document = identity.split("_")[0] if source in IN_DOCUMENTS else identity
        yield Sentence(source, f"{source} {document}", rating, text)


def groups(sentences: Sequence[Sentence]) -> list[int]:
    """A number for each sentence; the same for sentences of one document and for sentences with the same text.

    >>> s = [Sentence("nyt", d, 0.0, t) for d, t in (("1", "a"), ("1", "b"), ("2", "b"), ("3", "c"))]
    >>> groups(s)
    [0, 0, 0, 3]
    """
    parent = list(range(len(sentences)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    first: dict[tuple[str, str], int] = {}
    for row, sentence in enumerate(sentences):
        for mark in (("document", sentence.document), ("text", sentence.text.casefold())):
            a, b = root(first.setdefault(mark, row)), root(row)
            parent[max(a, b)] = min(a, b)
    return [root(row) for row in range(len(sentences))]


# --- embeddings --------------------------------------------------------------------------------------------------


def embeddings(folder: Path, sentences: Sequence[Sentence], *, progress: bool = False) -> np.ndarray:
    """(n, 384) float32, from the file in the folder, else computed and kept there, shard by shard."""
    file = folder / EMBEDDINGS
    if not file.is_file():
        with locked(folder.with_name(f".{FOLDER}.lock"), "Another process embeds the sentences: waiting."):
            if not file.is_file():
                _embed(folder, [sentence.text for sentence in sentences], progress)
    found = np.load(file, allow_pickle=False)
    if found.shape != (len(sentences), WIDTH) or found.dtype != np.float32:
        raise InputError(
            f"'{file}' has {found.dtype} of shape {found.shape}, but there are {len(sentences):,} sentences: remove it "
            "and run the same command again."
        )
    return found


def _embed(folder: Path, texts: Sequence[str], progress: bool) -> None:
    from rich.console import Console
    from rich.progress import Progress

    shards = folder / ".shards"
    with disk_errors(folder):
        shards.mkdir(exist_ok=True)
    starts = range(0, len(texts), SHARD)
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        for start in bar.track(starts, description="Embedding sentences"):
            file = shards / f"{start}.npy"
            if not file.is_file():
                found = encoders.compute(texts[start : start + SHARD], encoders.DEFAULT, progress=False)
                with disk_errors(folder), open_whole(file) as out:
                    np.save(out, found, allow_pickle=False)
        whole = np.concatenate([np.load(shards / f"{start}.npy", allow_pickle=False) for start in starts])
    with disk_errors(folder), open_whole(folder / EMBEDDINGS) as out:
        np.save(out, whole, allow_pickle=False)
    shutil.rmtree(shards)


# --- on disk -----------------------------------------------------------------------------------------------------


def prepare(
    sources: Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Copies the four files of sentences into the data root and embeds them. sources: the package's archive, the one
    inside it, or a folder with either or with the files."""
    folder = data_root(root) / FOLDER
    already = "give its name as data (embedding goes on where it stopped), or "
    with new_folder(folder, "sentiment", replace=replace, already=already) as growing:
        for source in map(Path, sources):
            source = source.expanduser().absolute()
            if not source.is_dir() and not (source.is_file() and is_archive(source)):
                raise InputError(f"'{source}' is no folder and no archive: get the archive with '{GET}'.")
            _collect(open_source(source), growing)
        absent = [file for file, _ in FILES.values() if not (growing / file).is_file()]
        if absent:
            raise InputError(
                f"sentiment is not whole: {', '.join(absent)} not found, neither as files nor in {INNER}; get the "
                f"archive with '{GET}'."
            )
        sentences = read_sentences(growing)
    embeddings(folder, sentences, progress=progress)
    counts = {source: sum(sentence.source == source for sentence in sentences) for source in FILES}
    return {"name": NAME, "folder": str(folder), "images": counts, "unit": "sentences", "notes": []}


def _collect(source: Source, growing: Path) -> None:
    """The four files, wherever they lie, also in the archive inside the package's archive."""
    wanted = {file for file, _ in FILES.values()}
    inner = growing / INNER

    def places(name: str) -> list[Path]:
        return [growing / name] if name in wanted or name == INNER else []

    for _ in source.copy(lambda entry: places(entry.name)):
        pass
    if inner.is_file():
        for _ in open_source(inner).copy(lambda entry: [growing / entry.name] if entry.name in wanted else []):
            pass
        inner.unlink()


def verify(name: str, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Compares the sentences of each source with the published counts."""
    folder = data_root(root) / FOLDER
    problems = []
    found: dict[str, int] = {}
    for source, (file, expected) in FILES.items():
        if not (folder / file).is_file():
            problems.append(f"there is no '{folder / file}'")
            continue
        found[source] = sum(1 for _ in _read(source, folder / file))
        if found[source] != expected:
            problems.append(f"{source} has {found[source]:,} sentences, {expected:,} expected")
    embedded = (folder / EMBEDDINGS).is_file()
    published = {"as published": sum(count for _, count in FILES.values())}
    notes = [] if embedded else ["its embeddings are computed when it is first loaded"]
    return {**compared(NAME, folder, found, published, problems, notes=notes), "unit": "sentences"}


def drawn(growing: Path, each: int, seed: int) -> int:
    """Writes invented sentences, ``each`` of every (source, class) pair, with drawn embeddings. -> how many."""
    words = ("awful", "usual", "lovely")
    rng = np.random.default_rng([seed, 0x73])
    centres = rng.normal(size=(len(CLASSES), WIDTH))
    rows = []
    for source, (file, _) in FILES.items():
        shift = rng.normal(size=WIDTH)
        lines: list[str] = []
        for c, word in enumerate(words):
            for n in range(each):
                lines.append(f"{len(lines) + 1}\t{2.0 * (c - 1)}\tan {word} sentence, {source} {c} {n}\n")
                rows.append(centres[c] + 0.5 * shift + rng.normal(size=WIDTH))
        write_whole(growing / file, "".join(lines).encode())
    x = np.stack(rows)
    content = io.BytesIO()
    np.save(content, (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), allow_pickle=False)
    write_whole(growing / EMBEDDINGS, content.getvalue())
    return len(rows)
