"""The scikit-learn face: its own conventions by its own checks, and what it does with domains."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from rcalign import (
    DomainClassifier,
    DomainStratifiedShuffleSplit,
    LeaveOneDomainOut,
    registry,
    spaces,
    train,
)
from rcalign.checkpoints import load_weights
from rcalign.errors import InputError
from rcalign.evaluation.metrics import expected_calibration_error

pytestmark = pytest.mark.filterwarnings("ignore:no domains were given")
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


DRAWN = "rows are drawn in proportion to their weights, which repeating them equals on average, not to the bit"
UNEQUAL = {
    "check_sample_weight_equivalence_on_dense_data": DRAWN,
    "check_sample_weight_equivalence_on_sparse_data": DRAWN,
}


@parametrize_with_checks([DomainClassifier(steps=40)], expected_failed_checks=lambda estimator: UNEQUAL)
def test_scikit_learn_conventions(estimator: DomainClassifier, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.fixture
def rows() -> Rows:
    """Three classes in four domains that shift the mean: X (240, 6), y, domains."""
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(240) % 3]
    domains = np.repeat(["north", "south", "east", "west"], 60)
    X = rng.normal(size=(240, 6))
    X[np.arange(240), np.arange(240) % 3] += 3
    X[:, 3:] += np.repeat(rng.normal(size=(4, 3)), 60, axis=0)
    return X, y, domains


# --- what it learns from -------------------------------------------------------------------------------------------


def test_rows_of_named_classes(rows: Rows) -> None:
    X, y, domains = rows
    held_out = domains == "west"
    model = DomainClassifier(steps=60).fit(X[~held_out], y[~held_out], domains=domains[~held_out])
    assert model.classes_.tolist() == ["ant", "bee", "cat"]
    assert model.domains_.tolist() == ["east", "north", "south"]
    assert model.algorithm_ == "RC-Align"
    assert model.score(X[held_out], y[held_out]) > 0.8
    chances = model.predict_proba(X)
    np.testing.assert_allclose(chances.sum(1), 1)
    assert (model.classes_[chances.argmax(1)] == model.predict(X)).all()
    assert model.transform(X).shape == (240, 256) and len(model.get_feature_names_out()) == 256


def test_series(rows: Rows) -> None:
    _, y, domains = rows
    rng = np.random.default_rng(1)
    wave = np.sin(np.linspace(0, 12, 40) * (1 + np.arange(240) % 3)[:, None])
    X = np.stack([wave, -wave], axis=1) + 0.3 * rng.normal(size=(240, 2, 40))
    model = DomainClassifier(steps=60).fit(X, y, domains=domains)
    assert model.score(X, y) > 0.9
    with pytest.raises(InputError, match=r"shape \(2, 39\).*fitted on \(2, 40\)"):
        model.predict(X[:, :, 1:])


@pytest.fixture(scope="module")
def pictures() -> Rows:
    """Red and blue squares on three shades of grey: (36, 20, 20, 3)."""
    rng = np.random.default_rng(0)
    y, domains = np.arange(36) % 2, np.arange(36) // 12
    X = (60 + 60 * domains[:, None, None, None] + rng.integers(0, 20, (36, 20, 20, 3))).astype(np.uint8)
    X[y == 0, 4:16, 4:16] = (200, 30, 30)
    X[y == 1, 4:16, 4:16] = (30, 30, 200)
    return X, y, domains


SMALL = {"backbone": "test_resnet", "weights": "none", "steps": 20, "batch_size": 6, "learning_rate": 1e-3}


def test_images_in_memory_and_as_files_are_the_same_images(pictures: Rows, tmp_path: Path) -> None:
    X, y, domains = pictures
    paths = [tmp_path / f"a 'name' {k}.png" for k in range(36)]
    for path, image in zip(paths, X, strict=True):
        Image.fromarray(image).save(path)
    model = DomainClassifier("ERM", image_size=20, **SMALL).fit(X, y, domains=domains)
    assert model.score(X, y) > 0.8
    # a file is kept a little larger than the network's input, so pixels agree only nearly
    np.testing.assert_allclose(model.predict_proba(paths), model.predict_proba(X), atol=0.2)
    again = DomainClassifier("ERM", image_size=20, **SMALL).fit([str(path) for path in paths], y, domains=domains)
    assert again.score(paths, y) > 0.8
    assert pickle.loads(pickle.dumps(again)).predict(paths).tolist() == again.predict(paths).tolist()
    paths[3].write_bytes(b"no image")
    with pytest.raises(InputError, match=r"a 'name' 3.png' is not a whole image"):
        again.predict(paths)


def test_a_frozen_backbone(pictures: Rows) -> None:
    X, y, domains = pictures
    options = {**SMALL, "steps": 60, "image_size": 32}
    model = DomainClassifier("ERM", freeze_backbone=True, **options).fit(X, y, domains=domains)
    assert model.score(X, y) > 0.8
    assert model.model_.frozen is not None and model.transform(X).shape == (36, 256)


def test_other_kinds_of_x_are_refused_in_a_sentence(rows: Rows, pictures: Rows) -> None:
    X, y, domains = rows
    model = DomainClassifier("ERM", steps=2).fit(X, y, domains=domains)
    with pytest.raises(InputError, match=r"X holds images, but the classifier was fitted on samples of shape \(6,\)"):
        model.predict(pictures[0])
    with pytest.raises(InputError, match="uint8"):
        model.fit(np.zeros((10, 4, 4, 3)), np.arange(10) % 2)
    with pytest.raises(InputError, match="239 domains for 240 rows"):
        model.fit(X, y, domains=domains[1:])
    with pytest.raises(InputError, match="no domain"):
        model.fit(X, y, domains=[None, *domains[1:].tolist()])


@pytest.mark.parametrize("name", [name for name in registry.names() if not registry.get(name).traits.images_only])
def test_any_algorithm_by_name(name: str, rows: Rows) -> None:
    X, y, domains = rows
    model = DomainClassifier(name, steps=4, batch_size=8).fit(X, y, domains=domains)
    assert model.algorithm_ == name
    assert np.isfinite(model.predict_proba(X)).all()
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


# --- domains -------------------------------------------------------------------------------------------------------


def no_domains(caught: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [warning for warning in caught if "no domains were given" in str(warning.message)]


@pytest.mark.parametrize("action", ["default", "always"])  # the first is Python's own: once for each line and text
def test_without_domains_it_is_erm_and_says_so_every_time(rows: Rows, action: str) -> None:
    X, y, _ = rows
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        models = [DomainClassifier(steps=6, temperature=0.3, batch_size=9).fit(X, y) for _ in range(3)]
    said = no_domains(caught)
    assert len(said) == 3 and {warning.filename for warning in said} == {__file__}
    assert "RC-Align is plain training (ERM)" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = DomainClassifier("erm", steps=6, batch_size=9).fit(X, y)
    assert models[0].algorithm_ == "ERM"
    np.testing.assert_array_equal(models[1].predict_proba(X), plain.predict_proba(X))


def forgotten_in_a_pipeline(X: np.ndarray, y: np.ndarray, domains: np.ndarray) -> list[DomainClassifier]:
    return [make_pipeline(StandardScaler(), DomainClassifier(steps=2)).fit(X, y)[-1]]


def forgotten_in_cross_validation(X: np.ndarray, y: np.ndarray, domains: np.ndarray) -> list[DomainClassifier]:
    model = make_pipeline(StandardScaler(), DomainClassifier(steps=2))
    return [pipeline[-1] for pipeline in cross_validate(model, X, y, cv=3, return_estimator=True)["estimator"]]


def not_requested_in_cross_validation(X: np.ndarray, y: np.ndarray, domains: np.ndarray) -> list[DomainClassifier]:
    """The splitter gets the domains, the classifier was told not to ask for them."""
    model = DomainClassifier(steps=2).set_fit_request(domains=False)
    found = cross_validate(model, X, y, cv=LeaveOneDomainOut(), params={"domains": domains}, return_estimator=True)
    return list(found["estimator"])


def not_requested_in_a_grid_search(X: np.ndarray, y: np.ndarray, domains: np.ndarray) -> list[DomainClassifier]:
    model = DomainClassifier(steps=2).set_fit_request(domains=False)
    search = GridSearchCV(model, {"learning_rate": [1e-3]}, cv=LeaveOneDomainOut(), error_score="raise")
    search.fit(X, y, domains=domains)
    return [search.best_estimator_] * 5  # four folds and the fit on all rows


def requested(X: np.ndarray, y: np.ndarray, domains: np.ndarray) -> list[DomainClassifier]:
    model = make_pipeline(StandardScaler(), DomainClassifier(steps=2).set_fit_request(domains=True))
    found = cross_validate(model, X, y, cv=LeaveOneDomainOut(), params={"domains": domains}, return_estimator=True)
    return [pipeline[-1] for pipeline in found["estimator"]]


@pytest.mark.parametrize(
    "way",
    [
        forgotten_in_a_pipeline,
        forgotten_in_cross_validation,
        not_requested_in_cross_validation,
        not_requested_in_a_grid_search,
        requested,
    ],
)
def test_every_fit_that_becomes_erm_under_metadata_routing_warns(way: Any, rows: Rows) -> None:
    with config_context(enable_metadata_routing=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        models = way(*rows)
    assert len(no_domains(caught)) == sum(model.algorithm_ == "ERM" for model in models)
    assert {model.algorithm_ for model in models} == ({"RC-Align"} if way is requested else {"ERM"})


def test_one_domain_only_is_an_error_that_names_it(rows: Rows) -> None:
    X, y, _ = rows
    with pytest.raises(InputError, match=r"RC-Align needs at least 2 source domains, but found 1 \(ward 7\)"):
        DomainClassifier(steps=2).fit(X, y, domains=["ward 7"] * len(y))


def test_domains_are_used(rows: Rows) -> None:
    X, y, domains = rows
    options = {"algorithm": "CORAL", "steps": 10}
    mixed = np.roll(domains, 7)
    assert not np.allclose(
        DomainClassifier(**options).fit(X, y, domains=domains).predict_proba(X),
        DomainClassifier(**options).fit(X, y, domains=mixed).predict_proba(X),
    )


# --- inside scikit-learn -------------------------------------------------------------------------------------------


def test_cross_validation_by_domain_with_metadata_routing(rows: Rows) -> None:
    X, y, domains = rows
    with config_context(enable_metadata_routing=True):
        found = cross_validate(
            make_pipeline(StandardScaler(), DomainClassifier(steps=30)),
            X,
            y,
            cv=LeaveOneDomainOut(),
            params={"domains": domains},
            return_estimator=True,
        )
    seen = [set(model[-1].domains_) for model in found["estimator"]]
    assert seen == [set(domains) - {name} for name in sorted(set(domains))]
    assert found["test_score"].min() > 0.7


def test_cross_validation_without_metadata_routing(rows: Rows) -> None:
    X, y, domains = rows
    scores = cross_val_score(
        DomainClassifier(steps=20), X, y, groups=domains, cv=LeaveOneDomainOut(), params={"domains": domains}
    )
    assert scores.shape == (4,)
    pipeline = make_pipeline(StandardScaler(), DomainClassifier(steps=5))
    pipeline.fit(X, y, domainclassifier__domains=domains)
    assert len(pipeline[-1].domains_) == 4


def test_grid_search_over_algorithms_and_hyperparameters(rows: Rows) -> None:
    X, y, domains = rows
    grid = [
        {"algorithm": ["ERM"], "learning_rate": [1e-3, 1e-5]},
        {"algorithm": ["rc-align"], "alignment_weight": [0.0, 1.0], "steps": [10]},
    ]
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(DomainClassifier(steps=15), grid, cv=LeaveOneDomainOut(), error_score="raise")
        search.fit(X, y, domains=domains)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.get_params().items() >= search.best_params_.items()
    assert search.best_score_ > 0.7


def test_categories_by_a_column_transformer(rows: Rows) -> None:
    X, y, domains = rows
    table = np.column_stack([X.astype(object), np.array(["dry", "wet"])[np.arange(240) % 2]])
    columns = make_column_transformer(("passthrough", slice(0, 6)), (OneHotEncoder(sparse_output=False), [6]))
    model = make_pipeline(columns, DomainClassifier("ERM", steps=40)).fit(table, y, domainclassifier__domains=domains)
    assert model.score(table, y) > 0.8 and model[-1].n_features_in_ == 8


def test_clone_and_parameters(rows: Rows) -> None:
    X, y, domains = rows
    model = DomainClassifier("rc-align", steps=8, alignment_weight=0.5, random_state=3)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert repr(copy) == "DomainClassifier(alignment_weight=0.5, random_state=3, steps=8)"
    fitted = model.fit(X, y, domains=domains)
    assert fitted.model_.config.hparams["alignment_weight"] == 0.5
    np.testing.assert_array_equal(copy.fit(X, y, domains=domains).predict_proba(X), model.predict_proba(X))
    other = clone(model).set_params(random_state=4).fit(X, y, domains=domains)
    assert not np.array_equal(other.predict_proba(X), model.predict_proba(X))
    assert other.set_params(batch_size=7).get_params()["batch_size"] == 7


def test_wrong_parameters_are_named_with_the_nearest(rows: Rows) -> None:
    X, y, domains = rows
    with pytest.raises(ValueError, match=r"unknown parameter 'learning_rat'.*'learning_rate'"):
        DomainClassifier().set_params(learning_rat=1)
    for wrong, message in (
        ({"learnin_rate": 1.0}, "did you mean 'learning_rate'"),
        ({"algorithm": "rcalgn"}, "did you mean 'RC-Align'"),
        ({"steps": 0}, "`steps` is 0"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"device": "cudo"}, "did you mean 'cuda'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"batch_size": -2}, "batch_size"),
    ):
        with pytest.raises(InputError, match=message):
            DomainClassifier(**{"steps": 2, **wrong}).fit(X, y, domains=domains)


def test_no_hyperparameter_hides_a_parameter() -> None:
    fixed = set(DomainClassifier._get_param_names())
    for name in registry.names(parts=True):
        assert not fixed & set(spaces.fields_of(registry.get(name).algorithm.Hparams))


# --- honesty -------------------------------------------------------------------------------------------------------


def test_probabilities_are_calibrated_on_rows_that_did_not_train() -> None:
    rng = np.random.default_rng(0)
    y, domains = rng.integers(2, size=2400), np.arange(2400) % 2
    X = rng.normal(size=(2400, 5)) + 0.7 * y[:, None]
    train_rows, test_rows = np.arange(400), np.arange(400, 2400)
    model = DomainClassifier("ERM", steps=300, learning_rate=3e-3)  # long enough to be too sure of itself
    model.fit(X[train_rows], y[train_rows], domains=domains[train_rows])
    chances = model.predict_proba(X[test_rows])
    hot = np.exp(np.log(chances) * model.temperature_)
    before = expected_calibration_error(hot / hot.sum(1, keepdims=True), y[test_rows])
    assert model.temperature_ > 1
    assert expected_calibration_error(chances, y[test_rows]) < before


def test_tiny_data_keep_every_row_and_are_not_calibrated() -> None:
    X, y = np.array([[0.0], [1.0], [0.1], [0.9]]), np.array([0, 1, 0, 1])
    model = DomainClassifier("ERM", steps=50).fit(X, y)
    assert model.temperature_ == 1 and model.score(X, y) == 1


def test_the_rows_that_train_alone_set_the_scale(rows: Rows) -> None:
    X, y, domains = rows
    model = DomainClassifier("ERM", steps=1, validation_fraction=0.0).fit(X, y, domains=domains)
    center = model.model_.algorithm.featurizer.center
    np.testing.assert_allclose(center, X.mean(0), atol=1e-5)


def test_a_held_out_domain_has_no_part_in_training(rows: Rows, tmp_path: Path) -> None:
    X, y, domains = rows
    for name, x in (("a", X), ("b", np.where((domains == "west")[:, None], 1e6 * X, X))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, domain=domains)
        train(tmp_path / f"{name}.npz", "RC-Align", ["west"], steps=3, out=tmp_path / name)
    first, second = (load_weights(tmp_path / name / "last.safetensors") for name in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)


# --- splitters -----------------------------------------------------------------------------------------------------


def test_leave_one_domain_out_covers_every_row_once(rows: Rows) -> None:
    X, y, domains = rows
    splitter = LeaveOneDomainOut()
    parts = list(splitter.split(X, y, domains=domains))
    assert len(parts) == splitter.get_n_splits(domains=domains) == 4
    assert sorted(np.concatenate([test for _, test in parts])) == list(range(240))
    for train_rows, test_rows in parts:
        assert len(set(domains[test_rows])) == 1 and not set(domains[test_rows]) & set(domains[train_rows])
    with pytest.raises(InputError, match="one domain"):
        next(splitter.split(X, y, domains=["a"] * 240))
    with pytest.raises(InputError, match="domain is needed once"):
        next(splitter.split(X, y))


def test_domain_stratified_splits_keep_every_pair() -> None:
    rng = np.random.default_rng(0)
    y, domains = rng.choice(3, 300, p=[0.7, 0.28, 0.02]), rng.choice(["a", "b"], 300, p=[0.8, 0.2])
    pairs = list(zip(y.tolist(), domains.tolist(), strict=True))
    splitter = DomainStratifiedShuffleSplit(5, test_size=0.25, random_state=1)
    parts = list(splitter.split(y, y, domains=domains))
    assert len(parts) == splitter.get_n_splits() == 5
    for train_rows, test_rows in parts:
        assert not set(train_rows) & set(test_rows) and len(train_rows) + len(test_rows) == 300
        for pair in set(pairs):
            everywhere, tested = pairs.count(pair), sum(pairs[row] == pair for row in test_rows)
            assert abs(tested - 0.25 * everywhere) <= 0.5 or tested == everywhere - 1
            assert tested < everywhere
    assert not np.array_equal(np.sort(parts[0][1]), np.sort(parts[1][1]))
    again = list(splitter.split(y, y, domains=domains))
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("algorithm", ["PCL", "iDAG", "ERM"])
def test_features_out_are_as_many_as_transform_gives(rows: Rows, algorithm: str) -> None:
    X, y, domains = rows
    model = DomainClassifier(algorithm, steps=2).fit(X, y, domains=domains)
    assert model.transform(X[:3]).shape == (3, len(model.get_feature_names_out()))


def test_texts_are_not_taken_for_paths() -> None:
    with pytest.raises(InputError, match="a list of texts such as 'good film'"):
        DomainClassifier("ERM", steps=2).fit(["good film", "bad film"] * 4, [0, 1] * 4)


def test_a_missing_domain_of_any_kind_is_named(rows: Rows) -> None:
    X, y, domains = rows
    pandas = pytest.importorskip("pandas")
    for missing in (None, float("nan"), pandas.NA, pandas.NaT):
        some = np.array([*map(str, domains[:-1]), missing], dtype=object)
        with pytest.raises(InputError, match="some rows have no domain"):
            DomainClassifier("ERM", steps=2).fit(X, y, domains=some)
