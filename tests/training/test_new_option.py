"""A new option is one field of ``TrainOptions``: the command line, plans, the estimator and config.json find it there.

The package is copied, the field added to the copy, and everything else is looked at in a process that uses the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rcalign

PACKAGE = Path(rcalign.__file__).parent
FIELD = """    look_twice: Annotated[
        int | None, Option(help="How often to look again.", group=METHOD, when_none="once", minimum=1)
    ] = None

    def __post_init__(self)"""
LOOK = """
import json, sys
import numpy as np
from rcalign import api, cli
from rcalign.errors import InputError
from rcalign.estimator import DomainClassifier
from rcalign.store.run_folder import read_config
from rcalign.sweeps.plan import DataSummary, expand
from rcalign.sweeps.plan_file import parse_plan
from rcalign.training.options import options_from

sys.argv = ["rcalign", "train", "rows.npz", "--algorithm", "ERM", "--test-domain", "2", "--steps", "2", "--out", "run",
            "--look-twice", "5"]
try:
    cli.main()
except SystemExit as end:
    assert not end.code
plan = parse_plan({"data": "rows.npz", "algorithms": "ERM", "look_twice": 6, "test_domains": ["0"]})
(planned,) = expand(plan, lambda data: DataSummary(("0", "1", "2"), True))
try:
    parse_plan({"data": "rows.npz", "algorithms": "ERM", "look_twice": 0})
    refused = ""
except InputError as error:
    refused = str(error)
data = np.load("rows.npz")
model = DomainClassifier("ERM", steps=2, look_twice=7).fit(data["x"], data["y"], domains=data["domain"])
print(json.dumps({
    "config": json.load(open("run/config.json"))["look_twice"],
    "read": read_config("run").look_twice,
    "plan": options_from(plan.entry(planned)).look_twice,
    "refused": refused,
    "estimator": [model.get_params()["look_twice"], model.model_.config.look_twice],
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more option, and rows to train on."""
    folder = tmp_path_factory.mktemp("new_option")
    shutil.copytree(PACKAGE, folder / "src" / "rcalign", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "src" / "rcalign" / "training" / "options.py"
    text = file.read_text()
    changed = text.replace("    def __post_init__(self)", FIELD, 1)
    assert changed != text
    file.write_text(changed)
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.normal(size=(90, 4)), y=np.arange(90) % 2, domain=np.arange(90) % 3)
    return folder


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "120"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_help_shows_it(folder: Path) -> None:
    text = run(folder, "-m", "rcalign.cli", "train", "--help")
    assert "--look-twice" in text and "How often to look again." in text and "once" in text


@pytest.mark.slow
def test_a_command_a_plan_the_estimator_and_the_run_folder_carry_it(folder: Path) -> None:
    found = json.loads(run(folder, "-c", LOOK).splitlines()[-1])
    assert found == {
        "config": 5,
        "read": 5,
        "plan": 6,
        "refused": "look_twice is 0, but must be at least 1.",
        "estimator": [7, 7],
    }
