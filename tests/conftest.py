"""Shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


@pytest.fixture
def reference() -> Path:
    """The folder of recorded figures; a clone without it skips, and says so."""
    if not REFERENCE.is_dir():
        pytest.skip("the recorded reference figures are not part of this clone")
    return REFERENCE
