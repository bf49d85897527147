"""Our algorithms as DomainBed's ``Algorithm`` classes. Two lines at the end of its ``algorithms.py`` add one::

    from rcalign.compat import domainbed as rcalign
    RCAlign = rcalign.algorithm("rc-align")

after which ``--algorithm RCAlign`` trains it under DomainBed's own splits, sweeps and selection, on its own networks.
Three lines before ``return hparams`` in ``_hparams`` of its ``hparams_registry.py`` let sweeps draw the method's own
hyperparameters, of this algorithm only: others have settings of the same names::

    if algorithm == "RCAlign":
        from rcalign.compat import domainbed as rcalign
        hparams.update(rcalign.hparams("rc-align", random_seed))

The package itself is not needed here, only its interface: (input_shape, num_classes, num_domains, hparams), ``update``,
``predict`` and ``state_dict``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry, spaces
from rcalign.algorithms.base import Algorithm as OurAlgorithm
from rcalign.algorithms.base import Network, seeded
from rcalign.errors import InputError
from rcalign.models.backbones import build_backbone
from rcalign.registry import RegisteredAlgorithm
from rcalign.types import Batch, DataSpec

PRESET = "domainbed"
THEIR_NAMES = {"lr": "learning_rate", "weight_decay": "weight_decay", "batch_size": "batch_size"}
MakeFeaturizer = Callable[[Sequence[int], Mapping[str, Any]], nn.Module]


class Algorithm(nn.Module):
    """DomainBed's interface around one of our algorithms. Made by ``algorithm(name)``.

    hparams: DomainBed's dict. Its ``lr``, ``weight_decay`` and ``batch_size`` are ours by another name; a key that is
    the name of a field of ours sets it; the rest is for the network. With ``--task domain_adaptation``,
    ``unlabelled_domains`` is the number of unlabelled environments, which DomainBed's interface does not tell.
    """

    entry: RegisteredAlgorithm
    make_featurizer: MakeFeaturizer | None = None

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.hparams = dict(hparams)
        if self.entry.traits.balanced_sampling and not hparams.get("class_balanced"):
            raise InputError(
                f"{self.entry.name} needs batches balanced over classes: set the hparam class_balanced to true."
            )
        # DomainBed seeds torch before it builds, and nothing else tells the runs of a sweep apart
        seed = torch.initial_seed() % 2**31
        with seeded(seed):
            network, own_dropout = self._network(tuple(input_shape), num_classes)
        values = self._values(own_dropout)
        spec = DataSpec(
            tuple(str(c) for c in range(num_classes)),
            tuple(f"environment {k}" for k in range(num_domains)),
            tuple((0,) * num_classes for _ in range(num_domains)),
            tuple(input_shape),
            tuple(f"unlabelled environment {k}" for k in range(int(self.hparams.get("unlabelled_domains", 0)))),
        )
        self.algorithm = self.entry.algorithm(spec, network, values, seed=seed)
        for note in self._notes():
            warnings.warn(note, stacklevel=2)

    def _notes(self) -> list[str]:
        """What of the method has no effect inside DomainBed, in words."""
        found = list(self.algorithm.notes)
        average = self.entry.traits.averaging(vars(self.algorithm.hparams))
        if average is not None:
            found.append(f"{self.entry.name} averages weights ('{average}'), which DomainBed's loop does not.")
        return found

    def _network(self, shape: tuple[int, ...], classes: int) -> tuple[Network, bool]:
        """The network, and whether it has its own dropout: DomainBed's featurizer if there is one, else ours."""
        make = type(self).make_featurizer or _domainbed_featurizer()
        if make is not None:
            featurizer = make(shape, self.hparams)
            return Network(featurizer, int(featurizer.n_outputs), classes), True  # type: ignore[arg-type]
        made = build_backbone(self.hparams.get("backbone"), shape, weights=self.hparams.get("weights"))
        return Network(made.featurizer, made.features, classes), False

    def _values(self, own_dropout: bool) -> Any:
        kind = self.entry.algorithm.Hparams
        fields = spaces.fields_of(kind)
        given = {THEIR_NAMES.get(name, name): value for name, value in self.hparams.items()}
        if not own_dropout:
            given.setdefault("dropout", self.hparams.get("resnet_dropout", 0.0))
        return spaces.defaults(kind, PRESET, **{name: value for name, value in given.items() if name in fields})

    def update(self, minibatches: Sequence[tuple[Tensor, Tensor]], unlabeled: Any = None) -> dict[str, float]:
        """One step on one (x, y) of each training environment and one x of each unlabelled one; numbers to log."""
        expected, found = len(self.algorithm.spec.targets), len(unlabeled or ())
        if expected != found:
            registry.check_adapts(self.entry.name, self.entry.traits, vars(self.algorithm.hparams))
            raise InputError(
                f"there are unlabelled batches of {found} environments, but the hparam unlabelled_domains is "
                f"{expected}: give --hparams '{{\"unlabelled_domains\": {found}}}'."
            )
        logs = self.algorithm.step(Batch.from_domains(minibatches, unlabelled=list(unlabeled or ())))
        return {name: float(value) for name, value in logs.items()}

    def predict(self, x: Tensor) -> Tensor:
        """Logits (n, C)."""
        return self.algorithm.predict(x)


def algorithm(name: str, featurizer: MakeFeaturizer | None = None) -> type[Algorithm]:
    """One of our algorithms as a class for DomainBed.

    featurizer: (input_shape, hparams) -> a module with ``n_outputs``; by default DomainBed's own ``Featurizer`` where
    the package is installed, else our backbone for such inputs.

    >>> RCAlign = algorithm("rc-align")
    >>> model = RCAlign((5,), num_classes=3, num_domains=2, hparams={"lr": 1e-3, "weight_decay": 0.0})
    >>> batches = [(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))] * 2
    >>> "loss" in model.update(batches), model.predict(torch.zeros(2, 5)).shape
    (True, torch.Size([2, 3]))
    """
    entry = registry.get(name)
    reason = _obstacle(entry)
    if reason is not None:
        raise InputError(f"{entry.name} cannot run inside DomainBed, because it {reason}: use 'rcalign train'.")
    title = "".join(letter for letter in entry.name if letter.isalnum())
    made = None if featurizer is None else staticmethod(featurizer)
    about = {"entry": entry, "make_featurizer": made, "__doc__": f"{entry.summary} ({entry.paper})"}
    return type(title, (Algorithm,), {**about, "__module__": __name__})


def algorithm_names() -> list[str]:
    """The algorithms that ``algorithm`` takes.

    >>> "RC-Align" in algorithm_names(), "CRT" in algorithm_names()
    (True, False)
    """
    return [name for name in registry.names() if _obstacle(registry.get(name)) is None]


def hparams(name: str, random_seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """The method's own hyperparameters in the form of DomainBed's registry: field -> (default, random value).

    >>> hparams("vrex", random_seed=0)["penalty_weight"]
    (10.0, 10.0)
    """
    kind = registry.get(name).algorithm.Hparams
    shared = {item.name for item in dataclasses.fields(OurAlgorithm.Hparams)}
    default, drawn = spaces.defaults(kind, PRESET), spaces.draw(kind, PRESET, random_seed)
    return {
        field: (getattr(default, field), getattr(drawn, field))
        for field in spaces.fields_of(kind)
        if field not in shared
    }


def _obstacle(entry: RegisteredAlgorithm) -> str | None:
    """Why an algorithm needs more than DomainBed's loop gives."""
    if entry.traits.stage_one is not None:
        return f"starts from a finished run of {entry.traits.stage_one}"
    if entry.traits.recipe_part:
        return "is only the first of two runs"
    if entry.traits.needs_counts:
        return "needs the number of training samples of each class"
    if entry.traits.averages is not None and entry.traits.averages_when is None:
        if entry.traits.averages == "swad":
            return "averages weights by the validation loss"
        return "keeps the mean of its weights, which DomainBed's loop neither makes nor evaluates"
    if entry.algorithm.refresh_due is not OurAlgorithm.refresh_due:
        return "needs the features of the whole training set now and then"
    return None


def _domainbed_featurizer() -> MakeFeaturizer | None:
    if importlib.util.find_spec("domainbed") is None:
        return None
    from domainbed import networks

    return networks.Featurizer
