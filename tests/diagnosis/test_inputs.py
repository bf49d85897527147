"""Files in, and one clear sentence for everything that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import world

from rcalign.diagnosis import diagnose_features, load_features
from rcalign.errors import InputError


def good(**changes: Any) -> dict[str, Any]:
    return {**world(0, domains=3, classes=3, width=4, samples=30), **changes}


def nan() -> np.ndarray:
    features = good()["features"].copy()
    features[7, 2] = np.nan
    return features


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no features": (good(features=None), "no features were given"),
    "no labels": (good(labels=None), "no labels were given"),
    "no domains": (good(domains=None), "no domains were given"),
    "flat features": (good(features=np.zeros(30)), r"features has shape \(30,\)"),
    "fewer labels": (good(labels=np.zeros(29, int)), "labels has 29 entries, but features has 30 rows"),
    "fewer domains": (good(domains=np.zeros(29, int)), "domains has 29 entries"),
    "two columns of labels": (good(labels=np.zeros((30, 2), int)), r"labels has shape \(30, 2\)"),
    "one domain": (good(domains=np.zeros(30, int)), "there is one domain"),
    "nan": (good(features=nan()), r"1 values that are not finite, the first at \[7, 2\]"),
    "text": (good(features=np.full((30, 4), "a")), "does not hold numbers"),
    "a wider head": (good(head_weight=np.zeros((3, 9))), "the head reads 9 features, but the features have 4"),
    "a bias of another size": (good(head_bias=np.zeros(7)), r"head_bias has shape \(7,\)"),
    "a bias alone": (good(head_weight=None), "head_bias was given without head_weight"),
    "neither head nor logits": (good(head_weight=None, head_bias=None), "neither logits nor a head"),
    "logits of another head": (good(logits=np.ones((30, 3))), "the head is not what made them"),
    "logits of other rows": (good(logits=np.ones((9, 3))), "logits has 9 rows"),
    "one class": (good(head_weight=np.zeros((1, 4)), head_bias=None), "two or more classes"),
    "a label too high": (good(labels=np.full(30, 3)), "labels holds 3, but there are 3 classes: expected 0 to 2"),
    "a negative label": (good(labels=np.full(30, -1)), "labels holds -1"),
    "half a label": (good(labels=np.full(30, 0.5)), "labels holds 0.5"),
    "labels by name without names": (good(labels=np.full(30, "cat")), "no class_names were given"),
    "an unknown label": (good(labels=np.full(30, "cat"), class_names=["bat", "rat", "cow"]), "unknown label 'cat'"),
    "too few class names": (good(class_names=["a", "b"]), "2 class names were given, but there are 3"),
    "a class name twice": (good(class_names=["a", "b", "b"]), "two class names are the same"),
    "a domain name twice": (good(domain_names=["a", "b", "b"]), "two domains have the same name"),
    "an unknown target": (good(target="domain 9"), "unknown domain 'domain 9'"),
    "a target of another width": (good(target_features=np.zeros((5, 9))), "target_features has 9 columns"),
    "a target with other classes": (
        good(target_features=np.zeros((5, 4)), target_labels=np.full(5, 3)),
        "target_labels holds 3, but there are 3 classes",
    ),
    "target logits of other classes": (
        good(target_features=np.zeros((5, 4)), target_logits=np.zeros((5, 8))),
        "target_logits has 8 classes, but the head has 3",
    ),
    "a target named like a source": (good(target_features=np.zeros((5, 4)), target="domain 1"), "another name"),
    "target labels alone": (good(target_labels=np.zeros(5, int)), "without target_features"),
    "a temperature of zero": (good(temperature=0.0), "temperature is 0.0"),
    "an unknown support": (good(support="domain"), "unknown support mixture 'domain'"),
    "an unknown denominator": (good(denominator="all"), "unknown denominator 'all'"),
    "bad source priors": (
        good(target_features=np.zeros((5, 4)), source_priors=[0.5, 0.5]),
        "source priors have shape",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str) -> None:
    arguments, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        diagnose_features(**arguments)
    assert "\n" not in str(caught.value)


def test_a_class_with_one_sample_is_said_and_does_not_stop_the_report() -> None:
    made = good()
    labels = np.where(made["labels"] == 2, 1, made["labels"])
    labels[0] = 2
    found = diagnose_features(**{**made, "labels": labels}, class_names=["a", "b", "rare"])
    assert any("class 'rare' with one sample in all" in note for note in found.notes)
    found = diagnose_features(**{**made, "labels": np.minimum(labels, 1)}, class_names=["a", "b", "never"])
    assert any("class 'never' without any sample in the sources" in note for note in found.notes)


def test_names_work_like_numbers() -> None:
    made = good()
    names, kinds = np.array(["art", "photo", "sketch"]), np.array(["cat", "dog", "elk"])
    by_name = diagnose_features(
        **{**made, "labels": kinds[made["labels"]], "domains": names[made["domains"]]}, class_names=list(kinds)
    )
    by_number = diagnose_features(**made, class_names=list(kinds), domain_names=list(names))
    assert by_name == by_number


def test_a_domain_without_samples_is_left_out_and_said() -> None:
    found = diagnose_features(**good(), domain_names=["a", "b", "c", "empty"])
    assert found.domains == ("a", "b", "c")
    assert any("'empty' without samples" in note for note in found.notes)


def test_a_target_needs_one_source_only() -> None:
    made = world(3, domains=2)
    found = diagnose_features(**made, target="domain 1")
    assert [one.domain for one in found.held_out] == ["domain 1"]
    assert found.target is not None and found.target.reference is None


def test_a_file_holds_it_all(tmp_path: Path) -> None:
    made = good()
    np.savez(tmp_path / "f.npz", **made, class_names=["a", "b", "c"], note="ignored")
    loaded = load_features(tmp_path / "f.npz")
    assert loaded.class_names == ("a", "b", "c")
    arguments = {key: value for key, value in vars(loaded).items() if value is not None}
    assert diagnose_features(**arguments) == diagnose_features(**made, class_names=["a", "b", "c"])


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_features(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InputError, match=r"no array 'features' \(found: x\)"):
        load_features(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="no object arrays"):
        load_features(tmp_path / "objects.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match=r"cannot be read as a plain \.npz"):
        load_features(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"no array 'features' \(found: nothing\)"):
        load_features(tmp_path / "one.npy")
