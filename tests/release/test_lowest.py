"""Every dependency says from which version on it works, and the lowest versions are not above those of the tests."""

from __future__ import annotations

import re
import tomllib

from lowest import PYPROJECT, TOOLS, lowest_versions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def test_every_dependency_has_a_lowest_version_that_the_tests_do_not_undercut() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    lowest = lowest_versions(project)
    for text in project["dependencies"]:
        assert Requirement(text).name in lowest, text
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (PYPROJECT.parent / "constraints.txt").read_text(), re.MULTILINE))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    for name, version in lowest.items():
        assert name not in TOOLS
        assert Version(version) <= Version(pins.get(canonicalize_name(name), version)), name
