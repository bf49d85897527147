"""Models on the Hugging Face hub: a run's weights, configuration, figures and card, and the way back.

A published model is a run folder with the files that predicting needs. Weights are safetensors, everything else is JSON
or text: nothing that is downloaded is unpickled, and no module that it names is imported unasked.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rcalign import __version__
from rcalign.errors import InputError
from rcalign.exports.card import FINDINGS_FILE, kept_findings, model_card
from rcalign.store.names import short_data_name
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunConfig, RunFolder, read_config
from rcalign.training.trained import MEMBERS, member_folders

PREFIX = "hf://"
INSTALL = "pip install 'rcalign[hub]'"
BACKBONE = "backbone.safetensors"  # the weights of a frozen network that came from a file
SETS = "prediction-sets.json"  # of a model that 'fit' made
MODEL = ("config.json", "result.json", "best.safetensors", BACKBONE)  # of a run, and of every member of an ensemble
FILES = (*MODEL, SETS, FINDINGS_FILE, "README.md", *(f"{MEMBERS}/*/{file}" for file in MODEL))
LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"


def is_hub_model(run: str | Path) -> bool:
    """Whether a run is named by an address of the hub; a ``Path`` has lost one of the two slashes.

    >>> is_hub_model("hf://me/model"), is_hub_model(Path("hf://me/model")), is_hub_model("runs/one")
    (True, True, False)
    """
    return re.match(r"hf:/", str(run)) is not None


def parse_model_address(run: str | Path) -> tuple[str, str | None]:
    """OWNER/NAME and the revision of an address.

    >>> parse_model_address("hf://me/model"), parse_model_address("hf://me/model@v2")
    (('me/model', None), ('me/model', 'v2'))
    """
    name, _, revision = re.sub(r"^hf:/+", "", str(run)).partition("@")
    return check_repo(name, str(run)), revision or None


def check_repo(name: str, given: str | None = None) -> str:
    """The name of a repository, if it has the form OWNER/NAME."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is None:
        raise InputError(
            f"'{given or name}' is no name of a model: expected OWNER/NAME (as an address hf://OWNER/NAME)."
        )
    return name


def local_run(run: str | Path) -> Path:
    """The run folder: the given one, or that of a model of the hub, downloaded once into the hub's cache."""
    if not is_hub_model(run):
        return Path(run)
    name, revision = parse_model_address(run)
    client = _client()
    try:
        folder = Path(client.snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # the hub's client and what it uses raise many kinds
        raise _in_words(error, name, "read") from None
    weights = (folder / "best.safetensors").is_file() or bool(member_folders(folder))
    if not (folder / "config.json").is_file() or not weights:
        raise InputError(
            f"'{PREFIX}{name}' is no model of rcalign's (it has no config.json and best.safetensors): give one that "
            "'rcalign push' published."
        )
    for config in (read_config(file.parent) for file in folder.rglob("config.json")):
        for module in config.imports:  # code that a stranger names is not run unasked
            if module not in sys.modules:
                raise InputError(f"'{PREFIX}{name}' needs the module '{module}': import it first, if you trust it.")
    return folder


def push_run(run: str | Path, name: str, *, private: bool = False, dry_run: bool = False) -> dict[str, Any]:
    """Publishes a run. The result: ``files`` (name -> bytes), ``url``, and ``commit``, None with dry_run."""
    check_repo(name)
    files = published_files(run, name)
    sizes = {
        file: len(content) if isinstance(content, bytes) else content.stat().st_size for file, content in files.items()
    }
    done: dict[str, Any] = {"name": name, "files": sizes, "url": None, "commit": None, "address": PREFIX + name}
    if dry_run:
        return done
    client = _client()
    config = read_config(run)
    try:
        api = client.HfApi(library_name="rcalign", library_version=__version__)
        made = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.model_info(name).private:
            raise InputError(f"'{name}' exists and is public: make it private in its settings, or choose another name.")
        added = [
            client.CommitOperationAdd(
                path_in_repo=file, path_or_fileobj=content if isinstance(content, bytes) else str(content)
            )
            for file, content in files.items()
        ]
        commit = api.create_commit(name, added, commit_message=f"{config.algorithm}, by rcalign {__version__}")
    except InputError:
        raise
    except Exception as error:
        raise _in_words(error, name, "write") from None
    return {**done, "url": str(made), "commit": commit.oid}


def published_files(run: str | Path, name: str) -> dict[str, bytes | Path]:
    """What is published of a run: file -> its content, or where it lies."""
    config, folder = read_config(run), RunFolder(run)
    result = folder.result()
    if result is None:
        raise InputError(
            f"the run '{run}' is not finished: go on with 'rcalign train ... --resume' before it is published."
        )
    members = member_folders(run)
    if not folder.best_file.is_file() and not members:
        raise InputError(f"the run '{run}' kept no weights (`keep={config.keep}`): train it again with `keep=best`.")
    public = _public(config)
    inside = [_public(read_config(member)) for member in members]
    about = {
        "library_name": "rcalign",
        "tags": ["domain-generalization", "rcalign"],
        "pipeline_tag": "image-classification" if config.image_size is not None else "tabular-classification",
    }
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in about.items())
    found = kept_findings(run)
    text = model_card(public, result, address=PREFIX + name, members=inside, fit_findings=found)
    card = f"---\n{head}---\n\n{text}"
    files: dict[str, bytes | Path] = {
        "README.md": card.encode(errors="backslashreplace"),
        **_model_files(folder, config, public, result),
    }
    for k, (member, own) in enumerate(zip(members, inside, strict=True)):
        at = RunFolder(member)
        copied = _model_files(at, read_config(member), own, at.result())
        files |= {f"{MEMBERS}/{k}/{file}": content for file, content in copied.items()}
    for kept in (SETS, FINDINGS_FILE):
        if (folder.path / kept).is_file():
            files[kept] = folder.path / kept
    return files


def _public(config: RunConfig) -> RunConfig:
    """The configuration without paths of this machine."""
    changes: dict[str, Any] = {"data": short_data_name(config.data)}
    if config.weights not in (None, "none"):
        changes["weights"] = BACKBONE if config.freeze_backbone else Path(str(config.weights)).name
    return dataclasses.replace(config, **changes)


def _model_files(
    folder: RunFolder, config: RunConfig, public: RunConfig, result: RunResult | None
) -> dict[str, bytes | Path]:
    """The files that predicting needs. An ensemble has no weights of its own, its members have them."""
    files: dict[str, bytes | Path] = {
        "config.json": (json.dumps(dataclasses.asdict(public), indent=2) + "\n").encode(),
    }
    if result is not None:
        files["result.json"] = (json.dumps({**result.to_json(), "data": public.data}, indent=2) + "\n").encode()
    if not folder.best_file.is_file():
        return files
    files["best.safetensors"] = folder.best_file
    if public.weights == BACKBONE:
        backbone = folder.path / BACKBONE  # of a run that was itself downloaded
        if not backbone.is_file():
            backbone = Path(str(config.weights))
        if backbone.suffix != ".safetensors" or not backbone.is_file():
            raise InputError(
                f"the frozen network's weights '{backbone}' must be published too, but are not a .safetensors file "
                "that is here: train with such a file."
            )
        files[BACKBONE] = backbone
    return files


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(f"the hub needs huggingface_hub, which is not installed: {INSTALL}.") from None
    return huggingface_hub


def _in_words(error: BaseException, name: str, what: str) -> InputError:
    """The answer of the hub, or that there was none, in one sentence. what: was to be done, "read" or "write"."""
    status, first = _status(error), (str(error).strip() or type(error).__name__).splitlines()[0][:160]
    if status in (401, 403) and what == "write":
        return InputError(
            f"the hub does not let this account write '{name}' ({status}): {LOG_IN}, with the right to write."
        )
    if status in (401, 403):
        return InputError(f"the hub shows no model '{name}' to this account ({status}): check the name, or {LOG_IN}.")
    if status == 404:
        return InputError(f"the hub has no model '{name}', or not this revision (404): check the name, or {LOG_IN}.")
    if status is not None:
        return InputError(f"the hub answered {status} for '{name}' ({first}): try again later.")
    return InputError(f"the hub cannot be reached for '{name}' ({first}): check the connection, or use a run folder.")


def _status(error: BaseException | None) -> int | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__ or error.__context__
    return None


def hub_lines(done: Mapping[str, Any]) -> list[str]:
    """What was, or would be, published, a line each."""
    lines = [f"{size:>12,} bytes  {file}" for file, size in done["files"].items()]
    if done["commit"] is None:
        return [*lines, f"Nothing was published (--dry-run). It would go to {done['address']}"]
    return [*lines, f"Published: {done['url']}", f"Use it: rcalign predict {done['address']} NEW..."]
