"""``make results``: trains what is not trained yet, condenses it into docs/results/records, and writes the pages.

python -m results                   everything, in order; it goes on where it stopped
python -m results screen final      some studies
python -m results --write-only      the pages again, from the committed records alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rcalign import api
from rcalign.errors import InputError
from results import pages, plans, records, tables

RECORDS = pages.HERE / "records"
STUDIES: dict[str, Callable[[], plans.Plan]] = {
    "screen": plans.screen,
    "final": lambda: plans.final(best_of_screen()),
    "lodo": plans.lodo,
    "mdlt": plans.mdlt,
    "compound": plans.compound,
    "gap": plans.gap,
    "fine-tuning": plans.fine_tuning,
    "fine-tuning-longer": plans.fine_tuning_longer,
    "fine-tuning-long-tailed": plans.fine_tuning_long_tailed,
    "from-scratch": plans.from_scratch,
}


def best_of_screen(count: int = 3) -> list[str]:
    """The readings that the screen puts first, and the first affordable one."""
    names = [reading.name for reading in tables.readings(records.load(RECORDS / "screen.jsonl"), plans.KEPT_OUT)]
    return [*names[:count], next(name for name in names if plans.affordable(name))]


def run(name: str, runs: Path) -> None:
    """One study: its sweep, its records, its page. The weights, gigabytes of them, are removed."""
    plan = plans.write(STUDIES[name](), runs / f"{name}.toml")
    folder = runs / name
    status = api.sweep(plan, out=folder, progress=True)
    if status["stopped"] is not None:
        sys.exit(f"{name} is not finished ({status['stopped']}): the same command goes on.")
    records.condense(folder, RECORDS / f"{name}.jsonl")
    if name in pages.REPORTS:
        api.report(folder, out=pages.HERE / f"{name}.html")
    for weights in folder.glob("runs/**/*.safetensors"):
        weights.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"), help="where runs are kept")
    parser.add_argument("--write-only", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    for name in arguments.studies:
        if name not in STUDIES:
            parser.error(f"no study is called '{name}': there are {', '.join(STUDIES)}.")
    RECORDS.mkdir(parents=True, exist_ok=True)
    try:
        for name in () if arguments.write_only else arguments.studies or STUDIES:
            run(name, arguments.runs)
    except InputError as error:
        sys.exit(str(error))
    pages.write_all(RECORDS)


if __name__ == "__main__":
    main()
