"""What every algorithm shares: networks, hyperparameters, optimizer, its own random numbers, predict, save and load.

The author of an algorithm writes a frozen ``Hparams`` and ``loss(batch)``. Escapes, in order of preference: ``build()``
for extra networks, ``make_optimizers()`` for more than one optimizer, ``step()`` when the method owns the gradient, and
``refresh_due()`` with ``refresh()`` for statistics of the whole training set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.errors import InputError
from rcalign.functional.classification import domain_cross_entropy
from rcalign.registry import Traits, check_adapts
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch, DataSpec, StepOutput

Logs = dict[str, Tensor | float]


@dataclass(frozen=True, kw_only=True)
class BaseHparams:
    """What all algorithms have. Ranges are DomainBed's, those of preset ``arrays`` its ranges for small images."""

    learning_rate: Annotated[
        float,
        Field(
            "Adam's step size",
            LogUniform(1e-5, 10**-3.5),
            minimum=0,
            presets={
                "arrays": At(1e-3, LogUniform(10**-4.5, 10**-2.5)),
                "rc-align": At(space=LogUniform(1e-5, 1e-3)),
            },
        ),
    ] = 5e-5
    weight_decay: Annotated[
        float,
        Field(
            "Adam's L2 weight decay",
            LogUniform(1e-6, 1e-2),
            minimum=0,
            presets={
                "arrays": At(space=Choice(0.0)),
                "mdlt": At(space=LogUniform(1e-6, 1e-3)),
                "rc-align": At(5e-4),
            },
        ),
    ] = 0.0
    dropout: Annotated[float, Field("dropout on the features", Choice(0.0, 0.1, 0.5), minimum=0, maximum=0.99)] = 0.0
    batch_size: Annotated[
        int,
        Field(
            "samples per domain and step",
            LogUniform(8, 2**5.5, integer=True),
            minimum=1,
            presets={
                "arrays": At(64, LogUniform(8, 2**9, integer=True)),
                "mdlt": At(24, Choice(24)),
                "rc-align": At(24, Choice(24)),
            },
        ),
    ] = 32


class Network(nn.Module):
    """A featurizer (n, ...) -> (n, h) and a linear head (n, h) -> (n, C).

    >>> net = Network(nn.Linear(5, 4), features=4, classes=3)
    >>> net.head(net.featurizer(torch.zeros(2, 5))).shape
    torch.Size([2, 3])
    """

    def __init__(self, featurizer: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.head = nn.Linear(features, classes)
        self.features = features


class Classifier(nn.Module):
    """A network whose ``forward`` maps inputs (n, ...) to features (n, h) and logits (n, C)."""

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logits (n, C), in evaluation mode. Changes nothing."""
        with evaluating(self):
            return self(x)[1]

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Features (n, h), in evaluation mode. Changes nothing."""
        with evaluating(self):
            return self(x)[0]

    @property
    def assumed_shares(self) -> Tensor | None:
        """The class shares (C,) that predictions take for granted; None: those among the rows that training drew."""
        return None


class Algorithm(Classifier):
    """A model being trained on several source domains.

    spec: what is known of the data. network: featurizer and head, taken over and trained in place.
    hparams: an instance of this class's ``Hparams`` (None: its defaults). seed: of everything random in here.

    >>> from rcalign.algorithms.erm import ERM
    >>> spec = DataSpec(("a", "b"), ("one", "two"), ((4, 4), (4, 4)), (5,))
    >>> model = ERM(spec, Network(nn.Linear(5, 4), 4, 2))
    >>> batch = Batch.from_domains([(torch.randn(3, 5), torch.tensor([0, 1, 0]))] * 2)
    >>> sorted(model.step(batch)), model.predict(batch.x).shape
    (['loss'], torch.Size([6, 2]))
    """

    name: ClassVar[str]
    traits: ClassVar[Traits] = Traits()
    Hparams: ClassVar[type[BaseHparams]] = BaseHparams
    trains_batch_norm: ClassVar[bool] = False  # in a layer of its own, so that a batch needs two samples
    hparams: Any  # an instance of Hparams: each algorithm reads its own fields
    label_smoothing: float = 0.0  # an option of the run, not a hyperparameter: see ``cross_entropy``

    def __init__(self, spec: DataSpec, network: Network, hparams: BaseHparams | None = None, *, seed: int = 0) -> None:
        super().__init__()
        if spec.num_domains < self.traits.min_domains:
            found = ", ".join(spec.domains)
            raise InputError(
                f"{self.name} needs at least {self.traits.min_domains} source domains, but found {spec.num_domains} "
                f"({found}): hold out fewer domains, add a domain, or use an algorithm that needs no domains."
            )
        if self.traits.needs_counts and not any(map(sum, spec.counts)):
            raise InputError(
                f"{self.name} needs the number of training samples of each (domain, class) pair, but all counts are "
                "zero: give DataSpec.counts from the training part."
            )
        self.spec = spec
        self.hparams = self.Hparams() if hparams is None else hparams
        if spec.targets:
            check_adapts(self.name, self.traits, vars(self.hparams))
        self.rng = np.random.default_rng([seed, 0x5C])
        self.steps_done = 0
        self.featurizer = network.featurizer
        self.head = network.head
        self.features_dim = network.features
        with seeded(seed):
            self.build()
        like = next(network.head.parameters())
        self.to(device=like.device, dtype=like.dtype)
        self.optimizers = self.make_optimizers()

    # --- what an algorithm may replace -------------------------------------------------------------------------

    def build(self) -> None:
        """Extra networks and buffers; may replace ``self.head``. Runs once, with torch's random stream seeded."""

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Name -> optimizer. The default has one, "main", over all parameters."""
        return {"main": self.adam(self.parameters())}

    def loss(self, batch: Batch) -> StepOutput:
        """The scalar that the default ``step`` descends."""
        raise NotImplementedError

    def step(self, batch: Batch) -> Logs:
        """One update. Returns numbers to log; the keys are the same at every step."""
        output = self.loss(self.begin_step(batch))
        self.descend(output.loss)
        return {"loss": output.loss.detach(), **output.logs}

    def step_in_pieces(self, batch: Batch, pieces: int) -> Logs:
        """The same update as ``step`` with the memory of one piece; for algorithms with the trait ``row_losses``."""
        batch = self.begin_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor | float] = {}
        for part in batch.pieces(pieces):
            output, share = self.loss(part), len(part) / len(batch)
            (share * output.loss).backward()
            for name, value in {"loss": output.loss.detach(), **output.logs}.items():
                sums[name] = sums.get(name, 0.0) + share * value
        self.optimizer.step()
        self.steps_done += 1
        return sums

    def refresh_due(self) -> bool:
        """Whether the loop must call ``refresh`` before the next step."""
        return False

    def refresh(self, features: Tensor, y: Tensor, domain: Tensor) -> None:
        """Takes the features (n, h) of the whole training set, evaluation mode, with labels and domain positions."""

    def observe(self, validation_loss: float) -> None:
        """Takes the mean validation loss of the source domains at an evaluation, in the middle of training."""

    def start_from(self, stage_one: Mapping[str, Tensor]) -> None:
        """Takes over the weights (a ``state_dict``) of the run that ``traits.stage_one`` names."""

    @property
    def row_networks(self) -> list[nn.Module]:
        """The networks whose work is divided among workers: each maps rows (n, ...) to rows (n, ...)."""
        return [self.featurizer]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what of the method has no effect with these data and hyperparameters; printed by 'train'."""
        return ()

    def averaging_options(self) -> dict[str, Any]:
        """Options of the weight averaging that ``traits.averages`` names, from the hyperparameters."""
        return {}

    # --- what an algorithm uses --------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (n, ...) -> features (n, h) and logits (n, C). In training mode with dropout on the features."""
        features = self.features(x)
        return features, self.head(features)

    def features(self, x: Tensor) -> Tensor:
        """x (n, ...) -> features (n, h). In training mode with dropout."""
        features = self.featurizer(x)
        if self.training and self.hparams.dropout > 0:
            features = self.dropped(features, self.hparams.dropout)
        return features

    def features_by_domain(self, batch: Batch) -> Tensor:
        """Features of labelled and then of unlabelled rows (N + U, h), no domain's rows seeing another's: one joint
        pass, or one pass for each domain where batch norm is trained, as DomainBed does in the methods that use this.
        """
        norms = (part for part in self.featurizer.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
        if any(norm.training for norm in norms):
            parts = torch.split(batch.inputs, [*batch.sizes, *batch.unlabelled_sizes])
            return torch.cat([self.features(x) for x in parts])
        return self.features(batch.inputs)

    def cross_entropy(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Cross-entropy of logits (n, C) with class positions y (n,), under the run's label smoothing.

        With smoothing e the target is 1 - e + e / C for the label and e / C for every other class. Algorithms call this
        wherever a classifier learns labels; penalties that only compare domains keep the labels as they are.
        """
        return F.cross_entropy(logits, y, reduction=reduction, label_smoothing=self.label_smoothing)

    def domain_risks(self, logits: Tensor, y: Tensor, sizes: Sequence[int]) -> Tensor:
        """Mean ``cross_entropy`` of each domain: logits (N, C), y (N,) -> (K,); the k-th ``sizes[k]`` rows are of k."""
        return domain_cross_entropy(logits, y, sizes, self.label_smoothing)

    def dropped(self, values: Tensor, probability: float) -> Tensor:
        """Inverted dropout with this algorithm's own random numbers, the same on every device."""
        keep = self.rng.random(tuple(values.shape), dtype=np.float32) >= probability
        return values * torch.from_numpy(keep).to(values) / (1 - probability)

    def adam(self, parameters: Iterable[nn.Parameter], **changes: Any) -> torch.optim.Adam:
        """Adam with this run's learning rate and weight decay, unless changed."""
        options: dict[str, Any] = {"lr": self.hparams.learning_rate, "weight_decay": self.hparams.weight_decay}
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            raise InputError(
                f"{self.name} has nothing to train: the backbone is frozen, and there is no other weight. Do not "
                "freeze the backbone, or use another algorithm."
            )
        # fused: one pass over the memory; a third of the time on a CPU
        options["fused"] = has_fused_adam(trained[0].device.type)
        return torch.optim.Adam(trained, **{**options, **changes})

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.optimizers["main"]

    def descend(self, loss: Tensor, optimizer: str = "main") -> None:
        """Backward and one step of one optimizer; counts the step."""
        self.optimizers[optimizer].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[optimizer].step()
        self.steps_done += 1

    def check_batch(self, batch: Batch) -> None:
        """Raises an ``InputError`` unless every source domain is in the batch, and enough for a batch norm layer."""
        if self.trains_batch_norm and len(batch) < 2:
            raise InputError(
                f"{self.name} trains a batch norm layer, which needs at least two samples, but the batch has "
                f"{len(batch)}: raise batch_size."
            )
        if len(batch.sizes) != self.spec.num_domains:
            raise InputError(
                f"the batch has {len(batch.sizes)} domains, but there are {self.spec.num_domains} source domains: give "
                "rows of each of them, in their order."
            )
        for name, size in zip(self.spec.domains, batch.sizes, strict=True):
            if size == 0:
                raise InputError(f"the batch has no samples of domain '{name}': give some of every source domain.")
        if len(batch.unlabelled_sizes) != len(self.spec.targets):
            raise InputError(
                f"the batch has unlabelled rows of {len(batch.unlabelled_sizes)} domains, but DataSpec.targets names "
                f"{len(self.spec.targets)}: give unlabelled rows of each of these, and of no other."
            )

    def begin_step(self, batch: Batch) -> Batch:
        """Checks the batch, switches to training mode, and returns the batch. The first call of every ``step``."""
        self.check_batch(batch)
        self.train()
        return batch

    # --- what resuming a run needs ------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        """Everything that the next step depends on: nested dicts and lists of tensors, numbers and strings."""
        return {
            "weights": self.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "random": _plain(self.rng.bit_generator.state),
            "steps_done": self.steps_done,
            "more": self.more_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``training_state``: the next step is the one that would have followed."""
        self.load_state_dict(state["weights"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
            for parameter, values in optimizer.state.items():  # moments in the parameters' own memory layout
                for key, value in values.items():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        values[key] = torch.empty_like(parameter).copy_(value)
        self.rng.bit_generator.state = state["random"]
        self.steps_done = int(state["steps_done"])
        self.load_more_state(state["more"])

    def more_state(self) -> dict[str, Any]:
        """State outside parameters, buffers and optimizers: plain values or tensors."""
        return {}

    def load_more_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``more_state``."""


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's, so that the state is JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


@functools.cache
def has_fused_adam(device: str) -> bool:
    """Whether this version of torch has a fused Adam for a kind of device: on a CPU from 2.4 on.

    >>> has_fused_adam("cpu") or torch.__version__ < "2.4"
    True
    """
    try:
        torch.optim.Adam([nn.Parameter(torch.zeros(1, device=device))], fused=True)
    except RuntimeError:
        return False
    return True


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global random stream seeded inside, untouched outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; the mode of every submodule as it was outside."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
