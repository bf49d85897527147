"""The class priors of a trained model's target, checked on an equal footing with the rows of its sources."""

from __future__ import annotations

import numpy as np

from rcalign.diagnosis.findings import PriorEstimates
from rcalign.diagnosis.priors import estimate_priors
from rcalign.training.run_data import LabelledOutputs
from rcalign.training.trained import TrainedModel


def target_priors(
    model: TrainedModel,
    sources: LabelledOutputs,
    logits: np.ndarray,
    features: np.ndarray,
    untrained_features: np.ndarray | None,
) -> PriorEstimates:
    """Both estimates of the class shares among unlabelled rows, and whether they can be used.

    sources: of rows that the model was not trained on, or, of a model of ``fit``, that it has left-out logits for.
    logits (n, C): calibrated, of the target. features (m, h), untrained_features (m, f): of some of its rows.

    A model of ``fit`` was trained on every row of its sources, so their features lie closer together than those of any
    new site. There the target is compared by its probabilities, with those that each source got from a model that had
    not seen it, and by what the first trained layer reads, where training changed nothing.
    """
    untrained = None
    if sources.untrained_features is not None and untrained_features is not None:
        untrained = (sources.untrained_features, untrained_features)
    return estimate_priors(
        sources.logits / model.temperature,
        sources.labels,
        logits,
        classes=model.config.spec.classes,
        source_priors=model.training_priors,
        source_domains=sources.domains,
        features=None if sources.left_out else (sources.features, features),
        untrained_features=untrained,
    )
