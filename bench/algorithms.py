"""The step cost of every algorithm, with its default hyperparameters, relative to ERM on the same batch.

ResNet-18, 3 domains x 16 images of 96 px: half the default batch, so that the table takes minutes. With fewer images
every further pass weighs more. Published variants that need more passes (``--preset domainbed``) cost more.
"""

from __future__ import annotations

import json
from pathlib import Path

import rcalign.algorithms
from bench.core import batch, model
from bench.timing import Row, interleaved, ratio, row
from rcalign import registry
from rcalign.algorithms.base import Algorithm
from rcalign.types import Batch

LIMITS = {
    1.15: [
        *("MLDG", "CORAL", "MMD", "IRM", "VREx", "GroupDRO", "Mixup", "Focal", "LDAM", "CBLoss", "BSoftmax"),
        *(
            "SD",
            "EQRM",
            "RDM",
            "IB_ERM",
            "IB_IRM",
            "CausIRL_CORAL",
            "CausIRL_MMD",
            "ERM++",
            "SelfReg",
            "URM",
            "CLIPood",
        ),
    ],
    1.3: ["Fish"],
    1.5: ["DANN", "CDANN", "MTL", "ARM", "SagNet", "Fishr"],
}
OTHERS = 2.2
PER_DOMAIN = 16
UNJUDGED = {  # cost what their method costs
    "ADRMX": "two networks, forward in every step, backward in every third",
    "CAD": "one pass, and a matrix of all pairs of samples",
    "CondCAD": "one pass, and a matrix of all pairs of samples",
    "IGA": "a backward pass through the backward pass",
    "MLIR": "four forward and seven backward passes by method",
    "Transfer": "three forward and two backward passes",
    "TRM": "one pass, and 30 steps of each domain's classifier",
}
EARLY = (
    "start_step",
    "warm_up_steps",
    "anneal_steps",
    "bottleneck_anneal_steps",
)  # hyperparameters that end such steps
COSTS = Path(rcalign.algorithms.__file__).with_name("costs.json")


def goal(name: str) -> str:
    if name in UNJUDGED:
        return "none"
    return f"<= {next((most for most, names in LIMITS.items() if name in names), OTHERS)}"


def title(name: str) -> str:
    why = f"; {UNJUDGED[name]}" if name in UNJUDGED else ""
    return f"{name} step / ERM step (ResNet-18, 3 domains x {PER_DOMAIN}{why})"


def prepared(name: str, data: Batch) -> Algorithm:
    """Ready for its usual step: the first stage taken over, past the steps in which it is plain training, statistics of
    the training set in place."""
    made = model(name, "resnet18", 96)
    made.steps_done = int(max(getattr(made.hparams, field, 0) for field in EARLY))
    if made.traits.stage_one is not None:
        made.start_from(model(made.traits.stage_one, "resnet18", 96).state_dict())
    made.refresh(made.embed(data.x), data.y, data.domain)
    return made


def stepped(made: Algorithm, data: Batch) -> None:
    if made.refresh_due():
        made.refresh(made.embed(data.x), data.y, data.domain)
    made.step(data)


def measure(rounds: int = 4) -> list[Row]:
    data = batch(96, PER_DOMAIN)
    costs: dict[str, float] = {}
    plain = prepared("ERM", data)
    for name in registry.names():
        if name == "ERM":
            continue
        other = prepared(name, data)  # one at a time: forty networks at once would not fit everywhere
        turns = 1 + getattr(other.hparams, "discriminator_steps", 1)  # some do different work by turns
        actions = {"ERM": lambda: stepped(plain, data), name: lambda m=other: stepped(m, data)}  # type: ignore[misc]
        costs[name] = ratio(interleaved(actions, -(-rounds // turns) * turns, warm_up=1), name, "ERM", turns)
    COSTS.write_text(
        json.dumps({"ERM": 1.0, **{name: round(cost, 2) for name, cost in costs.items()}}, indent=2) + "\n"
    )
    return [row(title(name), cost, goal(name)) for name, cost in costs.items()]
