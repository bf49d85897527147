"""``rcalign train``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rcalign.catalogue import find_algorithm
from rcalign.cli.shared import Data, check_data, show, takes_options
from rcalign.errors import InputError
from rcalign.training.options import train_options


@takes_options()
def train(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    split: Annotated[str, typer.Option(hidden=True)] = "rows",
    **options: Any,
) -> None:
    """Train one model, choose its checkpoint by validation on the source domains, test it on the held-out ones.

    Examples:

    rcalign train emoji --algorithm rc-align --test-domain windows --steps 300

    rcalign train photos/ --algorithm ERM --test-domain hospital_5 --freeze-backbone

    rcalign train rows.npz --test-domain 2 --set learning_rate=1e-3 --set batch_size=32 --out runs/rows --resume

    rcalign train photos/ --test-domain hospital_5 --workers 8

    torchrun --nproc-per-node 8 -m rcalign train photos/ --test-domain hospital_5
    """
    if split != "rows":
        raise InputError(
            f"`split` is '{split}', but workers always divide the rows of every domain, since whole domains would "
            "leave workers idle and save next to no traffic (docs/scale.md): leave it out."
        )
    chosen = train_options(**options)
    find_algorithm(chosen.algorithm, chosen.imports)
    check_data(data)
    from rcalign import api
    from rcalign.reports.evaluated import figures_of_run

    result = api.train(data, out=out, resume=resume, progress=True, **options)
    if os.environ.get("RANK", "0") != "0":
        return  # one of several workers that torchrun started: the first one speaks
    show(figures_of_run(result))
    print(f"Run folder: {result['folder']}\nNext: rcalign predict {result['folder']} {_new_data(result)}")


def _new_data(result: dict[str, Any]) -> str:
    """What a run of this kind predicts on, as one would write it on the command line."""
    from rcalign.store.run_folder import read_config
    from rcalign.training.trained import input_kind

    return {"images": "IMAGE...", "rows": "NEW.npz", "table": "NEW.csv"}[input_kind(read_config(result["folder"]))]
