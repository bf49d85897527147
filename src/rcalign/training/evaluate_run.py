"""The figures of a trained run, on its own test parts or on other data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rcalign.data.source import Dataset
from rcalign.errors import InputError
from rcalign.evaluation.evaluate import Part, calibration, class_recalls, confusions, summary
from rcalign.training.run_data import (
    class_positions,
    loaded,
    own_data,
    own_splits,
    rows_by_domain,
    without_training_rows,
)
from rcalign.training.trained import load_trained


def evaluate_run(
    run: str | Path, data: str | Path | Dataset | None, *, include_training: bool, device: torch.device
) -> dict[str, Any]:
    """What ``api.evaluate`` returns."""
    model = load_trained(run, device)
    config = model.config
    notes = model.notes
    rows_of: Mapping[str, np.ndarray]
    if data is None:
        dataset = own_data(run, model)
        rows_of = own_splits(dataset, config).test
        if not rows_of:
            raise InputError(f"'{run}' was trained on all its domains, so nothing is left to test on: name other data.")
    else:
        dataset = loaded(data, model)
        rows_of, seen = without_training_rows(run, model, dataset, rows_by_domain(dataset), include_training)
        notes += seen
    position = class_positions(model, dataset)
    parts = []
    for name, rows in rows_of.items():
        logits = [model.logits(x).float().cpu().numpy() for x in model.inputs(dataset, rows)]
        parts.append(Part(name, "test", np.concatenate(logits), position[dataset.y[rows]]))
    counts = config.spec.count_matrix.numpy()
    return {
        "algorithm": config.algorithm,
        "data": str(data) if data is not None else config.data,
        **summary(parts, list(config.spec.domains), counts, dataset.shots, model.temperature),
        "calibration": calibration(parts, (), model.temperature),
        "recall": class_recalls(parts, config.spec.classes),
        "confusion": confusions(parts, config.spec.num_classes),
        "classes": list(config.spec.classes),
        "notes": notes,
    }
