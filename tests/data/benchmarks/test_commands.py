"""The commands: data list, prepare, fetch, verify, sample; and a benchmark's name wherever data are asked for."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from packing import pack, zipped
from serving import File, serving
from test_prepare import tree

Run = Callable[..., tuple[int, str, str]]


def test_sample_info_and_list(rcalign: Run, own_root: Path) -> None:
    code, out, _ = rcalign("data", "sample", "pacs", "--out", own_root, "--each", 2, "--size", 16)
    assert code == 0 and f"56 drawn images written to {own_root}/PACS" in out
    assert f"rcalign data info PACS:root={own_root}" in out
    code, out, _ = rcalign("data", "info", "PACS")
    assert code == 0 and "art_painting" in out and "a drawn stand-in for PACS" in out
    code, out, _ = rcalign("data", "list", "--json")
    state = {row["name"]: row["state"] for row in json.loads(out)}
    assert state["PACS"] == "stand-in" and state["VLCS"] == "–"
    assert {"hearts", "sentiment", "Camelyon17", "FMoW", "SpawriousM2M_hard", "SVIRO", "RotatedMNIST"} <= state.keys()
    assert rcalign("data", "list")[0] == 0


def test_train_by_name(rcalign: Run, own_root: Path) -> None:
    """From nothing to a trained model on a stand-in, held out and long-tailed."""
    rcalign("data", "sample", "VLCS", "--out", own_root, "--each", 5, "--size", 32)
    options = ("--algorithm", "ERM", "--steps", 2, "--weights", "none", "--image-size", 32, "--device", "cpu")
    code, out, err = rcalign(
        "train", "vlcs", "--test-domain", "SUN09", *options, "--out", "run", "--set", "batch_size=2"
    )
    assert code == 0, err
    assert "SUN09" in out and json.loads(Path("run/result.json").read_text())["accuracy"].keys() == {"SUN09"}
    rcalign("data", "sample", "VLCS-MLT", "--out", "tail", "--size", 32)
    code, out, err = rcalign("train", "VLCS-MLT:root=tail", *options, "--protocol", "mdlt", "--out", "tailed")
    assert code == 0, err
    assert "Caltech101" in out and "few (" in out


def test_runs_are_named_after_the_benchmark(rcalign: Run, tmp_path: Path) -> None:
    rcalign("data", "sample", "VLCS", "--out", "my.root", "--each", 5, "--size", 32)
    options = ("--steps", 1, "--weights", "none", "--image-size", 32, "--set", "batch_size=2")
    code, _, err = rcalign("train", "VLCS:root=my.root,partial=true", "--test-domain", "SUN09", *options)
    assert code == 0, err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["VLCS_partial_true-RC_Align-SUN09-lodo-seed0"]


def test_prepare_and_verify(rcalign: Run, own_root: Path, pictures: Path, tmp_path: Path) -> None:
    archive = pack(pictures / "PACS", tmp_path / "PACS.zip", "PACS/")
    code, out, err = rcalign("data", "prepare", "PACS", "--from", archive)
    assert code == 0, err
    assert "photo: 14 images" in out and "Not as published: art_painting/dog has 2 images, 379 expected" in out
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    code, out, _ = rcalign("data", "verify", "PACS")
    assert code == 1 and "sketch" in out and "Known editions: as published: 9,991" in out
    code, out, _ = rcalign("data", "verify", "PACS-MLT", "--json", "--decode")
    assert code == 1 and json.loads(out)["split"]["train"] == 0
    code, _, err = rcalign("data", "prepare", "PACS", "--from", archive)
    assert code == 2 and "--replace" in err
    assert rcalign("data", "prepare", "PACS", "--from", archive, "--replace")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data", "prepare", "PACS", "--from", "nowhere.zip"), "'{here}/nowhere.zip' does not exist"),
        (("data", "prepare", "PAX", "--from", "."), "unknown benchmark 'PAX': did you mean 'PACS'?"),
        (("data", "prepare", "emoji", "--from", "."), "comes with a package"),
        (("data", "verify", "VLCS"), "VLCS is not in the data root"),
        (("data", "fetch", "PACS", "--mirror", "nas"), "the mirror 'nas' is no address"),
        (("data", "sample", "PACS", "--out", "x", "--each", "0"), "--each is 0"),
        (("data", "prepare", "RotatedMNIST", "--from", "."), "MNIST is not whole"),
    ],
)
def test_faults(words: tuple[str, ...], said: str, rcalign: Run, tmp_path: Path) -> None:
    code, _, err = rcalign(*words)
    assert code == 2
    assert said.format(here=tmp_path) in err
    assert "Traceback" not in err


def test_a_hostile_archive(rcalign: Run, own_root: Path, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "PACS.zip", {"photo/dog/1.jpg": b"x", "../../x": b"x"})
    code, _, err = rcalign("data", "prepare", "PACS", "--from", archive)
    assert code == 2 and "entry '../../x' of" in err


def test_fetch_from_a_mirror(rcalign: Run, own_root: Path, pictures: Path, tmp_path: Path) -> None:
    archive = pack(pictures / "PACS", tmp_path / "PACS.zip", "kfold/")
    with serving({"PACS.zip": File(archive.read_bytes())}) as server:
        code, _, err = rcalign("data", "fetch", "PACS", "--mirror", server.url, "--keep-archives")
    assert code == 0, err
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    assert (own_root / "downloads/PACS/PACS.zip").is_file()


def test_mnist(rcalign: Run, own_root: Path) -> None:
    assert rcalign("data", "sample", "RotatedMNIST", "--out", own_root, "--each", 2)[0] == 0
    code, out, _ = rcalign("data", "info", "RotatedMNIST")
    assert code == 0 and "120" in out
    code, out, _ = rcalign("data", "verify", "ColoredMNIST")
    assert code == 1 and "drawn stand-in" in out


def test_stopped_by_the_user(own_root: Path, pictures: Path, tmp_path: Path) -> None:
    archive = pack(pictures / "PACS", tmp_path / "PACS.zip", "kfold/").read_bytes()
    with serving({"PACS.zip": File(archive, pace=0.05)}) as server:
        command = [sys.executable, "-m", "rcalign.cli", "data", "fetch", "PACS", "--mirror", server.url]
        # tests started in the background inherit that interrupts are ignored
        hear = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}, preexec_fn=hear)
        until = time.monotonic() + 60
        while not list(own_root.glob("downloads/PACS/*.part")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "stopped; the same command goes on where this one was." in err
    assert "Traceback" not in err
