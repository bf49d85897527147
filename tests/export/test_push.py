"""Publishing and loading again, by the real client of the hub, against a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from loopback_hub import Hub, Repository, running_hub

import rcalign
from rcalign import api
from rcalign.algorithms.base import seeded
from rcalign.checkpoints import save_weights
from rcalign.errors import InputError
from rcalign.exports import model_hub
from toy import dark_and_light

pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")
WORK = """
import json, os, sys
from rcalign import api
from rcalign.errors import InputError
for token, name, words, options in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    try:
        result = getattr(api, name)(*words, **options)
        print(json.dumps(result if isinstance(result, dict) else type(result).__name__))
    except InputError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on rows, whose data lie beside it."""
    folder = tmp_path_factory.mktemp("secret-place")
    rng = np.random.default_rng(0)
    y, domain = np.arange(120) % 2, np.arange(120) // 2 % 3
    np.savez(folder / "rows.npz", x=rng.normal(size=(120, 4)) + y[:, None], y=y, domain=domain)
    np.savez(folder / "new.npz", x=rng.normal(size=(5, 4)))
    rcalign.train(folder / "rows.npz", "ERM", ["2"], steps=20, out=folder / "run")
    return folder / "run"


def call(hub_url: str, cache: Path, *calls: Any) -> list[Any]:
    """Calls functions of the API, each with a token, in one process of its own: the client reads the hub's address when
    it is imported. Returns their results, or errors in words."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings |= {"HF_ENDPOINT": hub_url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", WORK, json.dumps(calls)], env=settings, capture_output=True, text=True, cwd=cache.parent
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line[:1] in '{"']


@pytest.mark.slow
def test_what_is_published_predicts_the_same_elsewhere(hub: Hub, run: Path, tmp_path: Path) -> None:
    here, new, address = str(run), str(run.parent / "new.npz"), "hf://me/model"
    hub.repositories["me/other"] = Repository(private=False, files={"config.json": b"{}"})
    pushed, loaded, predicted, own, evaluated, *errors = call(
        hub.url,
        tmp_path / "cache",
        ("writer", "push", (here, "me/model"), {"private": True}),
        ("writer", "load", (address,), {}),
        ("writer", "predict", (address, [new]), {}),
        ("writer", "predict", (here, [new]), {}),
        ("writer", "evaluate", (address, str(run.parent / "rows.npz")), {}),
        ("writer", "load", ("hf://me/model@v9",), {}),
        ("writer", "load", ("hf://me/absent",), {}),
        ("", "load", ("hf://me/absent",), {}),
        ("", "push", (here, "me/new"), {}),
        ("reader", "push", (here, "me/new"), {}),
        ("reader", "load", ("hf://me/other",), {}),
        ("writer", "push", (here, "me/other"), {"private": True}),
    )
    published = hub.repositories["me/model"]
    assert pushed["commit"] == published.sha and published.private
    assert loaded == "TrainedModel" and predicted["rows"] == own["rows"]
    assert set(evaluated["accuracy"]) == {"0", "1", "2"}
    assert any("not recognised" in note for note in evaluated["notes"])

    assert published.lfs == {"best.safetensors"}
    assert published.files["best.safetensors"] == (run / "best.safetensors").read_bytes()
    assert set(published.files) == set(pushed["files"])
    for name, content in published.files.items():
        assert b"secret-place" not in content, f"{name} has a path of this machine"
    assert address.encode() in published.files["README.md"]

    expected = ("revision (404)", "has no model 'me/absent'", "(401)", "write 'me/new' (401)", "write 'me/new' (403)")
    for error, words in zip(errors, (*expected, "is no model of rcalign", "exists and is public"), strict=True):
        assert words in error and "\n" not in error
    assert "me/new" not in hub.repositories and set(hub.repositories["me/other"].files) == {"config.json"}

    for error in call(
        "http://127.0.0.1:9",  # where nobody answers
        tmp_path / "another cache",
        ("writer", "push", (here, "me/model"), {}),
        ("writer", "load", (address,), {}),
    ):
        assert "cannot be reached" in error and "\n" not in error


@pytest.mark.slow
def test_ensembles_soups_and_changes_of_low_rank_predict_the_same_elsewhere(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    place, rows = tmp_path / "secret-place", run.parent / "rows.npz"
    photos = dark_and_light(place / "photos", each=8, gap=60, width=160)
    options: dict[str, Any] = {"steps": 4, "evaluate_every": 2, "hparams": {"batch_size": 4}}
    rcalign.train(rows, "CORAL", ["2"], out=place / "other", **options)
    rcalign.train(rows, "ERM", ["2"], out=place / "more", **options)
    small = {"backbone": "test_vit", "weights": "none", "image_size": 32, **options}
    rcalign.train(photos, "ERM", ["c"], out=place / "low-rank", lora=2, **small)
    rcalign.train(photos, "ERM", ["c"], out=place / "trained", **small)
    weights = save_backbone(place / "weights.safetensors")
    rcalign.train(photos, "ERM", ["c"], out=place / "frozen", **{**small, "weights": weights}, freeze_backbone=True)
    api.soup([run, place / "more"], out=place / "soup")
    api.ensemble([run, place / "other"], out=place / "ensemble")
    api.ensemble([place / "trained", place / "frozen"], out=place / "of photos")
    subjects = {
        "soup": run.parent / "new.npz",
        "ensemble": run.parent / "new.npz",
        "low-rank": photos / "c",
        "of photos": photos / "c",
    }
    calls, own = [], []
    for kind, new in subjects.items():
        name = f"me/{kind.replace(' ', '-')}"
        calls += [("writer", "push", (str(place / kind), name), {})]
        calls += [("writer", "predict", (f"hf://{name}", [str(new)]), {"device": "cpu"})]
        own.append(api.predict(place / kind, [new], device="cpu")["rows"])
    found = call(hub.url, tmp_path / "cache", *calls)
    for kind, expected, elsewhere in zip(subjects, own, found[1::2], strict=True):
        assert elsewhere["rows"] == json.loads(json.dumps(expected)), kind
    for name, repository in hub.repositories.items():
        for file, content in repository.files.items():
            assert b"secret-place" not in content, f"{file} of {name} has a path of this machine"
    card = hub.repositories["me/ensemble"].files["README.md"].decode()
    assert "# Ensemble of 2 models on rows" in card and "### Model 1" in card
    assert {file for file in hub.repositories["me/of-photos"].files if "backbone" in file} == {
        f"members/{k}/backbone.safetensors" for k in (0, 1) if is_frozen(place / "of photos" / "members" / str(k))
    }


def is_frozen(member: Path) -> bool:
    return bool(json.loads((member / "config.json").read_text())["freeze_backbone"])


def save_backbone(file: Path) -> Path:
    """Weights of the network ``test_vit``, as somebody's own file has them."""
    with seeded(3):
        save_weights(file, timm.create_model("test_vit", num_classes=0).state_dict())
    return file


def test_a_dry_run_lists_the_files_and_asks_nobody(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_hub, "_client", lambda: pytest.fail("the client was asked for"))
    done = rcalign.push(run, "me/model", dry_run=True)
    assert set(done["files"]) == {"README.md", "best.safetensors", "config.json", "result.json"}
    assert done["commit"] is None and done["files"]["best.safetensors"] == (run / "best.safetensors").stat().st_size


def test_what_cannot_be_published_is_said(run: Path, tmp_path: Path) -> None:
    for name in ("model", "a/b/c", "../x", "me/", "me/m odel"):
        with pytest.raises(InputError, match="OWNER/NAME"):
            rcalign.push(run, name)
    for address in ("hf://model", "hf://", "hf://a/b/c"):
        with pytest.raises(InputError, match="OWNER/NAME"):
            rcalign.load(address)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(InputError, match="not finished"):
        rcalign.push(unfinished, "me/model")


@pytest.mark.parametrize("place", ["", "members/1", "members/0/members/0"])
def test_modules_that_a_stranger_names_are_not_imported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The download itself is in the tests above; here it is a folder that lies there already."""
    config = json.loads((run / "config.json").read_text())
    for folder in {tmp_path, tmp_path / "members/0", tmp_path / place}:
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("best.safetensors", "result.json", "config.json"):
            (folder / file).write_bytes((run / file).read_bytes())
    (tmp_path / place / "config.json").write_text(json.dumps({**config, "imports": ["this"]}))

    class Client:
        snapshot_download = staticmethod(lambda *words, **options: str(tmp_path))

    monkeypatch.setattr(model_hub, "_client", lambda: Client)
    with pytest.raises(InputError, match="'this'"):
        rcalign.load("hf://me/model")
    assert "this" not in sys.modules
