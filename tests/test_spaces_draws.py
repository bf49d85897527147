"""The first draws of hyperparameters are pinned, and the spaces are those that the peers' own draws came from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcalign import registry, spaces
from rcalign.algorithms.base import BaseHparams
from rcalign.spaces import Choice, IntUniform, LogUniform, OneMinus, Space, Uniform, fields_of
from rcalign.sweeps.plan import expand
from rcalign.sweeps.plan_file import read_plan

PRESET_OF = {"DomainBed 7df6f06": "domainbed", "DomainBed b93c22a": "domainbed-2024", "BoDA 2efbfef": "mdlt"}

# recorded name -> ours, where they differ; what is not here and no field of ours must be in NOT_OURS
OURS = {
    "lr": "learning_rate",
    "resnet_dropout": "dropout",
    "irm_lambda": "penalty_weight",
    "vrex_lambda": "penalty_weight",
    "irm_penalty_anneal_iters": "anneal_steps",
    "vrex_penalty_anneal_iters": "anneal_steps",
    "groupdro_eta": "weight_rate",
    "mldg_beta": "meta_weight",
    "n_meta_test": "meta_test_domains",
    "mmd_gamma": "penalty_weight",
    "mtl_ema": "batch_share",
    "sag_w_adv": "adversary_weight",
    "rsc_f_drop_factor": "feature_drop",
    "rsc_b_drop_factor": "sample_drop",
    "meta_lr": "meta_rate",
    "max_m": "max_margin",
    "boda_start_step": "start_step",
    "feat_update_freq": "refresh_every",
}
# the adversarial methods have one pair of rates for each side, and the common ones have no effect there
ADVERSARIAL = {
    "lr": None,
    "weight_decay": None,
    "lr_g": "learning_rate",
    "weight_decay_g": "weight_decay",
    "lr_d": "discriminator_rate",
    "weight_decay_d": "discriminator_decay",
    "lambda": "adversary_weight",
    "d_steps_per_g_step": "discriminator_steps",
    "grad_penalty": "gradient_penalty",
    "mlp_width": "discriminator_width",
    "mlp_depth": "discriminator_depth",
    "mlp_dropout": "discriminator_dropout",
}
# the algorithms of hparams-more.json, by our names: what their own hyperparameters are called here
MORE: dict[str, dict[str, str | None]] = {
    "ANDMask": {"tau": "threshold"},
    "CausIRL_CORAL": {},
    "CausIRL_MMD": {},
    "EQRM": {"eqrm_quantile": "quantile", "eqrm_burnin_iters": "anneal_steps", "eqrm_lr": "annealed_rate"},
    "ERM++": {"linear_lr": "warm_up_rate"},
    "Fishr": {"lambda": "penalty_weight", "penalty_anneal_iters": "anneal_steps", "ema": "momentum"},
    "IB_ERM": {"ib_lambda": "penalty_weight", "ib_penalty_anneal_iters": "anneal_steps"},
    "IB_IRM": {"ib_lambda": "bottleneck_weight", "ib_penalty_anneal_iters": "bottleneck_anneal_steps"},
    "IGA": {"penalty": "penalty_weight"},
    "RDM": {
        "rdm_lambda": "matching_weight",
        "rdm_penalty_anneal_iters": "anneal_steps",
        "rdm_lr": "annealed_rate",
    },
    "SANDMask": {"tau": "threshold", "k": "sharpness"},
    "SD": {"sd_reg": "penalty_weight"},
    "ADRMX": {
        "cnt_lambda": "contrast_weight",
        "dclf_lambda": "domain_weight",
        "disc_lambda": "adversary_weight",
        "rmxd_lambda": "remix_weight",
        "d_steps_per_g_step": "discriminator_steps",
        "mlp_width": "discriminator_width",
        "mlp_depth": "discriminator_depth",
        "mlp_dropout": "discriminator_dropout",
    },
    **{
        name: {
            "lmbda": "penalty_weight",
            "is_normalized": "normalized",
            "is_project": "projected",
            "is_flipped": "flipped",
        }
        for name in ("CAD", "CondCAD")
    },
    "SelfReg": {},
    "Transfer": {
        "t_lambda": "gap_weight",
        "delta": "radius",
        "d_steps_per_g": "adversary_steps",
        "lr_d": "adversary_rate",
        "gda": None,  # one choice of ours for its optimizer, tested with the recorded steps
        "beta1": None,  # no effect there
        "weight_decay_d": None,
    },
    "TRM": {"cos_lambda": "influence_weight", "iters": "start_step", "groupdro_eta": "weight_rate"},
    "URM": {
        "urm": None,  # has one value
        "urm_adv_lambda": "adversary_weight",
        "urm_discriminator_label_smoothing": "discriminator_smoothing",
        "urm_discriminator_optimizer": "discriminator_optimizer",
        "urm_discriminator_hidden_layers": "discriminator_layers",
        "urm_generator_output": "activation",
        "urm_discriminator_lr": "discriminator_rate",
    },
}
NOT_OURS = {  # choices of backbone, data and stage, which are not hyperparameters of an algorithm here
    "data_augmentation",
    "resnet18",
    "resnet50_augmix",
    "dinov2",
    "vit",
    "vit_attn_tune",
    "vit_dropout",
    "freeze_bn",
    "lars",
    "linear_steps",
    "class_balanced",
    "nonlinear_classifier",
    "stage1_model",
}
BY_DATA_SET = {  # the peers' differ on DomainNet: of most algorithms, of one
    "": {"batch_size", "start_step", "refresh_every"},
    "RDM": {"batch_size", "matching_weight", "variance_weight", "anneal_steps"},
}
NAMED = {"BoDA": "BoDA_r", "ERMPlusPlus": "ERM++"}  # the peer's name -> ours

PINNED = """
ERM domainbed 1 batch_size=33 dropout=0 learning_rate=0.000104 weight_decay=0.000623
ERM domainbed 2 batch_size=19 dropout=0.5 learning_rate=7.06e-05 weight_decay=3.03e-06
ERM mdlt 1 batch_size=24 dropout=0 learning_rate=0.000104 weight_decay=0.000125
ERM mdlt 2 batch_size=24 dropout=0.5 learning_rate=7.06e-05 weight_decay=2.29e-06
ERM rc-align 1 batch_size=24 dropout=0 learning_rate=0.000227 weight_decay=0.000623
ERM rc-align 2 batch_size=24 dropout=0.5 learning_rate=0.000135 weight_decay=3.03e-06
ERM arrays 1 batch_size=251 dropout=0 learning_rate=0.000718 weight_decay=0
ERM arrays 2 batch_size=66 dropout=0.5 learning_rate=0.000428 weight_decay=0
IRM domainbed 1 anneal_steps=6 penalty_weight=303
IRM domainbed 2 anneal_steps=98 penalty_weight=5.78e+03
Mixup domainbed 1 mixup_alpha=0.1
Mixup domainbed 2 mixup_alpha=0.1
Mixup domainbed-2024 1 mixup_alpha=2.64
Mixup domainbed-2024 2 mixup_alpha=0.665
MLDG domainbed 1 meta_weight=2.58
MLDG domainbed 2 meta_weight=4.1
MLDG domainbed-2024 1 meta_test_domains=1 meta_weight=2.58
MLDG domainbed-2024 2 meta_test_domains=2 meta_weight=4.1
RSC default 1 feature_drop=0.0798 sample_drop=0.0287
RSC default 2 feature_drop=0.397 sample_drop=0.303
Fish mdlt 1 meta_rate=0.05
Fish mdlt 2 meta_rate=0.5
RC-Align rc-align 1 alignment_weight=0.1 inner_rate=0.000141 mixup_alpha=0.74 outer_weight=0.178 temperature=1.14
RC-Align rc-align 2 alignment_weight=0.5 inner_rate=0.000255 mixup_alpha=0.47 outer_weight=0.525 temperature=1.37
DANN domainbed 1 adversary_weight=2.98 beta1=0 discriminator_decay=0.00126 discriminator_depth=3 \
discriminator_dropout=0.5 discriminator_rate=1.48e-05 discriminator_steps=1 discriminator_width=291 \
gradient_penalty=0.0157
DANN domainbed 2 adversary_weight=0.0275 beta1=0.5 discriminator_decay=0.00101 discriminator_depth=5 \
discriminator_dropout=0.1 discriminator_rate=6.76e-05 discriminator_steps=2 discriminator_width=101 \
gradient_penalty=0.0338
"""


def drawn(name: str, preset: str, seed: int) -> str:
    """One line: the searched hyperparameters of a draw; those that all share are shown for ERM only."""
    cls = registry.get(name).algorithm.Hparams
    hparams = spaces.draw(cls, preset, seed)
    shared = set() if name == "ERM" else set(fields_of(BaseHparams))
    searched = {key for key, note in fields_of(cls).items() if note.space_in(preset) is not None}
    values = {key: getattr(hparams, key) for key in searched - shared}
    shown = (f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())
    return " ".join([name, preset, str(seed), *sorted(shown)])


def contains(space: Space, value: Any) -> bool:
    """Whether a space can give a value, up to rounding."""
    if isinstance(space, Choice):
        return value in space.values
    if isinstance(space, OneMinus):
        return contains(space.space, 1 - value)
    if isinstance(space, LogUniform) and space.integer:
        return int(value) == value and int(space.low) <= value <= int(space.high)
    if isinstance(space, IntUniform):
        return int(value) == value and space.low <= value <= space.high
    assert isinstance(space, (Uniform, LogUniform))
    return space.low * (1 - 1e-9) <= value <= space.high * (1 + 1e-9)


def recorded(reference: Path, peer: str, *, by_data_set: bool = False) -> list[tuple[str, str, bool, dict[str, Any]]]:
    """(our algorithm, data set, whether it is the default, our field -> recorded value).

    by_data_set: with what the peers change for a data set, which recipes have and presets have not.
    """
    rows = []
    files = [reference / "parity" / "protocol" / name for name in ("hparams.json", "hparams-more.json")]
    known, more = (json.loads(file.read_text()).get(peer, []) for file in files)
    for row in known + more:
        name = NAMED.get(row["algorithm"], row["algorithm"])
        translated = {**OURS, **(ADVERSARIAL if "DANN" in name else {}), **MORE.get(name, {})}
        found = {translated.get(key, key): value for key, value in row["hparams"].items() if key not in NOT_OURS}
        found.pop(None, None)
        if row["dataset"] == "DomainNet" and not by_data_set:
            found = {key: value for key, value in found.items() if key not in BY_DATA_SET.get(name, BY_DATA_SET[""])}
        rows.append((name, row["dataset"], bool(row.get("default")), found))
    return rows


def test_first_draws_are_pinned() -> None:
    lines = [line for line in PINNED.strip().splitlines() if line]
    now = [drawn(*_key(line)) for line in lines]
    print("\n".join(now))
    assert now == lines


def _key(line: str) -> tuple[str, str, int]:
    name, preset, seed = line.split(" ")[:3]
    return name, preset, int(seed)


def test_a_field_is_drawn_alike_whatever_stands_beside_it() -> None:
    plain, notes = spaces.draw(BaseHparams, "domainbed", 5), fields_of(BaseHparams)
    compared = 0
    for name in registry.names():
        cls = registry.get(name).algorithm.Hparams
        other = spaces.draw(cls, "domainbed", 5)
        for key in ("learning_rate", "weight_decay", "dropout"):
            if fields_of(cls)[key] == notes[key]:
                assert getattr(other, key) == getattr(plain, key), name
                compared += 1
    assert compared > 60


@pytest.mark.parametrize("peer", PRESET_OF)
def test_defaults_are_the_peers(reference: Path, peer: str) -> None:
    compared = set()
    for name, data, default, values in recorded(reference, peer):
        if default:
            ours = dataclasses.asdict(spaces.defaults(registry.get(name).algorithm.Hparams, PRESET_OF[peer]))
            assert values == {key: ours.get(key, "no such field") for key in values}, (name, data)
            compared.add(name)
    assert len(compared) >= 14


def test_a_recipe_has_all_algorithms_and_defaults_of_the_peer(reference: Path) -> None:
    """Also what the peer changes for a data set."""
    sweep = dataclasses.replace(read_plan("domainbed-2024"), draws=1, seeds=(0,))
    planned = {(run.algorithm, run.data): run.hparams for run in expand(sweep)}
    rows = recorded(reference, "DomainBed b93c22a", by_data_set=True)
    assert {name for name, _ in planned} == {name for name, *_ in rows} and len({name for name, *_ in rows}) == 34
    for name, data, default, values in rows:
        if default:
            assert values == {key: planned[name, data].get(key, "no such field") for key in values}, (name, data)


@pytest.mark.parametrize("peer", PRESET_OF)
def test_the_peers_random_values_lie_in_our_spaces(reference: Path, peer: str) -> None:
    outside = []
    for name, data, default, values in recorded(reference, peer):
        cls = registry.get(name).algorithm.Hparams
        notes, fixed = fields_of(cls), spaces.defaults(cls, PRESET_OF[peer])
        for key, value in values.items():
            space = notes[key].space_in(PRESET_OF[peer])
            inside = contains(space, value) if space is not None else value == getattr(fixed, key)
            if not default and not inside:
                outside.append((name, data, key, value, space))
    assert not outside


# few draws are recorded, which a range that is too narrow may hold by chance: the peers' ranges, read from their code
WIDE, NARROW, NONE = LogUniform(1e-6, 1e-2), LogUniform(1e-6, 1e-3), Choice(0.0)
DECAYS = {"domainbed": WIDE, "domainbed-2024": WIDE, "mdlt": NARROW, "arrays": NONE}  # arrays: DomainBed's small images


@pytest.mark.parametrize("preset", DECAYS)
def test_weight_decay_is_searched_where_the_peers_search_it(preset: str) -> None:
    for name in registry.names():
        own = registry.get(name).algorithm.Hparams
        notes = fields_of(own)
        adversarial = "discriminator_decay" in notes
        if "weight_decay" in own.__annotations__ and not adversarial:
            continue  # a method with a decay of its own, which no peer searches
        assert notes["weight_decay"].space_in(preset) == (WIDE if adversarial and preset == "mdlt" else DECAYS[preset])
        if adversarial:
            assert notes["discriminator_decay"].space_in(preset) == WIDE


@pytest.mark.parametrize("preset", sorted({*PRESET_OF.values(), "default", "arrays", "rc-align"}))
def test_our_draws_lie_in_our_spaces_and_fill_them(preset: str) -> None:
    for name in registry.names():
        cls = registry.get(name).algorithm.Hparams
        draws = [spaces.draw(cls, preset, seed) for seed in range(1, 60)]
        for key, note in fields_of(cls).items():
            space = note.space_in(preset)
            if space is not None:
                values = [getattr(hparams, key) for hparams in draws]
                assert all(contains(space, value) for value in values), (name, key)
                many = len(space.values) if isinstance(space, Choice) else 2
                assert len(np.unique(values)) >= many, (name, key)
