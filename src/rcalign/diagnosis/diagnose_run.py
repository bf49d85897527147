"""The diagnosis of a trained run, or of a file of features."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcalign.data.source import Dataset
from rcalign.diagnosis.along_training import contraction, tracking
from rcalign.diagnosis.diagnose import diagnose_features
from rcalign.diagnosis.findings import Diagnosis
from rcalign.diagnosis.inputs import FeatureSet, load_features
from rcalign.diagnosis.target_priors import target_priors
from rcalign.diagnosis.target_samples import TargetOutputs, target_outputs
from rcalign.errors import InputError, unknown
from rcalign.store.run_folder import RunFolder
from rcalign.training.run_data import LabelledOutputs, untrained_outputs
from rcalign.training.tracking import read_tracking
from rcalign.training.trained import TrainedModel, load_trained

MOST_SKIPPED = 20  # files that the notes name


def diagnose_file(file: str | Path, target: str | Path | None = None) -> Diagnosis:
    """The diagnosis of an .npz of features. target: the name of a domain in it, or another .npz, labelled or not."""
    found = load_features(file)
    if target is not None and Path(target).suffix == ".npz":
        other = load_features(target)
        more = {"target_features": other.features, "target_labels": other.labels, "target_logits": other.logits}
        return diagnose_features(**_given(found), **more, target=Path(target).stem)  # type: ignore[arg-type]
    return diagnose_features(**_given(found), target=None if target is None else str(target))


def diagnose_run(
    run: str | Path,
    data: str | Path | Dataset | None = None,
    *,
    target: str | Path | None = None,
    include_training: bool = False,
    device: torch.device,
) -> Diagnosis:
    """The diagnosis of a run on rows that it was not trained on.

    data: other data than its own; rows of it that the run was trained on are left out, unless include_training asks
    for them, and the notes say how many. target: the name of a domain, or samples without labels (see
    ``training.unlabelled.UnlabelledSamples``); by default the first held-out domain.
    """
    model = load_trained(run, device)
    known = untrained_outputs(run, model, data, include_training=include_training)
    names = known.domain_names
    options: dict[str, Any] = {"target": None if target is None else str(target)}
    outputs = None
    if target is None:
        options["target"] = next((name for name in model.config.test_domains if name in names), None)
    elif str(target) not in names:
        if not (Path(target).exists() or Path(target).suffix or os.sep in str(target)):
            samples = "Or name samples without labels: a folder of images, a .csv list, an .npz or a table."
            raise unknown("domain", str(target), names, samples)
        outputs = target_outputs(model, target)
        options = {
            "target": _free_name(Path(target).stem or str(target), names),
            "target_features": outputs.features,
            "target_logits": outputs.logits,
            "target_names": outputs.names,
        }
        if known.left_out:
            calibrated = outputs.logits / model.temperature
            options["target_priors"] = target_priors(
                model, known, calibrated, outputs.features, outputs.untrained_features
            )
    options |= _linear_head(model, known)
    found = diagnose_features(
        known.features,
        known.labels,
        known.domains,
        logits=None if "head_weight" in options and "target_logits" not in options else known.logits,
        class_names=model.config.spec.classes,
        domain_names=names,
        source_priors=model.training_priors,
        calibration=model.temperature,
        temperature=model.algorithm.traits.alignment_value("temperature", model.config.hparams, 1.0),
        trained_domains=() if known.left_out else model.config.spec.domains,
        **options,
    )
    found = dataclasses.replace(found, notes=(*model.notes, *known.notes, *found.notes))
    if outputs is not None:
        found = _with_thumbnails(found, outputs)
    recorded = RunFolder(run).path / "tracking.jsonl"
    return _with_tracking(found, read_tracking(recorded)) if recorded.exists() else found


def _linear_head(model: TrainedModel, known: LabelledOutputs) -> dict[str, np.ndarray]:
    """Weight and bias of the head by the names of the diagnosis' arguments; none where it is not linear in features."""
    head = getattr(model.algorithm, "head", None)
    if not isinstance(head, torch.nn.Linear) or head.in_features != known.features.shape[1]:
        return {}
    weight, bias = head.weight.detach().cpu().double().numpy(), head.bias.detach().cpu().double().numpy()
    if not np.allclose(known.features @ weight.T + bias, known.logits, atol=1e-3):  # the head reads something more
        return {}
    return {"head_weight": weight, "head_bias": bias}


def _free_name(name: str, taken: Sequence[str]) -> str:
    """A name for a target that no domain has."""
    return name if name not in taken else f"{name} (target)"


def _with_thumbnails(found: Diagnosis, outputs: TargetOutputs) -> Diagnosis:
    """The diagnosis with small copies of the target's unusual samples, and what was skipped in its notes."""
    assert found.target is not None
    unusual = tuple(dataclasses.replace(one, image=outputs.thumbnail(one.row)) for one in found.target.unusual)
    skipped = tuple(f"Left out: '{path}', {problem}." for path, problem in outputs.skipped[:MOST_SKIPPED])
    unnamed = len(outputs.skipped) - MOST_SKIPPED
    more = (f"{unnamed} more files were left out.",) if unnamed > 0 else ()
    target = dataclasses.replace(found.target, unusual=unusual)
    return dataclasses.replace(found, target=target, notes=(*found.notes, *skipped, *more))


def _with_tracking(found: Diagnosis, rows: Sequence[Mapping[str, Any]]) -> Diagnosis:
    """The diagnosis with what the run recorded along training."""
    if not rows:
        return found
    followed = tracking([r["step"] for r in rows], [r["alignment"] for r in rows], [r["gap"] for r in rows])
    first = {row["step"]: row for row in rows if "before" in row}  # one inner step, however many targets
    inner = None
    if first:
        inner = contraction(
            list(first),
            [row["before"] for row in first.values()],
            [row["after"] for row in first.values()],
            alignment_after=[row["alignment_after"] for row in first.values()],
            alignment_weight=next(iter(first.values()))["weight"],
        )
    return dataclasses.replace(found, tracking=followed, contraction=inner)


def _given(found: FeatureSet) -> dict[str, Any]:
    """The arrays that a file has, by the names of the diagnosis' arguments."""
    for name in ("labels", "domains"):
        if getattr(found, name) is None:
            raise InputError(f"the features have no array '{name}': save it beside 'features', one value a sample.")
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
