"""Model soups: one network whose weights are the mean of those of several finished runs (DiWA; greedy soup).

    uniform   theta = mean of theta_1, ..., theta_n
    greedy    runs in the order of their validation accuracy; one is added if the validation accuracy of the mean with
              it is at least that without it

Weights can be averaged only where runs share their start: the same pretrained network, the same head to begin with (it
comes from the seed), the same rows to train on. Validation is that of the source domains; test parts decide nothing.

Papers: Wortsman et al., Model soups (2022); Ramé et al., Diverse Weight Averaging (DiWA, 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from torch import Tensor

from rcalign.checkpoints import load_weights, save_weights
from rcalign.data import loading
from rcalign.data.source import Dataset
from rcalign.errors import InputError, unknown
from rcalign.evaluation.evaluate import Part, validation_accuracy
from rcalign.extensions import import_modules
from rcalign.models.lora import merged
from rcalign.store.json_files import write_json
from rcalign.store.run_folder import RunConfig, RunFolder, read_config
from rcalign.training import job
from rcalign.training.averaging import Mean, recompute_batch_norm
from rcalign.training.loop import HowFar, make_record, run_result
from rcalign.training.options import options_from
from rcalign.training.run import make_model

KINDS = ("uniform", "greedy")
SHARED = {  # what must agree, and how it is called
    "data_fingerprint": "data",
    "spec": "classes, source domains and training rows",
    "test_domains": "test domains",
    "protocol": "protocol",
    "seed": "seed, and so the head it began with,",
    "backbone": "backbone",
    "weights_fingerprint": "pretrained weights",
    "freeze_backbone": "choice of freezing the backbone",
    "freeze_batch_norm": "choice of freezing batch norm",
    "image_size": "image size",
}


def make_soup(
    folders: Sequence[str | Path], *, out: str | Path, kind: str = "uniform", progress: bool = False
) -> dict[str, Any]:
    """Averages the runs of the given folders (runs, or sweeps and other folders of them) into the run folder ``out``.

    The result is that of a run, with ``runs``: the folders whose weights are in the mean.
    """
    if kind not in KINDS:
        raise unknown("kind of soup", kind, KINDS)
    paths = [path for folder in folders for path in finished_runs(Path(folder))]
    if len(paths) < 2:
        raise InputError(f"a soup takes two or more finished runs with weights, but found {len(paths)}: name more.")
    configs = {path: read_config(path) for path in paths}
    check_shared_start(configs)
    paths.sort(key=lambda path: -validation_of(path))
    # changes of low rank are averaged as the weights that they come to, so the mean has none
    config = dataclasses.replace(configs[paths[0]], keep="best", average=None, lora=None, lora_alpha=None)
    import_modules(config.imports)
    dataset = data_of(config)
    task = job.prepare_run(options_from(dataclasses.asdict(config)), dataset, data=config.data).task
    model = make_model(task, config)
    names = [name for name, _ in model.named_parameters()]

    def outputs(weights: Mapping[str, Tensor]) -> list[Part]:
        model.load_state_dict(dict(weights))
        batches = task.batches(model.hparams.batch_size, config.seed, model.traits.balanced_sampling)
        recompute_batch_norm(model, (batch.x for batch in batches.iterate(0, config.steps)))
        return task.evaluate(model)

    mean, chosen, best = Mean(names), [], -1.0
    for path in track(paths, "averaging", console=Console(stderr=True), disable=not progress):
        with_it = Mean(names)
        with_it.load(mean.state())
        with_it.add(_weights(path, model.state_dict()))
        if kind == "greedy":
            accuracy = validation_accuracy(outputs(with_it.weights() or {}), task.spec.domains, config.protocol)
            if accuracy < best:
                continue
            best = accuracy
        mean = with_it
        chosen.append(path)
    parts = outputs(mean.weights() or {})
    folder = RunFolder(out)
    folder.begin(config, resume=False)
    try:
        save_weights(folder.best_file, model.state_dict())
        seconds = sum(result.seconds for path in chosen if (result := RunFolder(path).result()) is not None)
        at = HowFar(step=config.steps, best_step=config.steps, seconds=seconds)
        folder.append(make_record(parts, config, at.step, {}, averaged=True))
        write_json(folder.path / "soup.json", {"kind": kind, "runs": [str(path.resolve()) for path in chosen]})
        words = f"{kind} mean of {len(chosen)} runs of {len(paths)}"
        result = run_result(parts, config, at, words, dataset.shots, model.traits.batch_dependent)
        folder.finish(result)
    finally:
        folder.release()
    return {**result.to_json(), "folder": str(folder.path), "runs": [str(path) for path in chosen]}


def finished_runs(folder: Path) -> list[Path]:
    """The finished runs with weights in a folder, which may be one itself; not what lies inside a run."""
    found = [file.parent for file in folder.rglob("result.json") if (file.parent / "config.json").exists()]
    kept = sorted(path for path in found if RunFolder(path).best_file.exists() and not set(path.parents) & set(found))
    if not kept:
        raise InputError(f"'{folder}' holds no finished run with weights: name run folders, or a folder of them.")
    return kept


def data_of(config: RunConfig) -> Dataset:
    """The data that runs were trained on, if they are the same still."""
    dataset = loading.load(config.data, skip_bad=config.skip_bad)
    if dataset.fingerprint != config.data_fingerprint:
        raise InputError(f"the data '{config.data}' changed since the runs were trained: restore them.")
    return dataset


def check_shared_start(configs: Mapping[Path, RunConfig]) -> None:
    """Raises for runs that did not begin with the same network on the same rows, saying in what they differ."""
    (first, reference), *others = configs.items()
    for path, config in others:
        for name, words in SHARED.items():
            if getattr(config, name) != getattr(reference, name):
                raise InputError(
                    f"the weights of '{path}' and '{first}' cannot be averaged: their {words} differ. Average runs "
                    "that share their start, such as the draws of one test domain and seed."
                )


def _weights(path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The chosen weights of a run; of what other algorithms add to the network only what the first one has."""
    found = merged(load_weights(RunFolder(path).best_file))
    missing = [name for name, value in like.items() if name not in found or found[name].shape != value.shape]
    if missing:
        raise InputError(
            f"the weights of '{path}' cannot be averaged with the others: it has no '{missing[0]}' of that shape. "
            "Average runs of one algorithm."
        )
    return {name: found[name].to(value.dtype) for name, value in like.items()}


def validation_of(path: Path) -> float:
    """The validation accuracy of a finished run."""
    result = RunFolder(path).result()
    assert result is not None
    return result.validation
