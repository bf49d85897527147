"""What the theory speaks of, measured along training: the alignment loss of an unseen domain against the gap to it,
and whether the inner step contracts its objective. Measuring changes nothing in the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, evaluating
from rcalign.functional.alignment import alignment_loss, centroids
from rcalign.store.json_files import append_line, read_lines, write_lines
from rcalign.store.run_folder import RunFolder
from rcalign.training.task import Task

MOST_IMAGES = 200  # rows of a domain that are measured, the same ones every time
MOST_ROWS = 5000  # the same for arrays and for frozen features, which cost next to nothing
SUPPORT = 24  # rows of a domain in the inner objective


class Tracker:
    """Writes ``tracking.jsonl`` into a run folder: one row for each target domain, every so many steps.

    alignment: the target's alignment loss against the source domains' centroids (normalised features, temperature 1,
    all pairs but the own in the denominator: the loss of Theorem 2). gap: the target's error less the mean source
    error. before, after, alignment_after: J = CE + w DA of all source domains but one, and the same after a gradient
    step; w and the step size are the algorithm's own where it has them, else 1 and 1e-3.

    Every domain is measured on all of its validation (or test) rows, or on a fixed random sample of them, stratified by
    class: ``MOST_IMAGES`` where a network reads images, ``MOST_ROWS`` otherwise. The inner objective reads ``SUPPORT``
    of them.
    """

    def __init__(self, task: Task, folder: RunFolder, every: int) -> None:
        self.every = every
        self._file = folder.path / "tracking.jsonl"
        y, most = task.dataset.y, MOST_ROWS if task.inputs.augmentation is None else MOST_IMAGES
        val, test = task.splits.val, task.splits.test
        self._sources = [
            stratified_sample(rows, y[rows], most) for name, rows in val.items() if name in task.spec.domains
        ]
        self._targets = {
            name: stratified_sample(rows, y[rows], most) for name, rows in test.items() if name not in task.spec.domains
        }
        self._supports = [stratified_sample(rows, y[rows], SUPPORT) for rows in self._sources]
        self._task = task

    def keep_until(self, step: int) -> None:
        """Drops rows later than a step, on resuming."""
        rows = read_tracking(self._file) if self._file.exists() else []
        write_lines(self._file, [row for row in rows if row["step"] <= step])

    def record(self, model: Algorithm, step: int) -> None:
        """Measures and appends, where a step is due."""
        if step % self.every or not self._targets:
            return
        with evaluating(model), torch.no_grad():
            sources = [self._outputs(model, rows) for rows in self._sources]
            targets = {name: self._outputs(model, rows) for name, rows in self._targets.items()}
        features = torch.cat([z for z, _, _ in sources])
        y = torch.cat([labels for _, _, labels in sources])
        domain = torch.cat([torch.full_like(labels, k) for k, (_, _, labels) in enumerate(sources)])
        mu, present = centroids(features, y, domain, len(sources), model.spec.num_classes)
        source_error = float(np.mean([_error(logits, labels) for _, logits, labels in sources]))
        inner = self._inner(model, step)
        for name, (z, logits, labels) in targets.items():
            unseen = torch.full_like(labels, len(sources))
            loss = alignment_loss(z, labels, unseen, mu, present, denominator="all_but_own")
            gap = _error(logits, labels) - source_error
            append_line(self._file, {"step": step, "target": name, "alignment": float(loss), "gap": gap, **inner})

    def _outputs(self, model: Algorithm, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        pieces = [model(x) for x in self._task.inputs.batches(rows)]
        labels = torch.from_numpy(self._task.dataset.y[rows]).to(pieces[0][0].device)
        return torch.cat([z for z, _ in pieces]).float(), torch.cat([s for _, s in pieces]).float(), labels

    def _inner(self, model: Algorithm, step: int) -> dict[str, float]:
        """J of the support before and after one gradient step, the source domains taking turns as the one left out."""
        if len(self._sources) < 3:  # the support needs two domains to align
            return {}
        left_out = (step // self.every) % len(self._sources)
        rows = [part for k, part in enumerate(self._supports) if k != left_out]
        y = torch.from_numpy(np.concatenate([self._task.dataset.y[part] for part in rows])).to(self._task.inputs.device)
        domain = torch.cat([torch.full((len(part),), k) for k, part in enumerate(rows)]).to(y.device)
        x = torch.cat(list(self._task.inputs.batches(np.concatenate(rows))))
        hparams = dataclasses.asdict(model.hparams)
        weight = model.traits.alignment_value("weight", hparams, 0.0) or 1.0
        rate = model.traits.alignment_value("inner_rate", hparams, 1e-3)

        def objective(output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            features, logits = output
            mu, present = centroids(features, y, domain, len(rows), model.spec.num_classes)
            da = alignment_loss(features, y, domain, mu, present, denominator="all_but_own")
            return F.cross_entropy(logits, y) + weight * da, da

        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with evaluating(model), torch.enable_grad():
            before, _ = objective(model(x))
            gradients = torch.autograd.grad(before, list(named.values()), allow_unused=True)
        with evaluating(model), torch.no_grad():
            ahead = {
                name: p if g is None else p - rate * g for (name, p), g in zip(named.items(), gradients, strict=True)
            }
            after, da = objective(torch.func.functional_call(model, ahead, (x,)))
        return {"before": float(before.detach()), "after": float(after), "alignment_after": float(da), "weight": weight}


def stratified_sample(rows: np.ndarray, y: np.ndarray, size: int, seed: int = 0) -> np.ndarray:
    """``size`` of the rows (n,), ascending, drawn at random so that every class of y (n,) has its share, rounded up or
    down; all of them if there are no more.

    >>> stratified_sample(np.arange(100), np.repeat([0, 1], [75, 25]), 8)[-2:] >= 75
    array([ True,  True])
    >>> stratified_sample(np.array([3, 5]), np.array([0, 1]), 8)
    array([3, 5])
    """
    if len(rows) <= size:
        return rows
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    evenly_spaced = (np.arange(size) * len(rows) + len(rows) // 2) // size
    return np.sort(rows[by_class[evenly_spaced]])


def read_tracking(path: Path | str) -> list[dict[str, Any]]:
    """The whole rows of a ``tracking.jsonl``; a last row that a kill cut short is left out."""
    return read_lines(Path(path))[0]


def _error(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) != y).double().mean())
