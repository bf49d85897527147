"""DANN: features from which a discriminator cannot tell the domain.

D is a multilayer perceptron from features z = f(x) to the K domains. With N samples, d_i the domain of sample i:

    L_D = (1/N) sum_i CE(D(z_i), d_i) + gradient_penalty * R,    R = (1/N) sum_i || dT/dz_i ||^2

T = sum_i CE(D(z_i), d_i), or under ``penalty_form = softmax`` the published sum of softmax columns. Step t = 1, 2, ...
makes one of two updates. Where t mod (1 + s) < s, s = discriminator_steps, D descends L_D; else f and the head descend

    (1/N) sum_i CE_i - adversary_weight * L_D

With s = 1 the classifier learns in every second step, from the first one on. The discriminator has its own learning
rate and weight decay; both Adams use betas (beta1, 0.9).

Unlabelled rows of a target domain (unsupervised adaptation) are one domain more for D: its sums and means then go over
N + U rows, and D has an output for each target too. The classifier's cross-entropy stays that of the N labelled rows.

Paper: Ganin et al., Domain-Adversarial Training of Neural Networks (2016). Departures: alternating updates with a
penalty, as DomainBed, instead of gradient reversal with a ramp. Published DomainBed and BoDA take R from a sum that is
constant for equal batches (``softmax``); today's DomainBed, and the default here, from the cross-entropy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.perceptron import Perceptron
from rcalign.functional.adversarial import input_gradient_penalty
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch


@dataclass(frozen=True, kw_only=True)
class AdversarialHparams(BaseHparams):
    weight_decay: Annotated[
        float,
        Field(
            "the classifier's L2 weight decay",
            LogUniform(1e-6, 1e-2),  # also under BoDA's protocol, whose other methods have a narrower range
            minimum=0,
            presets={"arrays": At(space=Choice(0.0)), "rc-align": At(5e-4)},
        ),
    ] = 0.0
    adversary_weight: Annotated[
        float, Field("weight of the discriminator's loss for the features", LogUniform(0.01, 100), minimum=0)
    ] = 1.0
    discriminator_steps: Annotated[
        int, Field("discriminator steps for each step of the classifier", LogUniform(1, 8, integer=True), minimum=0)
    ] = 1
    gradient_penalty: Annotated[
        float, Field("weight of the discriminator's gradient penalty", LogUniform(0.01, 10), minimum=0)
    ] = 0.0
    penalty_form: Annotated[
        str,
        Field(
            "what the gradient penalty is the gradient of",
            choices=("cross_entropy", "softmax"),
            presets={"domainbed": At("softmax"), "mdlt": At("softmax")},
        ),
    ] = "cross_entropy"
    beta1: Annotated[float, Field("Adam's first beta", Choice(0.0, 0.5), minimum=0, maximum=0.999)] = 0.5
    discriminator_width: Annotated[int, Field("hidden width", LogUniform(64, 1024, integer=True), minimum=1)] = 256
    discriminator_depth: Annotated[int, Field("linear layers", Choice(3, 4, 5), minimum=1)] = 3
    discriminator_dropout: Annotated[
        float, Field("dropout inside the discriminator", Choice(0.0, 0.1, 0.5), minimum=0, maximum=0.99)
    ] = 0.0
    discriminator_rate: Annotated[
        float,
        Field(
            "the discriminator's learning rate",
            LogUniform(1e-5, 10**-3.5),
            minimum=0,
            presets={"arrays": At(1e-3, LogUniform(10**-4.5, 10**-2.5))},
        ),
    ] = 5e-5
    discriminator_decay: Annotated[
        float,
        Field(
            "the discriminator's weight decay",
            LogUniform(1e-6, 1e-2),
            minimum=0,
        ),
    ] = 0.0


@register(
    "DANN",
    summary="features from which a discriminator cannot tell the domain",
    paper="Ganin et al., Domain-Adversarial Training of Neural Networks (2016)",
    family="adversarial alignment",
    traits=Traits(adapts=True),
)
class DANN(Algorithm):
    Hparams = AdversarialHparams

    def build(self) -> None:
        hidden = [self.hparams.discriminator_width] * (self.hparams.discriminator_depth - 1)
        widths = [self.features_dim, *hidden, self.spec.num_domains + len(self.spec.targets)]
        self.discriminator = Perceptron(widths)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        h = self.hparams
        betas = (h.beta1, 0.9)
        own = {"lr": h.discriminator_rate, "weight_decay": h.discriminator_decay, "betas": betas}
        classifier = itertools.chain(self.featurizer.parameters(), self.head.parameters())
        return {
            "classifier": self.adam(classifier, betas=betas),
            "discriminator": self.adam(self.discriminator_parameters(), **own),
        }

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        turns = self.hparams.discriminator_steps
        if (self.steps_done + 1) % (1 + turns) < turns:
            with torch.no_grad():
                features, logits = self(batch.inputs)
            adversary = self.discriminator_loss(features, self.discriminated(logits, batch), batch.input_domains)
            risk = self.cross_entropy(logits[: len(batch)], batch.y)
            self.descend(adversary, "discriminator")
        else:
            features, logits = self(batch.inputs)
            adversary = self.discriminator_loss(features, self.discriminated(logits, batch), batch.input_domains)
            risk = self.cross_entropy(logits[: len(batch)], batch.y)
            self.descend(risk - self.hparams.adversary_weight * adversary, "classifier")
        loss = risk - self.hparams.adversary_weight * adversary
        return {"loss": loss.detach(), "risk": risk.detach(), "discriminator": adversary.detach()}

    def discriminated(self, logits: Tensor, batch: Batch) -> Tensor:
        """The class of each row that D reads (N + U,): the label, or of an unlabelled row the likeliest class."""
        return torch.cat([batch.y, logits[len(batch) :].detach().argmax(1)])

    def discriminator_loss(self, features: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """L_D of features (n, h) with classes and domains (n,)."""
        inputs = self.discriminator_inputs(features, y)
        penalised = self.hparams.gradient_penalty > 0
        if penalised and not inputs.requires_grad:
            inputs.requires_grad_()
        logits = self.discriminate(inputs)
        loss = self.domain_risk(logits, y, domain)
        if penalised:
            penalty = input_gradient_penalty(inputs, logits, domain, self.hparams.penalty_form)
            loss = loss + self.hparams.gradient_penalty * penalty
        return loss

    def discriminate(self, values: Tensor) -> Tensor:
        """D: (n, h) -> (n, K)."""
        probability = self.hparams.discriminator_dropout
        drop = (lambda hidden: self.dropped(hidden, probability)) if probability > 0 else None
        return self.discriminator(values, drop)

    def discriminator_parameters(self) -> Iterable[nn.Parameter]:
        return self.discriminator.parameters()

    def discriminator_inputs(self, features: Tensor, y: Tensor) -> Tensor:
        """What D reads: (n, h), labels (n,) -> (n, h)."""
        return features

    def domain_risk(self, logits: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """The cross-entropy in L_D, of D's logits (n, K), with classes and domains (n,)."""
        return F.cross_entropy(logits, domain)
