"""``rcalign push``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rcalign.cli.completion import complete_run
from rcalign.cli.shared import AsJson, check_run


def push(
    run: Annotated[Path, typer.Argument(help="A finished run folder.", autocompletion=complete_run)],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's name on the Hugging Face hub.")],
    private: Annotated[bool, typer.Option("--private", help="Only you and those you let may see it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a model on the Hugging Face hub: weights, configuration, figures and a model card.

    Needs a token that may write: 'hf auth login', or HF_TOKEN. Paths of this machine are not published.

    Examples: rcalign push runs/one me/one --dry-run; then rcalign predict hf://me/one NEW...
    """
    check_run(run)
    from rcalign import api
    from rcalign.exports.model_hub import hub_lines

    done = api.push(run, name, private=private, dry_run=dry_run)
    print(json.dumps(done, indent=2) if as_json else "\n".join(hub_lines(done)))
