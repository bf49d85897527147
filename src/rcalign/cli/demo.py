"""``rcalign demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the picture go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(help="Updates of each of the eighteen models.")] = 200,
) -> None:
    """Compare plain training and RC-Align on emoji drawings of vendors they have not seen. Resumes if stopped."""
    from rcalign.demo import demo as run
    from rcalign.demo import table

    outcome = run(out, steps)
    Console().print(table(outcome["results"]))
    print(f"Picture: {outcome['picture']}\nRuns: {out} (delete the folder to train anew)")
    print("Two vendors and three seeds: a look at the tool; docs/results has the evidence. Next: rcalign train --help")
