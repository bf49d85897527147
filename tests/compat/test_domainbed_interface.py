"""Our algorithms through DomainBed's interface, used the way its train script uses one; the package is not needed."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rcalign import registry
from rcalign.compat import domainbed
from rcalign.errors import InputError
from rcalign.types import Batch

# what DomainBed's registry gives to every algorithm
GENERIC = {
    "data_augmentation": True,
    "resnet18": False,
    "resnet_dropout": 0.1,
    "class_balanced": True,
    "nonlinear_classifier": False,
    "lr": 3e-3,
    "weight_decay": 1e-4,
    "batch_size": 8,
}


class MLP(nn.Module):
    """A featurizer as DomainBed has them: its width is ``n_outputs``."""

    def __init__(self, input_shape: tuple[int, ...], hparams: dict) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], 16), nn.ReLU())
        self.n_outputs = 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def minibatches(step: int, domains: int = 3, n: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng([step, domains])
    found = []
    for k in range(domains):
        y = np.arange(n) % 4  # every class, as class-balanced loaders give
        x = 0.3 * rng.standard_normal((n, 6)) + 2 * np.eye(6)[y] + 0.3 * k
        found.append((torch.from_numpy(x).float(), torch.from_numpy(y)))
    return found


def accuracy(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """As DomainBed's ``misc.accuracy`` does it."""
    network.eval()
    with torch.no_grad():
        right = (network.predict(x).argmax(1) == y).float().mean().item()
    network.train()
    return right


def train(algorithm_class: type, steps: int = 60, **hparams: object) -> nn.Module:
    """The part of DomainBed's train script that touches an algorithm."""
    torch.manual_seed(0)
    algorithm = algorithm_class((6,), 4, 3, {**GENERIC, **hparams})
    algorithm.to("cpu")
    for step in range(steps):
        values = algorithm.update(minibatches(step), None)
        assert all(isinstance(value, float) for value in values.values()) and np.isfinite(values["loss"])
    return algorithm


@pytest.mark.parametrize(
    "name", [name for name in domainbed.algorithm_names() if not registry.get(name).traits.images_only]
)
def test_every_algorithm_that_fits_learns_and_round_trips(name: str) -> None:
    algorithm_class = domainbed.algorithm(name, MLP)
    steps = 60 if name == "RC-Align" else 4
    algorithm = train(algorithm_class, steps)
    x, y = minibatches(1000, 1, 40)[0]
    buffer = io.BytesIO()
    torch.save({"model_dict": algorithm.state_dict()}, buffer)
    buffer.seek(0)
    other = algorithm_class((6,), 4, 3, GENERIC)
    other.load_state_dict(torch.load(buffer, weights_only=True)["model_dict"])
    assert torch.equal(algorithm.predict(x), other.predict(x))
    assert algorithm.predict(x).shape == (40, 4)
    if steps == 60:
        assert accuracy(algorithm, x, y) > 0.9


def test_two_lines_add_it_to_their_module() -> None:
    theirs = types.ModuleType("algorithms")
    exec(
        'from rcalign.compat import domainbed as rcalign\nRCAlign = rcalign.algorithm("rc-align")\n'
        "def get_algorithm_class(name):\n    return globals()[name]",
        theirs.__dict__,
    )
    found = theirs.get_algorithm_class("RCAlign")
    assert found.__name__ == "RCAlign" and issubclass(found, nn.Module)
    algorithm = found((6,), 4, 3, GENERIC)
    assert algorithm.hparams["lr"] == 3e-3 and algorithm.update(minibatches(0), unlabeled=None)["loss"] > 0


def test_hyperparameters_by_their_names_and_ours() -> None:
    algorithm = domainbed.algorithm("rc-align")((6,), 4, 3, {**GENERIC, "alignment_weight": 0.25})
    values = algorithm.algorithm.hparams
    assert (values.learning_rate, values.weight_decay, values.batch_size) == (3e-3, 1e-4, 8)
    assert values.alignment_weight == 0.25
    assert values.dropout == 0.1  # our network has none of its own
    assert domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC).algorithm.hparams.dropout == 0
    with pytest.raises(InputError, match="alignment_weight"):
        domainbed.algorithm("rc-align")((6,), 4, 3, {**GENERIC, "alignment_weight": "much"})


def test_a_step_is_the_step_of_our_own_training() -> None:
    torch.manual_seed(7)
    inside = domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC)
    torch.manual_seed(7)
    outside = domainbed.algorithm("rc-align", MLP)((6,), 4, 3, GENERIC).algorithm
    for step in range(5):
        logs = inside.update(minibatches(step))
        ours = outside.step(Batch.from_domains(minibatches(step)))
        assert logs == {name: float(value) for name, value in ours.items()}
    assert all(torch.equal(a, b) for a, b in zip(inside.parameters(), outside.parameters(), strict=True))


def test_seeds_of_a_sweep_differ_and_repeat() -> None:
    def first_weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return next(domainbed.algorithm("erm", MLP)((6,), 4, 3, GENERIC).parameters()).detach()

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


def test_their_sweeps_draw_our_hyperparameters() -> None:
    draws = [domainbed.hparams("rc-align", seed) for seed in range(3)]
    assert "alignment_weight" in draws[0] and "learning_rate" not in draws[0]
    assert all(default == drawn for default, drawn in draws[0].values())  # seed 0 is the default there as here
    assert len({draw["alignment_weight"][1] for draw in draws}) == 3
    assert all(draw["alignment_weight"][0] == draws[0]["alignment_weight"][0] for draw in draws)


def test_what_needs_more_than_their_loop_says_so() -> None:
    said = {}
    for name in set(registry.names(parts=True)) - set(domainbed.algorithm_names()):
        with pytest.raises(
            InputError, match=r"cannot run inside DomainBed, because it .*: use 'rcalign train'\."
        ) as error:
            domainbed.algorithm(name)
        said[name] = str(error.value)
    assert "starts from a finished run of" in said["CRT"] and "averages weights" in said["SWAD"]
    balanced = [name for name in domainbed.algorithm_names() if registry.get(name).traits.balanced_sampling]
    for name in balanced:
        with pytest.raises(InputError, match="class_balanced"):
            domainbed.algorithm(name)((6,), 4, 3, {**GENERIC, "class_balanced": False})


def test_what_needs_class_counts_or_averages_is_refused_or_said() -> None:
    with pytest.raises(InputError, match="needs the number of training samples"):
        domainbed.algorithm("rc-align", MLP)((6,), 4, 3, {**GENERIC, "centroids": "shrunk"})
    with pytest.warns(UserWarning, match="averages weights|does not adjust logits") as said:
        model = domainbed.algorithm("rc-align", MLP)((6,), 4, 3, dict(GENERIC))
    messages = [str(one.message) for one in said]
    assert any("does not adjust logits" in one for one in messages) and any(
        "averages weights" in one for one in messages
    )
    assert model.algorithm.assumed_shares is None


# --- the guide, in the real package ----------------------------------------------------------------------------------

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "domainbed.md"
DRIVER = """
import runpy, sys, types
for name in ("wilds", "wilds.datasets", "wilds.datasets.camelyon17_dataset", "wilds.datasets.fmow_dataset"):
    sys.modules[name] = types.ModuleType(name)  # their loaders, which are not used here and not installed
sys.modules["wilds.datasets.camelyon17_dataset"].Camelyon17Dataset = None
sys.modules["wilds.datasets.fmow_dataset"].FMoWDataset = None
from domainbed import datasets
datasets.MultipleDomainDataset.N_WORKERS = 0
sys.argv = ["train", *sys.argv[1:]]
runpy.run_module("domainbed.scripts.train", run_name="__main__")
"""


def blocks(language: str) -> list[str]:
    parts = GUIDE.read_text().split("\n```")
    return [part.partition("\n")[2] for part in parts if part.partition("\n")[0] == language]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of DomainBed, changed as the guide says."""
    found = os.environ.get("DOMAINBED_CHECKOUT")
    if not found or not Path(found, "domainbed").is_dir():
        pytest.skip("set DOMAINBED_CHECKOUT to a clone of facebookresearch/DomainBed (tested with commit b93c22a)")
    shutil.copytree(Path(found, "domainbed"), tmp_path / "domainbed")
    algorithms, registry_file = (tmp_path / "domainbed" / f"{name}.py" for name in ("algorithms", "hparams_registry"))
    (two_lines,) = [text for text in blocks("python") if "RCAlign = " in text]
    more = 'CORAL2 = rcalign_in_domainbed.algorithm("coral")\n'
    algorithms.write_text(f"{algorithms.read_text()}\n{two_lines}\n{more}")
    (guarded,) = blocks("py")
    text = registry_file.read_text()
    assert text.count("\n    return hparams\n") == 1
    registry_file.write_text(text.replace("\n    return hparams\n", f"\n{guarded}\n    return hparams\n"))
    return tmp_path


def inside(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    ours = str(Path(domainbed.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), ours]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_the_guide_changes_no_other_algorithms_settings(checkout: Path) -> None:
    look = (
        "import json, sys; from domainbed import hparams_registry as r; "
        "print(json.dumps({a: [r.default_hparams(a, 'PACS'), r.random_hparams(a, 'PACS', 7)] "
        "for a in ('ERM', 'CAD', 'CondCAD', 'Mixup', 'MLDG', 'IRM', 'RCAlign')}, default=str))"
    )
    changed = inside(checkout, look)
    assert changed.returncode == 0, changed.stderr[-2000:]
    original = os.environ["DOMAINBED_CHECKOUT"]
    plain = inside(Path(original), look)
    ours, theirs = json.loads(changed.stdout), json.loads(plain.stdout)
    assert "alignment_weight" in ours.pop("RCAlign")[0] and "alignment_weight" not in theirs.pop("RCAlign")[0]
    assert ours == theirs


@pytest.mark.slow
def test_the_guide_trains_with_their_script(checkout: Path) -> None:
    common = ["--dataset", "Debug28", "--steps", "2", "--test_envs", "0", "--skip_model_save"]
    adapting = ["--task", "domain_adaptation", "--uda_holdout_fraction", "0.5"]
    small = {"batch_size": 4}  # of more rows than an environment has, their loader never makes a batch
    first = small | {"unlabelled_domains": 1}
    cases = {
        "plain": ["--algorithm", "RCAlign", "--hparams_seed", "1", "--hparams", json.dumps(small)],
        "adapted": ["--algorithm", "RCAlign", *adapting, "--hparams", json.dumps(first | {"target_alignment": 1.0})],
        "coral": ["--algorithm", "CORAL2", *adapting, "--hparams", json.dumps(first)],
    }
    for name, words in cases.items():
        ended = inside(checkout, DRIVER, *common, *words, "--output_dir", name)
        assert ended.returncode == 0, ended.stderr[-2000:]
        rows = [json.loads(line) for line in (checkout / name / "results.jsonl").read_text().splitlines()]
        assert np.isfinite(rows[-1]["loss"]) and ("env0_uda_acc" in rows[-1]) == (name != "plain")
    refused = inside(
        checkout,
        DRIVER,
        *common,
        "--algorithm",
        "CORAL2",
        *adapting,
        "--hparams",
        json.dumps(small),
        "--output_dir",
        "refused",
    )
    said = refused.stderr + (checkout / "refused" / "err.txt").read_text()
    assert refused.returncode != 0 and '"unlabelled_domains": 1' in said
