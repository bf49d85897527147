"""A model card in Markdown, from what the run recorded: nothing in it is written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rcalign import registry
from rcalign.errors import InputError
from rcalign.evaluation.metric_table import Metric, domain_values, measured_metrics
from rcalign.exports.formats import Exported
from rcalign.models import boosted_trees
from rcalign.models.backbones import DEFAULT_IMAGE_BACKBONE
from rcalign.store.json_files import write_json
from rcalign.store.names import short_data_name
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunConfig

FINDINGS_FILE = "findings.json"  # in the folder of a model of ``fit``
FEW = 20  # training samples of a (domain, class) pair from which on it is not called rare
MOST = 12  # lines of a list before it is cut


def card_file(file: Path) -> Path:
    """Where the card of an exported file lies: each file has its own.

    >>> str(card_file(Path("out/model.onnx")))
    'out/model.onnx-card.md'
    """
    return file.with_name(f"{file.name}-card.md")


def model_card(
    config: RunConfig,
    result: RunResult | None,
    exported: Exported | None = None,
    findings: Sequence[tuple[str, str]] = (),
    address: str | None = None,
    members: Sequence[RunConfig] = (),
    fit_findings: Sequence[tuple[str, str]] = (),
) -> str:
    """The card of a run. result: None for a run that is not finished. findings: (title, text) of a diagnosis.

    address: where the model is published. members: those of an ensemble. fit_findings: (title, text) of what ``fit``
    found when it made the model.
    """
    kind = "images" if config.image_size is not None else "arrays"
    if members:
        title = f"Ensemble of {len(members)} models"
        listed = "; ".join(f"{member.algorithm}, network {_network(member)}" for member in members)
        method = f"the mean of the probabilities of {len(members)} models ({listed})"
    else:
        entry = _entry(config)
        title = config.algorithm
        method = f"{entry.summary} ({entry.paper}). Network: {_network(config)}"
    parts = [
        f"# {title} on {_text(short_data_name(config.data))}",
        f"A classifier of {config.spec.num_classes} classes, trained on {config.spec.num_domains} domains, to be used "
        f"on further ones. Method: {method}"
        + (f", images of {config.image_size} x {config.image_size}." if kind == "images" else "."),
    ]
    if exported is not None:
        parts += ["## Use", *_use(exported)]
    if address is not None:
        new = "IMAGE..." if kind == "images" else "NEW.npz" if config.table is None else "NEW.csv"
        parts += ["## Use", f"```\npip install rcalign\nrcalign predict {address} {new}\n```"]
        parts += [
            f"In Python: `rcalign.predict({address!r}, [...])`, or the network itself: `rcalign.load({address!r})`."
        ]
    if fit_findings:
        parts += ["## What fit found", _listed(fit_findings)]
    parts += ["## Data", *_data(config, result)]
    parts += ["## Results", *_results(config, result)]
    parts += ["## Calibration", *_calibration(result)]
    if findings:
        parts += ["## Diagnosis", _listed(findings)]
    parts += ["## Limits", "\n".join(f"- {line}" for line in _limits(config, result))]
    parts.append("## How it was trained")
    for k, member in enumerate(members):
        parts += [f"### Model {k}", *_training(member, None)]
    if not members:
        parts += _training(config, result)
    return "\n\n".join(parts) + "\n"


def keep_findings(run: str | Path, findings: Sequence[tuple[str, str]]) -> None:
    """Writes what ``fit`` found into the folder of its model, so that every card of it can say so."""
    write_json(Path(run) / FINDINGS_FILE, [list(finding) for finding in findings])


def kept_findings(run: str | Path) -> list[tuple[str, str]]:
    """What ``fit`` found when it made a model; empty for a model that it did not make."""
    file = Path(run) / FINDINGS_FILE
    if not file.is_file():
        return []
    try:
        return [(str(title), str(text)) for title, text in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):
        raise InputError(f"'{file}' is not a list of pairs of a title and a text: remove it.") from None


def _listed(findings: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- **{_text(title)}** {_text(text)}" for title, text in findings)


def _entry(config: RunConfig) -> registry.Description:
    return boosted_trees.ABOUT if config.algorithm == boosted_trees.ABOUT.name else registry.get(config.algorithm)


def _network(config: RunConfig) -> str:
    """What the network is called."""
    if config.algorithm == boosted_trees.ABOUT.name:
        return "none, decision trees"
    return config.backbone or (DEFAULT_IMAGE_BACKBONE if config.image_size is not None else "a small network")


def _use(exported: Exported) -> list[str]:
    lines = [f"- file: `{exported.file.name}` ({exported.format})", f"- input: {exported.input}"]
    lines.append(f"- output: {exported.output}")
    if exported.difference is not None:
        lines.append(
            f"- checked: the largest difference of a logit from the trained model is {exported.difference:.1e} on "
            f"{exported.samples} inputs"
        )
    return ["\n".join(lines)]


def _data(config: RunConfig, result: RunResult | None) -> list[str]:
    spec = config.spec
    protocol = "All domains trained."
    if config.test_domains:
        protocol = f"Held out, never trained on: {', '.join(map(_text, config.test_domains))}."
    elif result is not None and result.accuracy:
        protocol = "All domains trained; each was tested on rows held out."
    head = ["class", *spec.domains, "all"]
    rows = [
        [name, *(row[c] for row in spec.counts), sum(row[c] for row in spec.counts)]
        for c, name in enumerate(spec.classes)
    ]
    rows.append(["all", *(sum(row) for row in spec.counts), sum(map(sum, spec.counts))])
    shown = rows if len(rows) <= 40 else rows[-1:]
    return [
        f"{_text(config.data)}, fingerprint `{config.data_fingerprint[:16]}`. {protocol} Training samples:",
        _table(head, shown),
    ]


def _results(config: RunConfig, result: RunResult | None) -> list[str]:
    if result is None or not result.accuracy:
        return [
            "The run is not finished: nothing was tested yet." if result is None else "Nothing was held out to test on."
        ]
    unseen = "an unseen domain" if config.test_domains else "rows held out"
    text = (
        f"Measured on {unseen}. The checkpoint was chosen on validation rows of the source domains "
        f"({_percent(result.validation)} % right there): {_text(result.weights)}."
    )
    found = result.to_json()
    columns = {metric: domain_values(found, metric.name) for metric in measured_metrics(found)}
    rows = [[d, *(_shown(m, values.get(d)) for m, values in columns.items())] for d in result.accuracy]
    of_columns = {"average": lambda m, values: sum(values) / len(values), "worst": lambda m, values: m.worst(values)}
    for label, of_column in of_columns.items():
        rows.append([label, *(_shown(m, of_column(m, list(v.values())) if v else None) for m, v in columns.items())])
    helps = "; ".join(f"{metric.title}: {metric.help}" for metric in columns if metric.help)
    return [text, _table(["domain", *(metric.title for metric in columns)], rows), f"Shares in per cent. {helps}."]


def _calibration(result: RunResult | None) -> list[str]:
    found = result.calibration if result is not None else None
    if not found or not found["rows"]:
        return ["Probabilities are not calibrated."]
    names = {"val": "source domains, validation", "test": "test"}
    if found.get("from_left_out"):
        names["test"] = "domains left out"
    rows = [[names[part], _percent(error["before"]), _percent(error["after"])] for part, error in found["ece"].items()]
    which = "rows of domains left out" if found.get("from_left_out") else "validation rows of the source domains"
    return [
        f"Logits are divided by the temperature {found['temperature']:.3g}, fitted on {found['rows']} {which}. "
        "Expected calibration error (15 bins), per cent:",
        _table(["rows", "before", "after"], rows),
    ]


def _limits(config: RunConfig, result: RunResult | None) -> list[str]:
    spec = config.spec
    lines = [
        "It knows the classes above and no others: what belongs to none of them gets one of them all the same, unless "
        "predictions below a confidence are read as unknown.",
    ]
    if config.test_domains:
        lines.append(
            f"The figures are of {len(config.test_domains)} unseen domain{'s' * (len(config.test_domains) > 1)}, one "
            "training run. The next domain may be easier or harder; `rcalign evaluate DATA --leave-one-out` says how "
            "much that varies."
        )
    calibration = (result.calibration if result is not None else None) or {}
    if not config.test_domains and calibration.get("from_left_out"):
        lines.append(
            "Every domain was trained on. What is said of a new domain comes from models of the same method that left "
            "out one domain each, and holds if the new domain is drawn like these."
        )
    elif not config.test_domains:
        lines.append("Every domain was trained on: the figures say nothing about a new domain.")
    test = calibration.get("ece", {}).get("test")
    if test is not None and calibration.get("from_left_out"):
        lines.append(f"On domains left out, {_percent(test['after'])} % calibration error remain.")
    elif test is not None:
        lines.append(
            f"The temperature comes from domains that were trained on; on the test rows {_percent(test['after'])} % "
            "calibration error remain."
        )
    absent = [
        (d, c) for k, d in enumerate(spec.domains) for c, n in zip(spec.classes, spec.counts[k], strict=True) if n == 0
    ]
    rare = [
        (d, c)
        for k, d in enumerate(spec.domains)
        for c, n in zip(spec.classes, spec.counts[k], strict=True)
        if 0 < n <= FEW
    ]
    if absent:
        lines.append(f"No training sample of: {_pairs(absent)}.")
    if rare:
        lines.append(f"At most {FEW} training samples of: {_pairs(rare)}.")
    if result is not None and result.batch_dependent:
        lines.append("A prediction depends on the other samples of its batch.")
    return lines


def _training(config: RunConfig, result: RunResult | None) -> list[str]:
    trees = config.algorithm == boosted_trees.ABOUT.name
    length = config.steps if result is None else f"{result.steps} ({result.seconds:.0f} s on {config.device})"
    facts = {
        "algorithm": config.algorithm,
        "protocol": config.protocol if trees else f"{config.protocol}, preset {config.preset}",
        "rounds of trees" if trees else "steps": length,
        "seed": config.seed,
    }
    if not trees:
        facts |= {
            "weights before training": f"{config.weights or 'pretrained'} ({config.weights_fingerprint})",
            "backbone": "frozen" if config.freeze_backbone else "trained",
            "precision": config.precision,
            "averaging": config.average or "none",
        }
    versions = ", ".join(f"{name} {number}" for name, number in config.versions.items())
    return [
        _table(["what", "value"], [[name, value] for name, value in facts.items()]),
        _table(["hyperparameter", "value"], [[name, value] for name, value in config.hparams.items()]),
        f"Versions: {versions}.",
    ]


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(value if value == "---" else _text(str(value)) for value in line) + " |" for line in lines
    )


def _text(value: str) -> str:
    """A name of the user's inside Markdown: on one line, with nothing that would be read as layout."""
    plain = " ".join(value.split())
    for sign in "\\`*_[]<>|#":
        plain = plain.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return plain


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    shown = ", ".join(f"{_text(label)} in {_text(domain)}" for domain, label in pairs[:MOST])
    return shown + (f" and {len(pairs) - MOST} more" if len(pairs) > MOST else "")


def _shown(metric: Metric, value: float | None) -> str:
    return "–" if value is None else metric.shown(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
