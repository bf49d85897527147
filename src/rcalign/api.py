"""What users call: each function here is one command of the command line."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import presets, registry, spaces
from rcalign.data import source
from rcalign.data.batches import evaluation_batches
from rcalign.data.cache import decode, open_images
from rcalign.data.source import Arrays, Dataset
from rcalign.data.sources import arrays
from rcalign.data.splits import PROTOCOLS
from rcalign.data.splits import split as make_splits
from rcalign.devices import check_precision, resolve_device
from rcalign.errors import InputError, unknown
from rcalign.evaluation.evaluate import BATCH, Part, summary
from rcalign.files import write_whole
from rcalign.presets import Preset
from rcalign.records import RunConfig, RunFolder, versions
from rcalign.training.run import complete, hparams_of
from rcalign.training.task import make_task, storage_size
from rcalign.training.trained import TrainedModel, load_trained

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm"}


def train(
    data: str | Path | Dataset,
    algorithm: str = "RC-Align",
    test_domains: Sequence[str] = (),
    *,
    protocol: str | None = None,
    preset: str | None = None,
    steps: int | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    backbone: str | None = None,
    weights: str | Path | None = None,
    freeze_backbone: bool = False,
    freeze_batch_norm: bool | None = None,
    image_size: int | None = None,
    hparams: Mapping[str, Any] | None = None,
    average: str | None = None,
    device: str = "auto",
    precision: str = "fp32",
    out: str | Path | None = None,
    resume: bool = False,
    skip_bad: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Trains one model and returns its result (also written to ``result.json`` in the run folder ``out``).

    data: a folder domain/class/image, a CSV manifest, an .npz, or a name such as "emoji". test_domains: held out under
    protocol "lodo"; under "mdlt" all domains train and are tested. hparams: the algorithm's own, by field name.

    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = folder + "/rows.npz"
    ...     np.savez(file, x=rng.normal(size=(90, 4)), y=np.arange(90) % 2, domain=np.arange(90) % 3)
    ...     result = train(file, "ERM", ["2"], steps=3, out=folder + "/run")
    >>> sorted(result["accuracy"]), result["steps"]
    (['2'], 3)
    """
    entry = registry.get(algorithm)
    dataset = data if isinstance(data, Dataset) else source.load(data, skip_bad=skip_bad, progress=progress)
    if skip_bad and progress:
        for note in dataset.notes:
            print(note, file=sys.stderr)
    chosen = _preset(dataset, preset, freeze_backbone)
    protocol = protocol or chosen.protocol
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    for name in test_domains:
        if name not in dataset.domains:
            raise unknown("domain", name, dataset.domains)
    _check_test_domains(dataset, protocol, test_domains)
    options = dict(hparams or {})
    values = hparams_of(entry, chosen.name, options)
    splits = make_splits(dataset, protocol, test_domains, seed)
    target, precision = torch.device(resolve_device(device)), check_precision(precision)
    task = make_task(
        dataset,
        splits,
        chosen,
        backbone=backbone or chosen.backbone,
        weights=weights,
        freeze_backbone=freeze_backbone,
        freeze_batch_norm=chosen.freeze_batch_norm if freeze_batch_norm is None else freeze_batch_norm,
        image_size=image_size or chosen.image_size,
        device=target,
        seed=seed,
        progress=progress,
    )
    images = not isinstance(dataset.content, Arrays)
    config = RunConfig(
        data=dataset.name if isinstance(data, Dataset) else str(data),
        algorithm=entry.name,
        test_domains=tuple(test_domains),
        protocol=protocol,
        preset=chosen.name,
        steps=_positive("steps", steps if steps is not None else chosen.steps),
        evaluate_every=_positive("evaluate_every", evaluate_every or chosen.evaluate_every),
        seed=seed,
        backbone=backbone or chosen.backbone,
        weights=None if weights is None else str(weights),
        freeze_backbone=freeze_backbone,
        freeze_batch_norm=chosen.freeze_batch_norm if freeze_batch_norm is None else freeze_batch_norm,
        image_size=(image_size or chosen.image_size or dataset.content.native_size or 224) if images else None,  # type: ignore[union-attr]
        average=average or entry.traits.averages,
        hparams=dataclasses.asdict(values),
        data_fingerprint=dataset.fingerprint,
        weights_fingerprint=task.backbone.weights,
        spec=task.spec,
        device=target.type,
        precision=precision,
        threads=torch.get_num_threads(),
        stage_one=entry.traits.stage_one,
        versions=versions(),
    )
    folder = RunFolder(out if out is not None else default_folder(config))
    _, result = complete(task, config, folder, options, resume=resume, progress=progress)
    return {**result, "folder": str(folder.path)}


def evaluate(run: str | Path, data: str | Path | Dataset | None = None, *, device: str = "auto") -> dict[str, Any]:
    """The figures of a run on its own test parts, or on all rows of other data with the same classes.

    Domains of other data are reported one by one; they need not be known to the run.
    """
    where = torch.device(resolve_device(device))
    model = load_trained(run, where)
    config = model.config
    dataset = data if isinstance(data, Dataset) else source.load(data if data is not None else config.data)
    rows_of: Mapping[str, np.ndarray]
    if data is None:
        if dataset.fingerprint != config.data_fingerprint:
            raise InputError(
                f"the data '{config.data}' changed since the run '{run}' was trained: name the data to evaluate on, or "
                "train again."
            )
        rows_of = make_splits(dataset, config.protocol, config.test_domains, config.seed).test
    else:
        rows_of = {name: np.flatnonzero(dataset.domain == k) for k, name in enumerate(dataset.domains)}
    extra = [name for name in dataset.classes if name not in config.spec.classes]
    if extra:
        raise InputError(
            f"the data have a class the model does not know, '{extra[0]}' (it knows {', '.join(config.spec.classes)}): "
            "leave that class out."
        )
    position = np.array([config.spec.classes.index(name) for name in dataset.classes])
    parts = []
    for name, rows in rows_of.items():
        logits = [model.logits(x).float().cpu().numpy() for x in _inputs(model, dataset, rows)]
        parts.append(Part(name, "test", np.concatenate(logits), position[dataset.y[rows]]))
    figures = summary(parts, list(config.spec.domains), config.spec.count_matrix.numpy())
    return {"algorithm": config.algorithm, "data": str(data) if data is not None else config.data, **figures}


def predict(
    run: str | Path, paths: Sequence[str | Path], *, out: str | Path | None = None, device: str = "auto"
) -> list[dict[str, Any]]:
    """Class and probabilities for image files, folders of them, or an .npz with ``x``; ``out`` writes them as CSV."""
    model = load_trained(run, torch.device(resolve_device(device)))
    classes = model.config.spec.classes
    table: list[dict[str, Any]] = []
    for names, x in _unlabelled(model, paths):
        for name, p in zip(names, torch.softmax(model.logits(x).float(), 1).cpu().numpy(), strict=True):
            chances = {c: round(float(value), 6) for c, value in zip(classes, p, strict=True)}
            table.append({"path": name, "predicted": classes[int(p.argmax())], **chances})
    if out is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, ["path", "predicted", *classes])
        writer.writeheader()
        writer.writerows(table)
        write_whole(out, text.getvalue().encode())
    return table


def data_info(data: str | Path | Dataset) -> dict[str, Any]:
    """Samples per domain and class, what was dropped and why."""
    return source.describe(data if isinstance(data, Dataset) else source.load(data))


def algorithms(name: str | None = None) -> list[dict[str, Any]]:
    """Every algorithm, or one with its hyperparameters.

    >>> [row["name"] for row in algorithms("erm")]
    ['ERM']
    """
    costs = json.loads((resources.files("rcalign") / "algorithms" / "costs.json").read_text())
    rows = []
    entries = [registry.get(known) for known in (registry.names() if name is None else [name])]
    for entry in sorted(entries, key=lambda entry: (entry.family != "baseline", entry.family, entry.name)):
        row: dict[str, Any] = {
            "name": entry.name,
            "family": entry.family,
            "needs": _needs(entry),
            "cost": costs.get(entry.name),
            "summary": entry.summary,
            "paper": entry.paper,
        }
        if name is not None:
            start = entry.algorithm.Hparams()
            row["hparams"] = {
                field: {
                    "default": getattr(start, field),
                    "meaning": note.doc,
                    "choices": list(note.choices) if note.choices else None,
                    "search": None if note.space is None else str(note.space),
                }
                for field, note in spaces.fields_of(entry.algorithm.Hparams).items()
            }
        rows.append(row)
    return rows


def sweep(
    plan: str | Path,
    *,
    out: str | Path | None = None,
    ray: str | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float = 0.0,
    workers: int | None = None,
    retry_failed: bool = False,
    stalled_after: float = 7200.0,
    dry_run: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Trains all runs of a sweep file, or of a recipe by its name, and returns how far it came.

    What is finished is never trained again: the same call goes on where the last one stopped. ray: the address of a
    cluster; without it, Ray runs on this machine. retry_failed: try again what failed before. stalled_after: seconds
    without a sign of life after which a run is stopped. dry_run: plan only. The result is ``sweep_status`` with
    ``stopped``, None or in a sentence why the sweep ended early.
    """
    from rcalign.sweeps import plan_file, run_on_ray  # ray takes a second to import
    from rcalign.sweeps.folder import SweepFolder
    from rcalign.sweeps.plan import DataLook, expand

    planned = plan_file.read(plan)
    resources = run_on_ray.Resources(
        address=ray,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
        workers=workers,
        stalled_after=stalled_after,
    )
    if ray is not None and not dry_run:
        run_on_ray.check_address(ray)  # before the data are read, which may take longer

    @functools.cache
    def look(data: str) -> DataLook:
        dataset = source.load(planned.located(data), skip_bad=planned.settings.get("skip_bad", False))
        return DataLook(dataset.domains, isinstance(dataset.content, Arrays))

    runs = expand(planned, look)
    if dry_run:
        return {"name": planned.name, "planned": len(runs), "runs": [planned.entry(run) for run in runs]}
    for data in planned.data:  # domains that the file lists may be spelled otherwise in the data
        for name in dict.fromkeys(name for run in runs if run.data == data for name in run.test_domains):
            if name not in look(data).domains:
                raise unknown(f"domain of '{data}'", name, look(data).domains)
    folder = SweepFolder(out if out is not None else Path("sweeps") / planned.name)
    stopped = run_on_ray.execute(planned, runs, folder, train, resources, retry_failed=retry_failed, progress=progress)
    return {**sweep_status(folder.path), "stopped": stopped}


def sweep_status(folder: str | Path) -> dict[str, Any]:
    """How far a sweep is, read from its folder alone, whether or not it is running."""
    from rcalign.sweeps.folder import status

    return dataclasses.asdict(status(folder))


def report(
    folder: str | Path,
    *,
    select: str | None = None,
    format: str | None = None,
    compare: str | None = None,
    baseline: str | None = None,
    out: str | Path | None = None,
    width: int | None = None,
    colour: bool = False,
) -> str:
    """The report on a run, a folder of runs, a sweep, or a sweep of DomainBed or BoDA; ``out`` also writes it.

    select: "training-domain", "leave-one-domain-out", "oracle" or "mdlt"; None is the protocol's own. format:
    "terminal", "markdown", "latex", "csv" or "html", or "tensorboard" or "mlflow", which write a folder; None goes by
    the ending of ``out``. compare: "published" sets the paper's figures beside ours. baseline: what algorithms are
    compared with.
    """
    from rcalign.reports.render import format_of, render
    from rcalign.reports.report import make_report

    wanted = format_of(format, out)
    return render(make_report(folder, select, compare, baseline), wanted, out, width, colour)


def default_folder(config: RunConfig) -> Path:
    """runs/DATA-ALGORITHM-HELDOUT-seedS."""
    words = [Path(config.data).stem, config.algorithm, *config.test_domains, config.protocol, f"seed{config.seed}"]
    return Path("runs") / "-".join(re.sub(r"[^\w.]+", "_", word) for word in words)


def _preset(dataset: Dataset, preset: str | None, freeze_backbone: bool) -> Preset:
    if preset is not None:
        return presets.get(preset)
    small = isinstance(dataset.content, Arrays) or freeze_backbone
    return presets.get("arrays" if small else "default")


def _check_test_domains(dataset: Dataset, protocol: str, test_domains: Sequence[str]) -> None:
    if protocol == "mdlt" and test_domains:
        raise InputError("under --protocol mdlt every domain trains and is tested: leave --test-domain out.")
    if protocol == "lodo" and not test_domains:
        listed = ", ".join(dataset.domains)
        raise InputError(f"--test-domain is missing: name the domain to hold out, one of {listed}.")


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"--{name.replace('_', '-')} is {value}, but must be at least 1.")
    return value


def _needs(entry: registry.Entry) -> str:
    traits = entry.traits
    needs = [f"{traits.min_domains} domains"] if traits.min_domains > 1 else []
    needs += ["class counts"] if traits.needs_counts else []
    needs += ["images"] if traits.images_only else []
    needs += [f"first {traits.stage_one}"] if traits.stage_one else []
    needs += ["test batches"] if traits.batch_dependent else []
    return ", ".join(needs) or "–"


def _inputs(model: TrainedModel, dataset: Dataset, rows: np.ndarray) -> Any:
    """Batches of network inputs of a data set, as the model wants them."""
    images = not isinstance(dataset.content, Arrays)
    if images != (model.augmentation is not None):
        wanted = "images" if model.augmentation is not None else "arrays"
        raise InputError(f"the model was trained on {wanted}, but the data are not: give data of the same kind.")
    if not images:
        shape = tuple(dataset.content.x.shape[1:])  # type: ignore[union-attr]
        if shape != model.config.spec.input_shape:
            expected = model.config.spec.input_shape
            raise InputError(f"samples have shape {shape}, but the model reads {expected}: give data of that shape.")
        return evaluation_batches(dataset.content.x, rows, BATCH, None, model.device)  # type: ignore[union-attr]
    size = model.augmentation.size  # type: ignore[union-attr]
    store = open_images(dataset, storage_size(size, dataset.content.native_size))  # type: ignore[union-attr]
    return evaluation_batches(store, rows, BATCH, model.augmentation, model.device)


def _unlabelled(model: TrainedModel, paths: Sequence[str | Path]) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Names and network inputs, a batch at a time, of image files, of folders (searched for images), or of an .npz."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise InputError(f"the folder '{path}' holds no images: give image files or a folder of them.")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"there is no file or folder '{path}': give image files, folders, or an .npz.")
    if [path.suffix for path in files] == [".npz"]:
        dataset = arrays.unlabelled(files[0])
        rows = np.arange(len(dataset))
        for k, x in enumerate(_inputs(model, dataset, rows)):
            yield [f"row {row}" for row in rows[k * BATCH :][: len(x)]], x
        return
    if model.augmentation is None:
        raise InputError("the model was trained on arrays, but image files were given: give an .npz with x.")
    side = storage_size(model.augmentation.size, None)
    for start in range(0, len(files), BATCH):
        some = files[start : start + BATCH]
        images = np.stack([decode(path, side) for path in some])
        yield [str(path) for path in some], model.augmentation.evaluate(torch.from_numpy(images).to(model.device))
