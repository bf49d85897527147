"""A fixed seed gives the numbers it gave before: records and weights of ``same_numbers.json``, bit for bit.

The file holds what one version of torch computes on each of some kinds of processor, so the test skips elsewhere. After
a change that is meant to change numbers, ``python tests/training/test_same_numbers.py`` records those of the processor
at hand anew, and takes out of the others' what no longer holds there.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcalign import api
from rcalign.checkpoints import load_weights
from rcalign.estimator import DomainClassifier
from rcalign.store.run_folder import RunFolder

RECORDED = Path(__file__).with_name("same_numbers.json")
LODO: dict[str, Any] = {"test_domains": ["3"]}
MDLT: dict[str, Any] = {"protocol": "mdlt"}
IMAGES: dict[str, Any] = {**LODO, "backbone": "resnet10t", "weights": "none"}
# RC-Align as in its paper: what the recorded runs had as defaults
PAPER = {
    "meta_step": "sgd",
    "episode_weights": "equal",
    "mixup_alpha": 0.2,
    "logit_adjustment": 0.0,
    "weight_average": False,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ERM, lodo": ("rows", "ERM", LODO),
    "ERM, mdlt": ("rows", "ERM", MDLT),
    "ERM, SWAD": ("rows", "ERM", {**LODO, "average": "swad"}),
    "ERM, images": ("images", "ERM", IMAGES),
    "CORAL, lodo": ("rows", "CORAL", LODO),
    "Fish, lodo": ("rows", "Fish", LODO),
    "BoDA_r,c, mdlt": ("rows", "BoDA_r,c", MDLT),
    "RC-Align, lodo": ("rows", "RC-Align", {**LODO, "hparams": PAPER}),
    "RC-Align, mdlt": ("rows", "RC-Align", {**MDLT, "hparams": {**PAPER, "centroids": "ema", "dropout": 0.1}}),
    "RC-Align, images": ("images", "RC-Align", {**IMAGES, "hparams": {**PAPER, "batch_size": 6}}),
}
ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "estimator, CORAL": ("CORAL", {}),
    "estimator, RC-Align": ("rc-align", PAPER),
}


def make_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows x (240, 8), images (240, 32, 32, 3), labels of three classes of unequal share, four domains."""
    rng = np.random.default_rng(0)
    y, domain = rng.choice(3, size=240, p=[0.6, 0.25, 0.15]), np.arange(240) % 4
    x = rng.normal(size=(240, 8)) + 1.5 * np.eye(8)[y] + 0.7 * np.eye(8)[3 + domain]
    images = rng.integers(0, 120, size=(240, 32, 32, 3)) + 60 * np.eye(3)[y].astype(int)[:, None, None]
    return x, images.astype(np.uint8), y, domain


def computing() -> dict[str, str]:
    """What the bits depend on beside the seed."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def digest(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def train(case: str, folder: Path) -> dict[str, Any]:
    """Weights and records of a small run, and of its first stage where it has one."""
    kind, algorithm, options = CASES[case]
    x, images, y, domain = make_data()
    np.savez(folder / "data.npz", x=x if kind == "rows" else images, y=y, domain=domain)
    steps = {"steps": 12, "evaluate_every": 4} if kind == "rows" else {"steps": 2, "evaluate_every": 1}
    api.train(folder / "data.npz", algorithm, out=folder / "run", device="cpu", seed=3, **steps, **options)
    found = {}
    for stage in ("", "stage-1"):
        run = RunFolder(folder / "run" / stage)
        if not run.config_file.exists():
            continue
        found[stage or "run"] = {
            "best": digest(load_weights(run.best_file)),
            "last": digest(load_weights(run.last_file)),
            "records": [
                {
                    "step": record.step,
                    "loss": record.loss,
                    "validation": record.validation,
                    "accuracy": record.accuracy,
                    "nll": record.metrics["nll"],
                }
                for record in run.records()
            ],
        }
    return found


def fit(case: str) -> dict[str, Any]:
    x, _, y, domain = make_data()
    algorithm, hparams = ESTIMATORS[case]
    model = DomainClassifier(algorithm, steps=12, device="cpu", random_state=3, **hparams)
    model.fit(x, y, domains=domain)
    return {
        "weights": digest(model.model_.algorithm.state_dict()),
        "probabilities": hashlib.sha256(model.predict_proba(x).tobytes()).hexdigest(),
    }


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path / ".cache"))
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", [*CASES, *ESTIMATORS])
def test_a_seed_gives_the_recorded_numbers(case: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    here = next((kind["runs"] for kind in recorded if kind["computing"] == computing()), {})
    if case not in here:
        kinds = [kind["computing"] for kind in recorded if case in kind["runs"]]
        pytest.skip(f"recorded with {kinds}, but here is {computing()}")
    found = train(case, tmp_path) if case in CASES else fit(case)
    assert json.loads(json.dumps(found)) == here[case]


def main() -> None:
    torch.set_num_threads(1)
    runs = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            runs[case] = train(case, Path(folder))
    runs |= {case: fit(case) for case in ESTIMATORS}
    runs = json.loads(json.dumps(runs))
    recorded = json.loads(RECORDED.read_text())
    before = next((kind["runs"] for kind in recorded if kind["computing"] == computing()), {})
    changed = {case for case in before if before[case] != runs.get(case)}
    others = [
        {**kind, "runs": {case: run for case, run in kind["runs"].items() if case not in changed}}
        for kind in recorded
        if kind["computing"] != computing()
    ]
    RECORDED.write_text(json.dumps([{"computing": computing(), "runs": runs}, *others], indent=1) + "\n")


if __name__ == "__main__":
    main()
