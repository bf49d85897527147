"""Unsupervised adaptation: DomainBed's split, updates read literally, and labels of the target that nobody sees."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign import api, registry, spaces
from rcalign.algorithms.base import Algorithm, Network, seeded
from rcalign.compat import domainbed
from rcalign.data.sources.arrays import from_arrays
from rcalign.data.splits import split
from rcalign.errors import InputError
from rcalign.store.run_folder import RunFolder, read_config
from rcalign.sweeps.plan import DataSummary, expand
from rcalign.sweeps.plan_file import parse_plan
from rcalign.training.callbacks import Callback
from rcalign.types import Batch, DataSpec

HPARAMS: dict[str, dict[str, Any]] = {
    "CORAL": {},
    "MMD": {},
    "DANN": {"gradient_penalty": 0.5},
    "CDANN": {"gradient_penalty": 0.5},
    "RC-Align": {"target_alignment": 0.7, "pseudo_threshold": 0.4},
}
ADAPTING = [found.name for found in registry.descriptions() if found.traits.adapts]


def test_every_adapting_algorithm_is_tested_here() -> None:
    assert sorted(ADAPTING) == sorted(HPARAMS)


def data(seed: int = 0, groups: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, domain = rng.integers(3, size=173), rng.integers(4, size=173)
    found = {"x": rng.normal(size=(173, 5)) + 2 * np.eye(5)[y] + 0.4 * domain[:, None], "y": y, "domain": domain}
    return {**found, "group": np.arange(173) // 3} if groups else found


# --- the split -----------------------------------------------------------------------------------------------------


def read_literally(n: int, env: int, trial_seed: int, holdout: float, uda: float) -> dict[str, list[int]]:
    """DomainBed's rule for a test environment: two shuffles of lists of keys, both with the seed of the environment."""

    def seed_of(*args: int) -> int:
        return int(hashlib.md5(str(args).encode("utf-8")).hexdigest(), 16) % (2**31)

    def divided(items: list[int], size: int) -> tuple[list[int], list[int]]:
        keys = list(range(len(items)))
        np.random.RandomState(seed_of(trial_seed, env)).shuffle(keys)
        return [items[k] for k in keys[:size]], [items[k] for k in keys[size:]]

    out, rest = divided(list(range(n)), int(n * holdout))
    unlabelled, tested = divided(rest, int(len(rest) * uda))
    return {"val": out, "unlabelled": unlabelled, "test": tested}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_split_is_domainbeds_to_the_row(seed: int, share: float) -> None:
    dataset = from_arrays(data(), name="rows", where="rows")
    held = [dataset.domains[1], dataset.domains[3]]
    plain = split(dataset, "lodo", held, seed)
    for protocol in ("adapt", "lodo"):
        found = split(dataset, protocol, held, seed, unlabelled_share=share)
        assert list(found.unlabelled) == held
        for name in held:
            env = dataset.domains.index(name)
            rows = np.flatnonzero(dataset.domain == env)
            expected = read_literally(len(rows), env, seed, 0.2, share)
            for kind in ("val", "unlabelled", "test"):
                assert getattr(found, kind)[name].tolist() == sorted(rows[expected[kind]].tolist()), (name, kind)
        assert all(np.array_equal(found.train[name], plain.train[name]) for name in plain.train)


@pytest.mark.parametrize("column", ["group", "split"])
def test_groups_and_split_columns_keep_their_sense(column: str) -> None:
    rows = data(groups=True)
    if column == "split":
        del rows["group"]
        rows["split"] = np.array(["train", "val", "test"])[np.arange(173) % 3]
    dataset = from_arrays(rows, name="rows", where="rows")
    found = split(dataset, "adapt", ["3"], 0)
    tested, unlabelled = found.test["3"], found.unlabelled["3"]
    assert len(tested) and len(unlabelled) and not set(tested) & set(unlabelled)
    if column == "group":
        assert not set(rows["group"][tested]) & set(rows["group"][unlabelled])
        trained = np.concatenate(list(found.train.values()))
        assert not set(rows["group"][tested]) & set(rows["group"][trained])
    else:
        assert set(rows["split"][np.concatenate([tested, unlabelled])]) == {"test"}


# --- whole runs ----------------------------------------------------------------------------------------------------


OPTIONS: dict[str, Any] = {"steps": 12, "evaluate_every": 5, "protocol": "adapt"}


def run(rows: dict[str, np.ndarray], out: Path, algorithm: str, **options: Any) -> dict[str, Any]:
    file = out.with_suffix(".npz")
    file.parent.mkdir(exist_ok=True)
    np.savez(file, **rows)  # type: ignore[arg-type]
    hparams = {"batch_size": 6, **HPARAMS.get(algorithm, {}), **options.pop("hparams", {})}
    return api.train(file, algorithm, ["3"], **{**OPTIONS, **options}, hparams=hparams, out=out)


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("name", ADAPTING)
def test_labels_of_the_target_are_never_seen(tmp_path: Path, name: str, groups: bool) -> None:
    rows = data(groups=groups)
    permuted = dict(rows, y=rows["y"].copy())
    here = np.flatnonzero(rows["domain"] == 3)
    permuted["y"][here] = np.random.default_rng(1).permutation(rows["y"][here])
    assert (permuted["y"] != rows["y"]).any()
    accuracy = [run(part, tmp_path / f"run{k}", name)["accuracy"] for k, part in enumerate((rows, permuted))]
    assert accuracy[0] != accuracy[1]  # the labels that are tested did change
    for file in ("best.safetensors", "last.safetensors"):
        assert (tmp_path / "run0" / file).read_bytes() == (tmp_path / "run1" / file).read_bytes()


@pytest.mark.parametrize("name", ADAPTING)
def test_unlabelled_rows_are_used(tmp_path: Path, name: str) -> None:
    rows = data()
    found = split(from_arrays(rows, name="rows", where="rows"), "adapt", ["3"], 0)
    moved = dict(rows, x=rows["x"].copy())
    moved["x"][found.unlabelled["3"]] += 1.0
    tested = dict(rows, x=rows["x"].copy())
    tested["x"][found.test["3"]] += 1.0
    for k, part in enumerate((rows, moved, tested)):
        run(part, tmp_path / f"run{k}", name)
    last = [(tmp_path / f"run{k}" / "last.safetensors").read_bytes() for k in range(3)]
    assert last[0] != last[1] and last[0] == last[2]  # the rows that are tested change nothing


class Fails(Callback):
    def on_step(self, step: int, values: Any) -> None:
        if step == 10:
            raise RuntimeError("killed")


@pytest.mark.parametrize("name", ["DANN", "RC-Align"])
def test_a_run_goes_on_to_the_same_bits_and_is_evaluated_alone(tmp_path: Path, name: str) -> None:
    rows = data()
    result = run(rows, tmp_path / "straight", name)
    with pytest.raises(RuntimeError, match="killed"):
        run(rows, tmp_path / "cut", name, callbacks=[Fails()])
    run(rows, tmp_path / "cut", name, resume=True)
    for file in ("best.safetensors", "last.safetensors", "records.jsonl"):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes(), file
    assert api.evaluate(tmp_path / "straight")["accuracy"] == pytest.approx(result["accuracy"])
    assert read_config(tmp_path / "straight").spec.targets == ("3",)


@pytest.mark.parametrize("name", ADAPTING)
def test_pieces_of_a_batch_give_the_same_answer(tmp_path: Path, name: str) -> None:
    rows = data()
    for pieces in (1, 3):
        run(rows, tmp_path / str(pieces), name, accumulate=pieces)
    records = [RunFolder(tmp_path / str(pieces)).records() for pieces in (1, 3)]
    one, three = ([r.loss for r in some if r.loss is not None] for some in records)  # an average has no loss of a step
    assert len(one) >= 2
    np.testing.assert_allclose(one, three, rtol=1e-3)


@pytest.mark.slow
def test_two_workers_give_the_same_answer(tmp_path: Path) -> None:
    run(data(), tmp_path / "one", "CORAL")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rcalign"]
    words = ["--algorithm", "CORAL", "--test-domain", "3", "--protocol", "adapt", "--steps", "12", "--out", "two"]
    more = ["--evaluate-every", "5", "--set", "batch_size=6", "--device", "cpu"]
    ended = subprocess.run([*line, "train", "one.npz", *words, *more], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    one, two = (RunFolder(tmp_path / name).records() for name in ("one", "two"))
    np.testing.assert_allclose([r.loss for r in one], [r.loss for r in two], rtol=1e-3)


def test_reports_have_a_table_of_their_own(tmp_path: Path) -> None:
    for protocol in ("adapt", "lodo"):
        run(data(), tmp_path / "runs" / protocol, "CORAL", protocol=protocol, unlabelled_share=0.5)
    text = api.report(tmp_path / "runs", format="markdown")
    assert "adapt" in text and "lodo" in text
    tested = [api.evaluate(tmp_path / "runs" / protocol) for protocol in ("adapt", "lodo")]
    assert np.sum(tested[0]["confusion"]["3"]) == np.sum(tested[1]["confusion"]["3"])  # the same rows


def test_wrong_uses_are_refused_in_a_sentence(tmp_path: Path) -> None:
    rows = data()
    for options, sentence in (
        ({"algorithm": "ERM"}, "ERM does not use unlabelled rows"),
        ({"algorithm": "RC-Align", "hparams": {"target_alignment": 0.0}}, "target_alignment is above 0"),
        ({"algorithm": "RC-Align", "protocol": "lodo"}, "there are no unlabelled rows to align"),
        ({"algorithm": "CORAL", "unlabelled_share": 1.0}, "makes all of the"),
        ({"algorithm": "CORAL", "unlabelled_share": 0.01}, "makes none of the"),
        ({"algorithm": "CORAL", "unlabelled_share": 0.0}, "must be more than 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            run(rows, tmp_path / "run", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`test_domains` is missing"):
        api.train(tmp_path / "run.npz", "CORAL", protocol="adapt")
    with pytest.raises(InputError, match="not for mdlt"):
        api.train(tmp_path / "run.npz", "CORAL", protocol="mdlt", unlabelled_share=0.5)
    assert not (tmp_path / "run").exists()


def test_sweeps_plan_adaptation() -> None:
    plan = {"data": "rows.npz", "algorithms": ["CORAL", "DANN"], "protocol": "adapt", "unlabelled_share": 0.3}
    runs = expand(parse_plan(plan), lambda data: DataSummary(("0", "1", "2"), True))
    assert len(runs) == 6 and all(run.options["unlabelled_share"] == 0.3 for run in runs)
    for algorithm, sentence in (("ERM", "does not use unlabelled rows"), ("RC-Align", "target_alignment is above 0")):
        with pytest.raises(InputError, match=f"{algorithm} .*{sentence}"):
            expand(parse_plan({**plan, "algorithms": algorithm}), lambda data: DataSummary(("0", "1", "2"), True))


# --- the updates, read literally in double precision -----------------------------------------------------------------


def toy(name: str, **changes: Any) -> Algorithm:
    spec = DataSpec(("a", "b", "c"), ("one", "two"), ((4, 4, 4),) * 2, (6,), ("target", "other"))
    with seeded(0):
        network = Network(nn.Sequential(nn.Linear(6, 7), nn.Tanh()), 7, 3).double()
    kind = registry.get(name).algorithm
    return kind(spec, network, spaces.defaults(kind.Hparams, "arrays", **{**HPARAMS[name], **changes}))


def toy_batch() -> tuple[Batch, list[tuple[Tensor, Tensor]], list[Tensor]]:
    generator = torch.Generator().manual_seed(3)

    def draw(n: int) -> Tensor:
        return torch.randn(n, 6, generator=generator, dtype=torch.float64)

    labelled = [(draw(5), torch.tensor([0, 1, 2, 0, 1])), (draw(4) + 0.3, torch.tensor([2, 1, 0, 0]))]
    unlabelled = [draw(5) + 1, draw(3) - 1]
    return Batch.from_domains(labelled, unlabelled=unlabelled), labelled, unlabelled


def check_gradient(model: Algorithm, parameters: list[nn.Parameter], objective: Tensor, step: Any) -> None:
    expected = torch.autograd.grad(objective, parameters)
    step()
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-11)


def kernel(x: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for a in x:
        for b in y:
            square = ((a - b) ** 2).sum()
            total = total + sum(torch.exp(-g * square) for g in (0.001, 0.01, 0.1, 1, 10, 100, 1000))
    return total / (len(x) * len(y))


def moments(x: Tensor, y: Tensor) -> Tensor:
    means = ((x.mean(0) - y.mean(0)) ** 2).mean()
    return means + ((torch.cov(x.T) - torch.cov(y.T)) ** 2).mean()


@pytest.mark.parametrize("name", ["CORAL", "MMD"])
def test_matching_counts_targets_as_domains(name: str) -> None:
    model = toy(name, penalty_weight=0.7, **({"estimator": "biased"} if name == "MMD" else {}))
    batch, labelled, unlabelled = toy_batch()
    features = [model.featurizer(x) for x, _ in labelled] + [model.featurizer(x) for x in unlabelled]
    risk = sum(F.cross_entropy(model.head(z), y) for z, (_, y) in zip(features, labelled, strict=False)) / 2
    gap: Tensor | int = 0
    for i in range(4):
        for j in range(i + 1, 4):
            if name == "MMD":
                x, y = features[i], features[j]
                gap = gap + kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)
            else:
                gap = gap + moments(features[i], features[j])
    check_gradient(model, list(model.parameters()), risk + 0.7 * gap / 6, lambda: model.step(batch))


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
def test_the_discriminator_reads_targets_as_domains(name: str) -> None:
    model = toy(name, adversary_weight=0.6)
    batch, labelled, unlabelled = toy_batch()

    def losses() -> tuple[Tensor, Tensor]:
        x = torch.cat([*(x for x, _ in labelled), *unlabelled])
        z = model.featurizer(x)
        truth = torch.cat([y for _, y in labelled])
        guess = model.head(z)[9:].argmax(1)
        classes = torch.cat([truth, guess])
        domains = torch.tensor([0] * 5 + [1] * 4 + [2] * 5 + [3] * 3)
        read = z + model.class_embeddings(classes) if name == "CDANN" else z
        scores = model.discriminate(read)
        assert scores.shape == (17, 4)
        each = F.cross_entropy(scores, domains, reduction="none")
        if name == "CDANN":
            count = torch.bincount(classes, minlength=3)
            loss = sum(each[i] / (count[classes[i]] * (count > 0).sum()) for i in range(17))
        else:
            loss = each.mean()
        (slope,) = torch.autograd.grad(each.sum(), read, create_graph=True)
        return F.cross_entropy(model.head(z)[:9], truth), loss + 0.5 * (slope**2).sum(1).mean()

    network = [*model.featurizer.parameters(), *model.head.parameters()]
    risk, adversary = losses()
    check_gradient(model, network, risk - 0.6 * adversary, lambda: model.step(batch))  # the classifier's turn
    _, adversary = losses()
    check_gradient(model, list(model.discriminator.parameters()), adversary, lambda: model.step(batch))


def test_rc_align_draws_rows_to_pseudo_class_centroids() -> None:
    changes = {"meta": False, "mixup_alpha": 0.0, "alignment_weight": 0.0, "temperature": 0.5}
    model = toy("RC-Align", **changes, target_alignment=0.8, pseudo_threshold=0.42)
    batch, labelled, unlabelled = toy_batch()
    z = model.featurizer(torch.cat([*(x for x, _ in labelled), *unlabelled]))
    logits = model.head(z)
    sure, guess = logits[9:].softmax(1).max(1)
    assert 0 < int((sure >= 0.42).sum()) < 8  # some rows have a pseudo-class, some have none
    kept = [*range(9), *(9 + k for k in range(8) if sure[k] >= 0.42)]
    classes = [*torch.cat([y for _, y in labelled]).tolist(), *guess.tolist()]
    domains = [0] * 5 + [1] * 4 + [2] * 5 + [3] * 3
    unit = z / z.norm(dim=1, keepdim=True)
    mu = {}
    for pair in {(domains[i], classes[i]) for i in kept}:
        mean = torch.stack([unit[i] for i in kept if (domains[i], classes[i]) == pair]).mean(0)
        mu[pair] = (mean / mean.norm()).detach()
    terms = []
    for i in kept:
        near = {pair: -(unit[i] - centre).norm() / 0.5 for pair, centre in mu.items()}
        # a lone row is its own centroid: distance zero, without the noise of a norm's gradient there
        near = {pair: value if value < -1e-9 else torch.zeros_like(value) for pair, value in near.items()}
        positives = [pair for pair in mu if pair[1] == classes[i] and pair[0] != domains[i]]
        others = torch.stack([near[pair] for pair in mu if pair not in positives])
        terms += [torch.logsumexp(others, 0) - near[pair] for pair in positives]
    risk = F.cross_entropy(logits[:9], torch.tensor(classes[:9]))
    objective = risk + 0.8 * torch.stack(terms).mean()
    check_gradient(model, list(model.parameters()), objective, lambda: model.step(batch))


# --- inside DomainBed ------------------------------------------------------------------------------------------------


def test_unlabelled_batches_pass_through_domainbeds_interface() -> None:
    _, labelled, unlabelled = toy_batch()
    labelled = [(x.float(), y) for x, y in labelled]
    unlabelled = [x.float() for x in unlabelled]
    inside, outside = [], []
    for found in (inside, outside):
        torch.manual_seed(0)
        model = domainbed.algorithm("dann")((6,), 3, 2, {"lr": 1e-3, "weight_decay": 0.0, "unlabelled_domains": 2})
        for _ in range(3):
            if found is inside:
                found.append(model.update(labelled, unlabelled)["loss"])
            else:
                logs = model.algorithm.step(Batch.from_domains(labelled, unlabelled=unlabelled))
                found.append(float(logs["loss"]))
    assert inside == outside
    generic = {"lr": 1e-3, "weight_decay": 0.0}
    with pytest.raises(InputError, match=r'"unlabelled_domains": 2'):
        domainbed.algorithm("dann")((6,), 3, 2, generic).update(labelled, unlabelled)
    with pytest.raises(InputError, match="ERM does not use unlabelled rows"):
        domainbed.algorithm("erm")((6,), 3, 2, generic).update(labelled, unlabelled)
