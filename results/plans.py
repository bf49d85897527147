"""What is trained: sweep plans as plain dicts, one function for each study. See docs/results/protocol.md."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Plan = dict[str, Any]

VENDORS = ("apple", "facebook", "google", "joypixels", "samsung", "twitter", "windows")
TESTED = ("windows", "twitter", "samsung", "apple")
KEPT_OUT = "windows"  # of the decision between readings
STEPS, EVERY = 300, 30
FROZEN: Plan = {
    "preset": "arrays",
    "freeze_backbone": True,
    "steps": STEPS,
    "evaluate_every": EVERY,
    "hparams": {"batch_size": 32},
    "search": {"weight_decay": {"log_uniform": [1e-6, 1e-2]}},  # the preset no longer searches it
    "domains": {"emoji": VENDORS, "emoji-mlt": VENDORS},
}


# RC-Align's defaults were changed after the studies of this module: these are the paper's
PAPER = {
    "meta_step": "sgd",
    "episode_weights": "equal",
    "logit_adjustment": 0.0,
    "target_prior": "equal",
    "weight_average": False,
}


def rc_align(average: str | None = None, **hparams: Any) -> Plan:
    """A variant of RC-Align as in its paper."""
    settings = {**PAPER, "mixup_alpha": 0.2, **hparams}
    return {"algorithm": "RC-Align", "hparams": settings, **({"average": average} if average else {})}


# the paper's ablation: M = meta step, DA = alignment, Mix = manifold mixup; RC-Align is M + DA + Mix
ABLATION = {
    "M": rc_align(alignment_weight=0.0, outer_alignment=0.0, mixup_alpha=0.0),
    "DA": rc_align(meta=False, mixup_alpha=0.0),
    "M + DA": rc_align(mixup_alpha=0.0),
    "DA + Mix": rc_align(meta=False),
}
RC_ALIGN = {"RC-Align": rc_align()}
AVERAGED = {"RC-Align + SWAD": rc_align("swad")}
PAST_THE_PAPER = {
    "RC-Align, adjusted": rc_align(logit_adjustment=1.0),
    "RC-Align, ema, adjusted + SWAD": rc_align("swad", centroids="ema", logit_adjustment=1.0),
}
OTHER_READING = {"RC-Align, outer alignment": rc_align(outer_alignment=1.0)}
FOR_TAILS = {  # where classes are rare
    "RC-Align, ema": rc_align(centroids="ema"),
    "RC-Align, shrunk": rc_align(centroids="shrunk"),
    "BSoftmax + SWAD": {"algorithm": "BSoftmax", "average": "swad"},
}
TABLE = (
    *("ERM", "MLDG", "CORAL", "Mixup", "GroupDRO", "SagNet", "Fish", "BSoftmax", "CRT", "BoDA_r", "BoDA_r,c"),
    *("SWAD", "SAGM", "RC-Align", "RC-Align + SWAD"),
)
COMPOUND = (
    *("ERM", "MLDG", "CORAL", "GroupDRO", "Fish", "SAGM", "SWAD", "CRT", "BoDA_r", "BSoftmax", "BSoftmax + SWAD"),
    *("RC-Align", *AVERAGED, *PAST_THE_PAPER),
)
VARIANTS = {**RC_ALIGN, **AVERAGED, **ABLATION, **PAST_THE_PAPER, **OTHER_READING, **FOR_TAILS}


def searched(labels: Sequence[str], **where: Any) -> Plan:
    """Every method with 8 draws, the winner with three seeds."""
    return {
        **FROZEN,
        **where,
        "algorithms": labels,
        "variants": {name: VARIANTS[name] for name in labels if name in VARIANTS},
        "seed_rule": "tune-then-repeat",
        "draws": 8,
        "seeds": 3,
    }


def lodo() -> Plan:
    """One vendor out."""
    labels = (*TABLE, *ABLATION, *PAST_THE_PAPER, *OTHER_READING)
    return searched(labels, data="emoji", protocol="lodo", test_domains=TESTED)


def mdlt() -> Plan:
    """Long-tailed training sets; all vendors train and are tested."""
    labels = (*TABLE, *ABLATION, *PAST_THE_PAPER, *FOR_TAILS, *OTHER_READING)
    return searched(labels, data="emoji-mlt", protocol="mdlt")


def compound() -> Plan:
    """Both shifts at once: long-tailed training sets, and one vendor out."""
    return searched(COMPOUND, data="emoji-mlt", protocol="lodo", test_domains=TESTED)


# --- which reading of the paper ---------------------------------------------------------------------------------------

OPEN: dict[str, tuple[Any, ...]] = {
    "meta_gradient": ("mldg", "outer", "exact"),
    "denominator": ("negatives", "all_but_own"),
    "centroids": ("batch", "ema", "shrunk"),
    "episodes": ("one", "all"),
    "outer_alignment": (0.0, 1.0),
}
SHIPPED = "mldg negatives batch one 0"
TO_THE_LETTER = "outer negatives batch all 0"


def word(value: Any) -> str:
    """A choice as it stands in the name of a reading."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def readings() -> dict[str, Plan]:
    """Name -> variant, of all 72."""
    found = {}
    for values in itertools.product(*OPEN.values()):
        name = " ".join(map(word, values))
        variant = rc_align(**dict(zip(OPEN, values, strict=True)))
        if "all" in values:  # every image counts once for each of the five training vendors
            variant |= {"steps": STEPS // 5, "evaluate_every": EVERY // 5}
        found[name] = variant
    return found


def screen() -> Plan:
    return _decision(list(readings()), draws=4, seeds=1, held_out=["twitter"])


def affordable(name: str) -> bool:
    """Whether a step costs about as much as plain training: one episode, first order."""
    meta_gradient, _, _, episodes, _ = name.split()
    return meta_gradient != "exact" and episodes == "one"


def final(best: Sequence[str]) -> Plan:
    """best: the three best of the screen, and the best affordable one."""
    names = list(dict.fromkeys([*best, SHIPPED, TO_THE_LETTER]))
    return _decision(names, draws=8, seeds=2, held_out=["twitter", "samsung"])


def _decision(names: Sequence[str], draws: int, seeds: int, held_out: Sequence[str]) -> Plan:
    return {
        **FROZEN,
        "data": ["emoji", "emoji-mlt"],
        "protocol": "lodo",
        "test_domains": [[KEPT_OUT, name] for name in held_out],
        "algorithms": names,
        "variants": {name: readings()[name] for name in names},
        "seed_rule": "domainbed",
        "draws": draws,
        "seeds": seeds,
    }


# --- images -----------------------------------------------------------------------------------------------------------

LEADERS: dict[str, Plan | None] = {
    "ERM": None,
    "ERM + SWA": {"algorithm": "ERM", "average": "swa"},
    "Fish": None,
    "RC-Align": rc_align(),
    "RC-Align + SWA": rc_align("swa"),
}
LEADERS_LONG_TAILED: dict[str, Plan | None] = {
    "ERM": None,
    "BSoftmax": None,
    "RC-Align": rc_align(),
    "RC-Align, adjusted": PAST_THE_PAPER["RC-Align, adjusted"],
}


def _images(methods: Mapping[str, Plan | None], steps: int, **more: Any) -> Plan:
    """On images: no search, the same settings for all, three seeds."""
    return {
        "preset": "default",
        "hparams": {"batch_size": 8, "learning_rate": 3e-4},
        "domains": {"emoji": VENDORS, "emoji-mlt": VENDORS},
        "algorithms": list(methods),
        "variants": {name: variant for name, variant in methods.items() if variant},
        "seeds": 3,
        "steps": steps,
        "evaluate_every": steps // 2,
        **more,
    }


def fine_tuning() -> Plan:
    """The whole backbone, one vendor out. SWA, as SWAD needs many evaluations."""
    return _images(LEADERS, 120, data="emoji", protocol="lodo", test_domains=TESTED[:2])


def fine_tuning_longer() -> Plan:
    """Whether RC-Align only needs more steps."""
    methods = {name: LEADERS[name] for name in ("ERM", "RC-Align")}
    return _images(methods, 300, data="emoji", protocol="lodo", test_domains=TESTED[:2], seeds=2)


def fine_tuning_long_tailed() -> Plan:
    return _images(LEADERS_LONG_TAILED, 120, data="emoji-mlt", protocol="mdlt")


def from_scratch() -> Plan:
    """Two networks without pretrained weights: a vision transformer and a small convolutional one."""
    variants = {}
    for short, backbone, size in (("ViT", "vit_tiny_patch16_224", 64), ("ResNet-10", "resnet10t", 72)):
        for algorithm in ("ERM", "RC-Align"):
            method = rc_align() if algorithm == "RC-Align" else {"algorithm": algorithm}
            variants[f"{algorithm}, {short}"] = {**method, "backbone": backbone, "image_size": size}
    without = {"weights": "none", "freeze_batch_norm": False}
    return _images(variants, 400, data="emoji", protocol="lodo", test_domains=TESTED[:2], **without)


def gap() -> Plan:
    """Alignment loss and generalisation gap along training."""
    return {
        **FROZEN,
        "data": "emoji",
        "protocol": "lodo",
        "test_domains": TESTED,
        "algorithms": ["ERM", "DA", "RC-Align"],
        "variants": {"DA": ABLATION["DA"], **RC_ALIGN},
        "seeds": 3,
        "track_bound": 10,
    }


# --- as a file --------------------------------------------------------------------------------------------------------


def write(plan: Mapping[str, Any], path: Path) -> Path:
    """The plan as TOML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in plan.items()) + "\n")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
