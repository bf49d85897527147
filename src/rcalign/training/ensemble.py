"""Ensembles: the mean of the probabilities of several finished runs, where their weights cannot be averaged.

    p(y | x) = mean over members m of softmax(z_m(x) / T_m),    T_m the member's temperature

Networks and algorithms may differ. The runs must have the same classes and the same split, so that no member was
trained on rows that the ensemble is chosen or tested by, and the same image size. The folder holds a copy of every
member, and a temperature of its own, fitted like that of any run.

Paper: Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles (2017).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from rcalign.devices import resolve_device
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import evaluate_parts
from rcalign.extensions import import_modules
from rcalign.store.json_files import write_json
from rcalign.store.run_folder import RunConfig, RunFolder, read_config
from rcalign.training.loop import HowFar, make_record, run_result
from rcalign.training.run_data import own_splits
from rcalign.training.soup import data_of, finished_runs, validation_of
from rcalign.training.trained import MEMBERS, ensemble_of, load_trained

SHARED = {  # what must agree, and how it is called
    "data_fingerprint": "data",
    "test_domains": "test domains",
    "protocol": "protocol",
    "seed": "seed, and so their split,",
    "table": "encoding of columns",
    "image_size": "image size",
    "stored_size": "size of kept images",
}


def make_ensemble(folders: Sequence[str | Path], *, out: str | Path, progress: bool = False) -> dict[str, Any]:
    """Joins the runs of the given folders (runs, or sweeps and other folders of them) in the run folder ``out``.

    The result is that of a run, with ``runs``: the folders of its members, the best in validation first.
    """
    paths = [path for folder in folders for path in finished_runs(Path(folder))]
    if len(paths) < 2:
        raise InputError(
            f"an ensemble takes two or more finished runs with weights, but found {len(paths)}: name more."
        )
    configs = {path: read_config(path) for path in paths}
    check_same_split(configs)
    paths.sort(key=lambda path: -validation_of(path))
    first = configs[paths[0]]
    imports = tuple(dict.fromkeys(module for config in configs.values() for module in config.imports))
    config = dataclasses.replace(first, keep="best", average=None, imports=imports)
    import_modules(imports)
    dataset = data_of(config)
    device = torch.device(resolve_device("auto"))
    members = [
        load_trained(path, device)
        for path in track(paths, "loading", console=Console(stderr=True), disable=not progress, transient=True)
    ]
    model = ensemble_of(members, config, None)
    splits = own_splits(dataset, config)
    parts = evaluate_parts(
        model.logits, splits, dataset.y, lambda rows: model.inputs(dataset, rows), config.spec.num_classes
    )
    folder = RunFolder(out)
    folder.begin(config, resume=False)
    try:
        for k, path in enumerate(paths):
            _copy(path, folder.path / MEMBERS / str(k))
        seconds = sum(result.seconds for path in paths if (result := RunFolder(path).result()) is not None)
        at = HowFar(step=config.steps, best_step=config.steps, seconds=seconds)
        folder.append(make_record(parts, config, at.step, {}, averaged=True))
        write_json(folder.path / "ensemble.json", {"runs": [str(path.resolve()) for path in paths]})
        words = f"mean of the probabilities of {len(paths)} runs"
        result = run_result(parts, config, at, words, dataset.shots, model.algorithm.traits.batch_dependent)
        folder.finish(result)
    finally:
        folder.release()
    return {**result.to_json(), "folder": str(folder.path), "runs": [str(path) for path in paths]}


def check_same_split(configs: Mapping[Path, RunConfig]) -> None:
    """Raises for runs that were not trained on the same rows and classes, saying in what they differ."""
    (first, reference), *others = configs.items()
    for path, config in others:
        differing = [words for name, words in SHARED.items() if getattr(config, name) != getattr(reference, name)]
        ours, theirs = (dataclasses.replace(one.spec, input_shape=()) for one in (config, reference))
        if ours != theirs:  # a frozen backbone stands before the inputs
            differing.append("classes, source domains and training rows")
        if differing:
            raise InputError(
                f"'{path}' and '{first}' cannot be joined: their {differing[0]} differ. Join runs of one test domain, "
                "seed and image size, such as the draws of a sweep or several networks."
            )


def _copy(run: Path, to: Path) -> None:
    """What a run needs to predict."""
    to.mkdir(parents=True)
    source, copy = RunFolder(run), RunFolder(to)
    for name in ("config_file", "result_file", "best_file"):
        shutil.copyfile(getattr(source, name), getattr(copy, name))
