"""What Tab offers, asked of a real bash that has read the completion script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rcalign.cli import completion

BASH = shutil.which("bash")
PROGRAM = Path(sys.executable).parent / "rcalign"
ASK = """
eval "$(rcalign --show-completion)"
COMP_WORDS=({words}); COMP_CWORD={last}
_rcalign_completion rcalign
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(BASH is None or not PROGRAM.exists(), reason="no bash, or rcalign is not installed here")
def test_bash_completes_what_was_begun(tmp_path: Path) -> None:
    assert BASH is not None
    words = ["rcalign", "train", "emoji", "--algorithm", "rc-"]
    script = ASK.format(words=" ".join(words), last=len(words) - 1)
    search = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    # --show-completion asks which shell started it
    ended = subprocess.run([BASH], input=script, capture_output=True, text=True, env=search, cwd=tmp_path)
    assert ended.stdout.split() == ["rc-align"], ended.stderr
    assert not ended.stderr


def test_runs_and_sweeps_are_found_below_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/deep/b", "runs/.hidden", "other/c", "sweeps/one/runs/d"):
        Path(name).mkdir(parents=True)
        Path(name, "config.json").touch()
    Path("sweeps/one/plan.json").touch()
    assert completion.complete_run("ru") == ["runs/a", "runs/deep/b"]
    assert completion.complete_run("runs/d") == ["runs/deep/b"]
    assert completion.complete_run(str(tmp_path / "o")) == [str(tmp_path / "other/c")]
    assert completion.complete_run("nothing/at/all") == []
    assert completion.complete_runs_folder("sw")[0] == "sweeps/one"


def test_a_tree_of_many_folders_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(completion, "MOST_FOLDERS", 10)
    for number in range(12):
        Path(f"run{number:02}").mkdir()
        Path(f"run{number:02}/config.json").touch()
    assert len(completion.complete_run("")) == 10


def test_names_and_files_of_data_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("em.csv", "em.txt", "em.toml"):
        Path(name).touch()
    Path("emails").mkdir()
    assert {"emoji", "em.csv", "emails/"} <= set(completion.complete_data("em"))
    assert "em.txt" not in completion.complete_data("em")
    assert {"emoji", "em.toml"} <= set(completion.complete_plan("em"))
    assert completion.complete_plan("sta") == ["status"]
