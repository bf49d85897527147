"""The options of a training run, each described once: type, default, meaning and limits stand on its field.

The command line, the keys of a sweep file, the parameters of ``DomainClassifier`` and ``config.json`` are made from
these fields. A new option is one field here, and the code that reads it. This file imports nothing heavy, so that
``rcalign train --help`` answers at once.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rcalign.errors import InputError, unknown
from rcalign.presets import PRESETS

DEFAULT_ALGORITHM = "RC-Align"
PROTOCOL, METHOD, NETWORK, COMPUTING = "Data and protocol", "Method", "Network", "Computing"
TUNING = "Fine-tuning"
LOGGERS = ("tensorboard", "wandb", "mlflow")


def check_log(words: Iterable[str]) -> None:
    """Raises an ``InputError`` for a word of the option ``log`` that names no logger; nothing is imported.

    >>> check_log(["tensorboard", "mlflow=runs/store", "my_module:MyLogger"])
    >>> check_log(["tensorbord"])
    Traceback (most recent call last):
    rcalign.errors.InputError: unknown logger 'tensorbord': did you mean 'tensorboard'? Known: mlflow, tensorboard, \
wandb. Or give one of your own as module:Class.
    """
    for word in words:
        name, mark, place = word.partition("=")
        if name in LOGGERS:
            if mark and not place:
                raise InputError(f"`log` is '{word}', but names no place: write {name}=PLACE, or {name} alone.")
        elif not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", word):
            raise unknown("logger", word, LOGGERS, "Or give one of your own as module:Class.")


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is known of a field of ``TrainOptions`` beside its type and default.

    help: one sentence. group: the heading it stands under in ``--help``. when_none: what None stands for. flag: its
    name at the command line, where that is not the field's own. minimum, above, maximum, choices: its limits. check:
    raises for what these cannot say.
    in_plan: a sweep file may set it. in_estimator: ``DomainClassifier`` takes it. decides: runs that differ in it are
    different runs, so a folder is not resumed with another value.
    """

    help: str
    group: str
    when_none: str | None = None
    flag: str | None = None
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    check: Callable[[Any], None] | None = None
    in_plan: bool = True
    in_estimator: bool = True
    decides: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a user may choose about one training run. Values are checked when it is made.

    >>> TrainOptions(algorithm="ERM", test_domains=["photo"], steps=300).test_domains
    ('photo',)
    >>> TrainOptions(steps=0)
    Traceback (most recent call last):
    rcalign.errors.InputError: `steps` is 0, but must be at least 1.
    """

    algorithm: Annotated[str, Option(help="What to train: see 'rcalign algorithms'.", group=METHOD, in_plan=False)] = (
        "RC-Align"
    )
    test_domains: Annotated[
        tuple[str, ...],
        Option(
            help="A domain to hold out: it is tested, never trained on (repeat for several).",
            group=PROTOCOL,
            flag="--test-domain",
            in_plan=False,
            in_estimator=False,
        ),
    ] = ()
    protocol: Annotated[
        str | None,
        Option(
            help="lodo holds domains out; adapt does too, and trains on a share of their rows without labels; mdlt "
            "trains and tests on every domain, with long-tailed classes; wilds follows the data set's own split.",
            group=PROTOCOL,
            when_none="the preset's, else lodo",
            choices=("lodo", "mdlt", "wilds", "adapt"),
            in_estimator=False,
        ),
    ] = None
    unlabelled_share: Annotated[
        float | None,
        Option(
            help="Share of a held-out domain's test rows that adapt trains on without labels, instead of testing on "
            "them; lodo leaves them out, so that the two compare.",
            group=PROTOCOL,
            when_none="0.5 for adapt, else none",
            above=0,
            maximum=1,
            in_estimator=False,
        ),
    ] = None
    preset: Annotated[
        str | None,
        Option(
            help="A published set of choices: network, image size, steps, augmentation, hyperparameters.",
            group=PROTOCOL,
            when_none="arrays for rows, series and a frozen backbone, else default",
            choices=tuple(PRESETS),
        ),
    ] = None
    steps: Annotated[
        int | None,
        Option(
            help="Updates, each with batch_size samples of every source domain.",
            group=METHOD,
            when_none="the preset's",
            minimum=1,
        ),
    ] = None
    evaluate_every: Annotated[
        int | None,
        Option(help="Steps between evaluations and checkpoints.", group=METHOD, when_none="the preset's", minimum=1),
    ] = None
    seed: Annotated[
        int,
        Option(
            help="Random seed of the split, the batches and all else that is drawn: the same seed gives the same bits.",
            group=PROTOCOL,
            minimum=0,
            maximum=2**32 - 1,  # what numpy's legacy generator takes
            in_plan=False,
            in_estimator=False,
        ),
    ] = 0
    backbone: Annotated[
        str | None,
        Option(
            help="Any timm network for images, such as resnet50.tv_in1k, or CLIP's: clip:ViT-B-32.",
            group=NETWORK,
            when_none="tf_efficientnet_lite0 for images, a small network for arrays",
        ),
    ] = None
    weights: Annotated[
        str | None,
        Option(
            help="Weights of the backbone: a safetensors or torch file, or 'none' for random ones.",
            group=NETWORK,
            when_none="pretrained",
            decides=False,  # their fingerprint does
        ),
    ] = None
    freeze_backbone: Annotated[
        bool,
        Option(help="Compute the features of images once, and train a small network on them.", group=NETWORK),
    ] = False
    linear_probe: Annotated[
        bool,
        Option(help="Compute the features of images once, and train a linear head alone on them.", group=NETWORK),
    ] = False
    head: Annotated[
        str | None,
        Option(
            help="What the head starts from; zero-shot: the class names, by CLIP's text tower.",
            group=NETWORK,
            when_none="zero-shot for CLIP's networks, else random",
            choices=("random", "zero-shot"),
        ),
    ] = None
    templates: Annotated[
        tuple[str, ...],
        Option(
            help="With a zero-shot head: a sentence with {} for the class name (repeat). Default: 'a photo of a {}.'.",
            group=NETWORK,
            flag="--template",
        ),
    ] = ()
    freeze_batch_norm: Annotated[
        bool | None,
        Option(
            help="Keep the statistics of batch norm as pretrained, or let them follow the batches.",
            group=NETWORK,
            when_none="the preset's",
            flag="--freeze-batch-norm/--train-batch-norm",
        ),
    ] = None
    lora: Annotated[
        int | None,
        Option(
            help="LoRA: the backbone's linear layers learn changes of this rank, such as 8; the rest of it stays.",
            group=NETWORK,
            when_none="all weights are trained",
            minimum=1,
            maximum=4096,
        ),
    ] = None
    lora_alpha: Annotated[
        float | None,
        Option(
            help="With lora: the changes are multiplied by this over the rank.",
            group=NETWORK,
            when_none="twice the rank",
            above=0,
        ),
    ] = None
    image_size: Annotated[
        int | None,
        Option(
            help="Side of the square input, in pixels.",
            group=NETWORK,
            when_none="the preset's, else the data's own or 224",
            minimum=1,
            maximum=4096,
        ),
    ] = None
    hparams: Annotated[
        Mapping[str, Any],
        Option(
            help="A hyperparameter of the algorithm, field=value (repeat). See 'rcalign algorithms NAME'.",
            group=METHOD,
            flag="--set",
            in_plan=False,
            in_estimator=False,
        ),
    ] = dataclasses.field(default_factory=dict)
    average: Annotated[
        str | None,
        Option(
            help="Average the weights during training; polynomial: mostly the last ninth, swa: three quarters.",
            group=METHOD,
            when_none="the algorithm's, mostly none",
            choices=("beta", "ema", "polynomial", "swa", "swad"),
        ),
    ] = None
    adamw: Annotated[
        bool,
        Option(help="AdamW: takes weight decay off the weights themselves, not through the gradient.", group=TUNING),
    ] = False
    schedule: Annotated[
        str, Option(help="Schedule of the learning rate over the run.", group=TUNING, choices=("constant", "cosine"))
    ] = "constant"
    schedule_warm_up: Annotated[
        int, Option(help="Steps over which the learning rate rises to its full value.", group=TUNING, minimum=0)
    ] = 0
    layer_decay: Annotated[
        float,
        Option(
            help="Factor of the learning rate from each layer to the one below it, such as 0.75; 1: none.",
            group=TUNING,
            above=0,
            maximum=1,
        ),
    ] = 1.0
    clip_gradient: Annotated[
        float | None,
        Option(
            help="Largest norm of a gradient; longer ones are scaled down to it.",
            group=TUNING,
            when_none="no limit",
            above=0,
        ),
    ] = None
    warm_up_head: Annotated[
        int, Option(help="Steps in which only the head is trained (LP-FT).", group=TUNING, minimum=0)
    ] = 0
    train_on_validation: Annotated[
        bool,
        Option(
            help="At the end train once more, with the validation rows too, as long as validation said (ERM++).",
            group=METHOD,
        ),
    ] = False
    label_smoothing: Annotated[
        float,
        Option(
            help="Share of a label that is spread evenly over all classes, such as 0.1; 0: none.",
            group=TUNING,
            minimum=0,
            maximum=0.99,
        ),
    ] = 0.0
    device: Annotated[
        str,
        Option(help="auto, cpu, cuda, cuda:1 or mps.", group=COMPUTING, in_plan=False, decides=False),
    ] = "auto"
    precision: Annotated[
        str,
        Option(
            help="Number format of the training steps; fp16 scales gradients, for GPUs that lack bf16.",
            group=COMPUTING,
            choices=("fp32", "bf16", "fp16"),
        ),
    ] = "fp32"
    compile: Annotated[
        bool,
        Option(help="Compile the network: a minute at first, faster steps after.", group=COMPUTING, decides=False),
    ] = False
    workers: Annotated[
        int,
        Option(
            help="Processes that share the rows of each step, one on each GPU or core; the results are those of one.",
            group=COMPUTING,
            minimum=1,
            maximum=4096,
            in_plan=False,
            in_estimator=False,
            decides=False,
        ),
    ] = 1
    ray: Annotated[
        str | None,
        Option(
            help="With more workers: the address of a Ray cluster, such as 10.0.0.5:6379.",
            group=COMPUTING,
            when_none="this machine",
            in_plan=False,
            in_estimator=False,
            decides=False,
        ),
    ] = None
    accumulate: Annotated[
        int,
        Option(
            help="Gradient accumulation: each batch in this many pieces, for networks that hardly fit into memory.",
            group=COMPUTING,
            minimum=1,
            decides=False,
        ),
    ] = 1
    keep: Annotated[
        str,
        Option(
            help="Weights that a finished run keeps: the chosen ones (best), also the last, also every evaluation's, "
            "or none.",
            group=COMPUTING,
            choices=("best", "last", "every", "none"),
            in_estimator=False,
            decides=False,
        ),
    ] = "last"
    kept_precision: Annotated[
        str,
        Option(
            help="Number format of the kept weights; bf16 halves them and rounds them to about three digits.",
            group=COMPUTING,
            choices=("fp32", "bf16"),
            in_estimator=False,
            decides=False,
        ),
    ] = "fp32"
    skip_bad: Annotated[
        bool,
        Option(
            help="Leave unreadable images out, and list them.",
            group=PROTOCOL,
            in_estimator=False,
            decides=False,  # the fingerprint of the data does
        ),
    ] = False
    track_bound: Annotated[
        int | None,
        Option(
            help="Steps between two records of alignment loss and generalisation gap.",
            group=METHOD,
            when_none="never",
            minimum=1,
            in_estimator=False,
            decides=False,
        ),
    ] = None

    log: Annotated[
        tuple[str, ...],
        Option(
            help="Log while training: tensorboard, wandb or mlflow, NAME=PLACE to say where, or my_module:MyLogger "
            "(repeat).",
            group=COMPUTING,
            check=check_log,
            decides=False,
        ),
    ] = ()

    imports: Annotated[
        tuple[str, ...],
        Option(
            help="A module of your own to import first, which registers algorithms, data or metrics (repeat).",
            group=METHOD,
            flag="--import",
            in_estimator=False,
            decides=False,
        ),
    ] = ()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, checked_option(name, value))

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with other values."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Described:
    """A field of ``TrainOptions``: kind is str, int, float, bool, tuple (of texts) or dict."""

    name: str
    kind: type
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """At the command line."""
        return self.option.flag or "--" + self.name.replace("_", "-")


@functools.cache
def described() -> Mapping[str, Described]:
    """All options by name, in order.

    >>> described()["image_size"].kind, described()["image_size"].flag, described()["test_domains"].flag
    (<class 'int'>, '--image-size', '--test-domain')
    """
    hints = typing.get_type_hints(TrainOptions, include_extras=True)
    found = {}
    for item in dataclasses.fields(TrainOptions):
        annotated = hints[item.name]
        (option,) = annotated.__metadata__
        kind, optional = _plain(annotated.__origin__)
        default = item.default if item.default is not dataclasses.MISSING else item.default_factory()  # type: ignore[misc,operator]
        found[item.name] = Described(item.name, kind, optional, default, option)
    return found


def _plain(hint: Any) -> tuple[type, bool]:
    """The type without ``| None``, and whether that was there."""
    if isinstance(hint, types.UnionType):
        (kind,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return kind, True
    origin = typing.get_origin(hint) or hint
    return dict if origin is Mapping else origin, False


def train_options(**values: Any) -> TrainOptions:
    """The options of these names; a name that is none is an ``InputError``, with the nearest that is.

    >>> train_options(algorithm="ERM", setps=300)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: unknown option 'setps': did you mean 'steps'? ...
    """
    for name in values:
        if name not in described():
            raise unknown("option", name, described())
    return TrainOptions(**values)


def options_from(values: Mapping[str, Any]) -> TrainOptions:
    """The options among other values, such as an entry of ``plan.json``."""
    return TrainOptions(**{name: values[name] for name in described() if name in values})


def differing(values: Mapping[str, Any]) -> list[str]:
    """The options of which a value other than the default is given."""
    return [name for name, value in values.items() if name in described() and value != described()[name].default]


def in_plans() -> list[str]:
    """The options that a sweep file may set."""
    return [name for name, about in described().items() if about.option.in_plan]


def in_estimators() -> list[str]:
    """The options that ``DomainClassifier`` takes."""
    return [name for name, about in described().items() if about.option.in_estimator]


def checked_option(name: str, value: Any) -> Any:
    """The value of an option in its own type; an ``InputError`` says what is wrong with it.

    >>> checked_option("test_domains", "photo"), checked_option("average", None)
    (('photo',), None)
    """
    about = described()[name]
    option = about.option
    if value is None and about.optional:
        return None
    try:
        value = _CONVERT[about.kind](value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` is {value!r}, but {_WORDS[about.kind]} is expected.") from None
    if option.choices is not None and value not in option.choices:
        raise unknown(name, value, option.choices)
    if option.minimum is not None and not value >= option.minimum:
        raise InputError(f"`{name}` is {value}, but must be at least {option.minimum}.")
    if option.above is not None and not value > option.above:
        raise InputError(f"`{name}` is {value}, but must be more than {option.above}.")
    if option.maximum is not None and not value <= option.maximum:
        raise InputError(f"`{name}` is {value}, but must be at most {option.maximum}.")
    if option.check is not None:
        option.check(value)
    return value


def _text(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError
    return text


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _truth(value: Any) -> bool:
    if value not in (True, False):
        raise ValueError
    return bool(value)


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(_text, _iterable(value)))


def _iterable(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        raise TypeError
    return iter(value)


_CONVERT: dict[type, Any] = {str: _text, int: _whole, float: float, bool: _truth, tuple: _texts, dict: dict}
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    tuple: "a list of texts",
    dict: "a mapping from names to values",
}
