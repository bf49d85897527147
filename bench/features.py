"""Steps on frozen features and on rows: our training loop against a bare torch loop, and RC-Align against ERM.

A step takes a few milliseconds there, so that whatever is done around the arithmetic shows. The bare loop draws rows,
computes the same network, loss and gradient, and makes the same fused Adam step: nothing is checked, logged or saved.
A second bare loop passes two thirds of the rows, looks ahead by Adam's step on their gradient, and passes the last
third there: what such a meta step costs before a loss of its own, and so the least that RC-Align can take.
What is compared is processor time of a whole turn of the loop, one thread, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.adam import adam

from bench.timing import Row, row
from rcalign.data.source import Arrays, Dataset, from_names
from rcalign.models.backbones import Rows
from rcalign.store.run_folder import RunFolder
from rcalign.training.job import Job, prepare_run
from rcalign.training.loop import run_loop
from rcalign.training.options import TrainOptions
from rcalign.training.run import make_model

SETTINGS = {"frozen features (3 domains x 64 rows of 1,280)": 1280, "rows (3 domains x 64 rows of 20)": 20}
DOMAINS, CLASSES, PER_PAIR, BATCH = 4, 7, 100, 64
STEPS, WARM_UP, ROUNDS = 240, 40, 5
PAPER = {"meta_step": "sgd", "episode_weights": "equal", "mixup_alpha": 0.2, "logit_adjustment": 0.0}


def dataset(features: int, domains: int = DOMAINS, classes: int = CLASSES, per_pair: int = PER_PAIR) -> Dataset:
    """Normal clouds, one for each (domain, class) pair."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(classes), domains * per_pair)
    domain = np.repeat(np.arange(domains), classes * per_pair)
    x = rng.normal(size=(len(y), features)) + rng.normal(size=(classes, features))[y]
    classes_of, domains_of = [f"class {c}" for c in y], [f"domain {d}" for d in domain]
    return from_names("clouds", Arrays(x.astype(np.float32)), classes_of, domains_of, fingerprint="clouds")


def ready(data: Dataset, algorithm: str, steps: int = STEPS, **hparams: Any) -> Job:
    options = TrainOptions(
        algorithm=algorithm,
        test_domains=(data.domains[-1],),
        steps=steps,
        evaluate_every=steps,
        device="cpu",
        hparams={"batch_size": BATCH, **hparams},
    )
    return prepare_run(options, data)


class Clock:
    """Stands where the loop's tracker may stand, and notes the processor time of this process after every step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def keep_until(self, step: int) -> None:
        pass

    def record(self, model: nn.Module, step: int) -> None:
        self.times.append(time.process_time())


def in_our_loop(job: Job) -> float:
    """Seconds of one step of a run, evaluation left out."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder, "run"))
        run.begin(job.config, resume=False)
        try:
            run_loop(make_model(job.task, job.config), job.task, run, job.config, tracker=clock)  # type: ignore[arg-type]
        finally:
            run.release()
    return (clock.times[-1] - clock.times[WARM_UP]) / (len(clock.times) - 1 - WARM_UP)


def in_a_bare_loop(job: Job, ahead: bool = False) -> float:
    """Seconds of one step of ERM's arithmetic; ahead: of a first-order step that holds out the last domain's rows."""
    task = job.task
    content, y = task.inputs.content, torch.from_numpy(task.dataset.y)
    assert isinstance(content, np.ndarray)
    pools = [torch.from_numpy(rows) for rows in task.splits.train.values()]
    network = nn.Sequential(Rows(content.shape[1]), nn.Linear(256, task.spec.num_classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(job.config.steps):
        rows = torch.cat([pool[torch.randint(len(pool), (BATCH,))] for pool in pools])
        x = torch.from_numpy(content[rows.numpy()])
        optimizer.zero_grad(set_to_none=True)
        if ahead:
            F.cross_entropy(network(x[:-BATCH]), y[rows[:-BATCH]]).backward()
            moved = a_step_ahead(network, optimizer)
            F.cross_entropy(torch.func.functional_call(network, moved, (x[-BATCH:],)), y[rows[-BATCH:]]).backward()
        else:
            F.cross_entropy(network(x), y[rows]).backward()
        optimizer.step()
        times.append(time.process_time())
    return (times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)


def a_step_ahead(network: nn.Module, optimizer: torch.optim.Adam) -> dict[str, torch.Tensor]:
    """Parameters after the optimizer's next step, by name; a gradient there adds to the network's own."""
    named = dict(network.named_parameters())
    moved = [p.detach().clone() for p in named.values()]
    gradients = [p.grad for p in named.values()]
    if optimizer.state:
        states = [optimizer.state[p] for p in named.values()]
        first, second, steps = ([state[key].clone() for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        names = ("lr", "eps", "weight_decay", "amsgrad", "maximize", "fused")
        options = {name: optimizer.param_groups[0][name] for name in names}
        adam(moved, gradients, first, second, [], steps, beta1=0.9, beta2=0.999, **options)  # type: ignore[arg-type]
    for value, gradient in zip(moved, gradients, strict=True):
        value.requires_grad_().grad = gradient
    return dict(zip(named, moved, strict=True))


def in_turns(actions: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """What each action returns, once in every round; the order reverses from round to round."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for k in range(rounds):
        for name in list(actions) if k % 2 else reversed(list(actions)):
            found[name].append(actions[name]())
    return found


def measure(rounds: int = ROUNDS) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for where, features in SETTINGS.items():
            data = dataset(features)
            erm, ours, paper = ready(data, "ERM"), ready(data, "RC-Align"), ready(data, "RC-Align", **PAPER)
            found = in_turns(
                {
                    "bare": lambda job=erm: in_a_bare_loop(job),  # type: ignore[misc]
                    "bare, ahead": lambda job=erm: in_a_bare_loop(job, ahead=True),  # type: ignore[misc]
                    "ERM": lambda job=erm: in_our_loop(job),  # type: ignore[misc]
                    "RC-Align": lambda job=ours: in_our_loop(job),  # type: ignore[misc]
                    "the paper's": lambda job=paper: in_our_loop(job),  # type: ignore[misc]
                },
                rounds,
            )
            rows += [
                row(f"ERM step / bare torch loop, {where}", middle(found, "ERM", "bare"), "<= 1.15"),
                row(f"RC-Align step / ERM step, {where}", middle(found, "RC-Align", "ERM"), "<= 1.35"),
                row(f"RC-Align step, paper's settings / ERM step, {where}", middle(found, "the paper's", "ERM")),
                row(f"bare torch loop with a look-ahead / without, {where}", middle(found, "bare, ahead", "bare")),
                row(f"milliseconds of an ERM step, {where}", 1000 * statistics.median(found["ERM"])),
            ]
    finally:
        torch.set_num_threads(threads)
    return rows


def middle(found: dict[str, list[float]], of: str, to: str) -> float:
    """Median over rounds of a ratio within the round."""
    return statistics.median(a / b for a, b in zip(found[of], found[to], strict=True))
