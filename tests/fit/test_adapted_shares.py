"""``predict --adapt-priors`` with a model of ``fit``, which was trained on every row of its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import api

SHARES = ((0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.05, 0.15, 0.8), (0.5, 0.45, 0.05))
INPUTS = 60


def samples(rng: np.random.Generator, y: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Three classes that six of many inputs tell apart, in part: a network learns the rest of its rows by heart."""
    x = rng.normal(size=(len(y), INPUTS))
    x[:, :6] += means[y]
    return x.astype(np.float32)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """The model of four sites that are alike, and the means (3, 6) of the classes."""
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(0)
    means = 1.1 * rng.normal(size=(3, 6))
    domain = np.repeat(np.arange(4), 90)
    y = np.concatenate([rng.choice(3, 90, p=rng.dirichlet(np.full(3, 8.0))) for _ in range(4)])
    np.savez(folder / "sites.npz", x=samples(rng, y, means), y=y, domain=domain)
    result = api.fit(folder / "sites.npz", budget="30m", steps=60, workers=1, out=folder / "out")
    return Path(result["model"]), means


def adapted(model: Path, x: np.ndarray, y: np.ndarray, folder: Path) -> tuple[bool, float, dict[str, Any]]:
    """(were the class shares used, what that changed in accuracy, what `predict` gives)."""
    np.savez(folder / "new.npz", x=x)
    plain, found = (api.predict(model, [folder / "new.npz"], adapt_priors=use) for use in (False, True))
    right = [
        np.mean([row["predicted"] == str(c) for row, c in zip(rows["rows"], y, strict=True)]) for rows in (plain, found)
    ]
    if not found["adapted"]:
        assert found["rows"] == plain["rows"] and any("were not adapted" in note for note in found["notes"])
    return found["adapted"], float(right[1] - right[0]), found


@pytest.mark.slow
def test_rows_of_training_do_not_make_every_new_site_look_strange(
    sites: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    """Their features lie closer together than those of new rows of the same kind."""
    model, means = sites
    rng = np.random.default_rng(1)
    found = []
    for shares in SHARES:
        y = rng.choice(3, 250, p=shares)
        used, change, result = adapted(model, samples(rng, y, means), y, tmp_path)
        found.append((used, change))
        target = api.diagnose(model, target=tmp_path / "new.npz").target
        assert target is not None and target.priors is not None
        assert used == (target.priors.doubt is None and target.priors.differ), "both commands judge alike"
        estimate = [one.value for one in target.priors.em]
        assert list(result["priors"].values()) == pytest.approx(estimate, abs=1e-4)
    assert sum(used for used, _ in found) >= 3
    assert np.mean([change for used, change in found if used]) > 0.02


@pytest.mark.slow
def test_classes_that_moved_are_left_alone(sites: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    """Along what the model reads, or elsewhere in its inputs, where its probabilities would not show it."""
    model, means = sites
    rng = np.random.default_rng(2)
    for shares in SHARES:
        y = rng.choice(3, 250, p=shares)
        along = samples(rng, y, means + 1.5 * rng.normal(size=means.shape))
        elsewhere = samples(rng, y, means) + np.where(np.arange(INPUTS) < 6, 0, 0.5 * rng.normal(size=(3, INPUTS)))[y]
        for x in (along, elsewhere.astype(np.float32)):
            assert not adapted(model, x, y, tmp_path)[0]
