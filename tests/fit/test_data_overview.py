"""What is seen in data before training, on data made to have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rcalign.data import loading
from rcalign.data.source import Arrays, Dataset, from_names
from rcalign.data.sources.table import Roles, from_columns
from rcalign.fit.data_overview import copies_across_domains, feature_shift, prior_shift, summarise_data


def made(prior: float, feature: float, rows: int = 240, domains: int = 4, seed: int = 0) -> Dataset:
    """Domains whose share of class 1 spreads by ``prior``, and whose features are moved by ``feature``."""
    rng = np.random.default_rng(seed)
    domain = np.repeat(np.arange(domains), rows)
    share = 0.5 + prior * np.linspace(-0.5, 0.5, domains)
    y = (rng.random(len(domain)) < share[domain]).astype(int)
    x = rng.normal(size=(len(domain), 6)) + 2 * y[:, None] * np.eye(6)[0] + feature * rng.normal(size=(4, 6))[domain]
    return from_names("made", Arrays(x), [str(v) for v in y], [f"s{v}" for v in domain], fingerprint="0")


def test_each_shift_is_found_where_it_is_and_only_there() -> None:
    none, shares, looks = (summarise_data(made(*what)) for what in ((0.0, 0.0), (0.9, 0.0), (0.0, 2.0)))
    assert none.prior_shift < 0.1 and none.feature_shift is not None and none.feature_shift < 0.1
    assert "hardly differ" in none.sentences[0]
    assert shares.prior_shift > 0.2 and shares.feature_shift is not None and shares.feature_shift < 0.15
    assert "shares of classes, not in how" in shares.sentences[0]
    assert looks.prior_shift < 0.1 and looks.feature_shift is not None and looks.feature_shift > 0.4
    assert "not in the shares" in looks.sentences[0]


def test_which_of_both_is_larger_is_said() -> None:
    assert "shares of classes differ more than their appearance" in summarise_data(made(0.95, 0.25)).sentences[0]
    assert "appearance of classes differs more than their shares" in summarise_data(made(0.6, 2.0)).sentences[0]


def test_prior_shift_does_not_depend_on_how_many_rows_a_domain_has() -> None:
    counts = np.array([[30, 70], [60, 40], [50, 50]])
    assert prior_shift(counts) == pytest.approx(prior_shift(counts * np.array([[1], [7], [3]])))


def test_feature_shift_needs_rows() -> None:
    assert feature_shift(np.zeros((4, 2)), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])) is None


def test_copies_in_tables_and_arrays() -> None:
    data = made(0.0, 1.0)
    x = data.content.x.copy()  # type: ignore[union-attr]
    x[300], x[10] = x[0], x[1]  # row 300 is of another domain, row 10 is not
    copied = from_names("c", Arrays(x), [str(v) for v in data.y], [str(v) for v in data.domain], fingerprint="0")
    assert copies_across_domains(copied) == [(0, 300)]
    assert any("2 rows" in sentence and "copies" in sentence for sentence in summarise_data(copied).sentences)
    raw = {name: [f"{value:.6f}" for value in x[:, k]] for k, name in enumerate("abcdef")}
    raw |= {"label": [str(v) for v in data.y], "domain": [str(v) for v in data.domain]}
    table = from_columns(raw, Roles(), name="t", where="t")
    assert copies_across_domains(table) == [(0, 300)]


def test_copied_image_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (tmp_path / domain / label).mkdir(parents=True)
            for i in range(2):
                image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
                image.save(tmp_path / domain / label / f"{i}.png")
    (tmp_path / "b" / "y" / "0.png").write_bytes((tmp_path / "a" / "x" / "1.png").read_bytes())
    data = loading.load(tmp_path)
    groups = copies_across_domains(data)
    assert len(groups) == 1 and {data.content.paths[row].parent.parent.name for row in groups[0]} == {"a", "b"}  # type: ignore[union-attr]
    assert any("different labels" in sentence for sentence in summarise_data(data).sentences)


def test_missing_and_rare_classes_are_named() -> None:
    labels = ["a"] * 60 + ["b"] * 3 + ["a"] * 50 + ["c"] * 20
    domains = ["u"] * 63 + ["v"] * 70
    x = np.random.default_rng(0).normal(size=(133, 2))
    sentences = " ".join(summarise_data(from_names("m", Arrays(x), labels, domains, fingerprint="0")).sentences)
    assert "class 'b' is missing in 'v'" in sentences and "class 'c' is missing in 'u'" in sentences
    assert "b in u (3)" in sentences and "very unequal" in sentences
