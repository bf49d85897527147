"""The metrics that evaluations, records, reports, exports and model cards loop over.

A new metric is one entry of this table and its function in ``metrics``; a user's own is added by ``register_metric``.
Checkpoints and runs are chosen by accuracy whatever else is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rcalign.errors import InputError
from rcalign.evaluation import metrics
from rcalign.evaluation.metrics import Floats, Integers
from rcalign.extensions import import_entry_points

Needs = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class Metric:
    """One figure of a classifier's outputs on the rows of one domain.

    function: (scores (n, C), labels (n,)) -> value, or None where it is not defined for these rows.
    needs: "logits" are the network's outputs, known at every evaluation; "probabilities" are those that users get,
    after the temperature, which is fitted once a run is finished.
    title: of a column. help: one sentence. per_cent: the value is a share and is shown times 100.
    """

    name: str
    function: Callable[[Floats, Integers], float | None]
    higher_is_better: bool
    needs: Needs
    title: str
    help: str
    per_cent: bool = True

    @property
    def scale(self) -> float:
        """What a value is multiplied with before it is shown."""
        return 100.0 if self.per_cent else 1.0

    def shown(self, value: float) -> str:
        """A value as tables print it.

        >>> METRICS["accuracy"].shown(0.625), METRICS["nll"].shown(0.625)
        ('62.5', '0.625')
        """
        return f"{100 * value:.1f}" if self.per_cent else f"{value:.3f}"

    def worst(self, values: Sequence[float]) -> float:
        """The least good of some values."""
        return min(values) if self.higher_is_better else max(values)


METRICS: dict[str, Metric] = {}


def register_metric(
    name: str,
    function: Callable[[Floats, Integers], float | None],
    *,
    higher_is_better: bool,
    needs: Needs = "logits",
    title: str | None = None,
    help: str = "",
    per_cent: bool = True,
) -> Metric:
    """Adds a metric to the table: from then on it is in records, evaluations, reports, exports and model cards.

    >>> import numpy as np
    >>> added = register_metric(
    ...     "top2", lambda logits, y: float((np.argsort(-logits, 1)[:, :2] == y[:, None]).any(1).mean()),
    ...     higher_is_better=True, title="top 2", help="share of rows whose label is among the two largest logits",
    ... )
    >>> added.function(np.array([[3.0, 2.0, 1.0]]), np.array([1]))
    1.0
    >>> METRICS.pop("top2") == added
    True
    """
    if not name.isidentifier():
        raise InputError(f"the metric's name is '{name}', but letters, digits and underscores are expected.")
    if name in METRICS:
        raise InputError(f"there already is a metric '{name}': give yours another name.")
    if needs not in ("logits", "probabilities"):
        raise InputError(f"the metric '{name}' needs '{needs}', but 'logits' or 'probabilities' is expected.")
    METRICS[name] = Metric(name, function, higher_is_better, needs, title or name.replace("_", " "), help, per_cent)
    return METRICS[name]


def known_metrics(names: Iterable[str]) -> list[Metric]:
    """The metrics of these names in the table's order; names that a record has but nobody registered are left out.

    >>> [metric.name for metric in known_metrics(["nll", "of another program", "accuracy"])]
    ['accuracy', 'nll']
    """
    wanted = set(names)
    return [metric for metric in METRICS.values() if metric.name in wanted]


def measured_metrics(result: Mapping[str, Any]) -> list[Metric]:
    """The metrics that a result (of a run, or of ``evaluate``) has; those of format 1 have accuracy and its mean over
    classes."""
    return known_metrics(result.get("metrics") or ("accuracy", "balanced_accuracy"))


def domain_values(result: Mapping[str, Any], name: str) -> dict[str, float]:
    """Domain -> value of a metric on its test part, of the domains where it has one.

    >>> domain_values({"metrics": {"nll": {"a": {"val": 0.1, "test": 0.2}, "b": {"val": 0.3}}}}, "nll")
    {'a': 0.2}
    >>> domain_values({"accuracy": {"a": 0.9}, "balanced": {"a": 0.8}}, "balanced_accuracy")
    {'a': 0.8}
    """
    if not result.get("metrics"):
        return dict(result[{"balanced_accuracy": "balanced"}.get(name, name)])
    return {domain: parts["test"] for domain, parts in result["metrics"].get(name, {}).items() if "test" in parts}


register_metric(
    "accuracy",
    metrics.accuracy,
    higher_is_better=True,
    help="share of rows that are classified right",
)
register_metric(
    "balanced_accuracy",
    metrics.balanced_accuracy,
    higher_is_better=True,
    title="balanced accuracy",
    help="mean of the recalls of the classes that occur",
)
register_metric(
    "worst_class",
    metrics.worst_class_recall,
    higher_is_better=True,
    title="worst class",
    help="smallest recall of a class that occurs",
)
register_metric(
    "macro_f1",
    metrics.macro_f1,
    higher_is_better=True,
    title="macro F1",
    help="mean F1 of the classes that occur",
)
register_metric(
    "auroc",
    metrics.auroc,
    higher_is_better=True,
    needs="probabilities",
    title="AUROC",
    help="mean area under the ROC curve of each class against the rest",
)
register_metric(
    "calibrated_nll",
    metrics.log_loss,
    higher_is_better=False,
    needs="probabilities",
    title="NLL",
    help="mean negative log likelihood of the calibrated probabilities, in nats",
    per_cent=False,
)
register_metric(
    "nll",
    metrics.negative_log_likelihood,
    higher_is_better=False,
    title="NLL (uncalibrated)",
    help="mean negative log likelihood of the network's outputs, in nats",
    per_cent=False,
)
register_metric(
    "brier",
    metrics.brier_score,
    higher_is_better=False,
    needs="probabilities",
    title="Brier score",
    help="mean squared distance of the calibrated probabilities from the label's one-hot vector, 0 to 2",
    per_cent=False,
)
register_metric(
    "calibration_error",
    metrics.expected_calibration_error,
    higher_is_better=False,
    needs="probabilities",
    title="calibration error",
    help="expected calibration error (15 bins) of the calibrated probabilities",
)
register_metric(
    "uncalibrated_calibration_error",
    lambda logits, y: metrics.expected_calibration_error(metrics.softmax(logits), y),
    higher_is_better=False,
    title="calibration error (uncalibrated)",
    help="expected calibration error (15 bins) of softmax of the network's outputs",
)

import_entry_points("rcalign.metrics")
