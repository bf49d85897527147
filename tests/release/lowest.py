"""Prints the lowest versions that pyproject.toml allows, as constraints for pip: each lower bound as the only choice.

    python tests/release/lowest.py > lowest.txt; pip install -c lowest.txt '.[all,dev]'

``make lowest`` does so in a scratch environment and runs the fast tests there. Checkers, builders and the documentation
have no part in it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
TOOLS = ("build", "mypy", "ruff", "selenium", "setuptools")  # they do not run with the package


def lowest_versions(project: Mapping[str, Any]) -> dict[str, str]:
    """Package -> the lowest version that a project allows, of its dependencies and extras.

    >>> lowest_versions({"dependencies": ["numpy>=1.26"], "optional-dependencies": {"a": ["onnx>=1.16", "x==2"]}})
    {'numpy': '1.26', 'onnx': '1.16', 'x': '2'}
    """
    extras = project.get("optional-dependencies", {})
    texts = [*project["dependencies"], *(text for name, own in extras.items() if name != "docs" for text in own)]
    found = {}
    for wanted in map(Requirement, texts):
        bounds = [one.version for one in wanted.specifier if one.operator in (">=", "==")]
        if wanted.name not in TOOLS and bounds:
            found[wanted.name] = bounds[0]
    return found


if __name__ == "__main__":
    for name, version in lowest_versions(tomllib.loads(PYPROJECT.read_text())["project"]).items():
        print(f"{name}=={version}")
