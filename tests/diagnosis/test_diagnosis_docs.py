"""The examples of the page run, and it names every number of the report."""

from __future__ import annotations

import dataclasses
import doctest
import re
from pathlib import Path

import pytest

from rcalign.diagnosis import findings

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"


def test_the_examples_run() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


NUMBERS = {
    findings.HeldOut: "risk support_risk gap prior_part feature_part unsupported_part unsupported_mass prior_bound "
    "feature_bound unsupported_bound bound tight_bound",
    findings.Chain: "supported_mass distance via_centroids transport_cost scatter alignment_loss "
    "alignment_loss_as_trained phi phi_bound log_count diameter diameter_seen steps chained risk_bound",
    findings.MixtureFit: "weights distance source_risk guarantee label_jump weights_from weights_exact assumption",
    findings.Target: "verdict left reference floor p",
    findings.PriorEstimates: "em bbse agree condition_number left allowed",
    findings.Distance: "value error lower upper exact",
    findings.Contraction: "share",
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_number_is_explained(kind: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = NUMBERS[kind].split()
    assert set(names) <= {field.name for field in dataclasses.fields(kind)}
    assert not [name for name in names if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)]
