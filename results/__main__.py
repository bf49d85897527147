"""``make results``: trains what is not trained yet, condenses it into docs/results/records, and writes the pages.

python -m results                   everything, in order; it goes on where it stopped
python -m results pacs hearts       some studies: ``make results STUDY="pacs hearts"``
python -m results --write-only      the pages again, from the committed records alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rcalign import api
from rcalign.errors import InputError
from results import confirm, pages, plans, records, step_study, tables

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


# rows of the final table of the changed step, and its fine-tuning: small enough for one process
STEP_STUDIES = (*step_study.ROWS, *step_study.SETTINGS, "gap-pacs", "confirm", "confirm-third")


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


def run_step(name: str) -> None:
    """One row of the final table, or its fine-tuning on images: the records grow with every run."""
    file = RECORDS / f"table-{name}.jsonl"
    if name == "gap-pacs":
        step_study.run_gap(RECORDS / "gap-pacs.jsonl")
        return
    if name == "confirm":
        for seed in confirm.SEEDS:
            confirm.run(confirm.SECOND, RECORDS / "confirm.jsonl", seed)
        for seed in confirm.SEEDS[:2]:
            confirm.run(confirm.SECOND, RECORDS / "confirm-afterwards.jsonl", seed, methods=confirm.AFTERWARDS)
        return
    if name == "confirm-third":
        for seed in confirm.SEEDS:
            confirm.run(confirm.THIRD, RECORDS / "confirm-third.jsonl", seed)
        return
    if name in step_study.ROWS:
        for seed in step_study.SEEDS:
            step_study.run_row(name, file, seed)
        return
    for held_out in step_study.ROWS["pacs"].held_out:
        assert held_out is not None
        step_study.run_images(name, file, held_out, 0, step_study.LATE if name == "late" else step_study.WHOLE)
        if name == "whole":
            for seed in step_study.SEEDS[1:]:
                step_study.run_images(name, file, held_out, seed, step_study.THREE_SEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join((*STUDIES, *STEP_STUDIES))}")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"), help="where runs are kept")
    parser.add_argument("--write-only", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    for name in arguments.studies:
        if name not in (*STUDIES, *STEP_STUDIES):
            parser.error(f"no study is called '{name}': there are {', '.join((*STUDIES, *STEP_STUDIES))}.")
    RECORDS.mkdir(parents=True, exist_ok=True)
    try:
        for name in () if arguments.write_only else arguments.studies or (*STUDIES, *STEP_STUDIES):
            if name in STUDIES:
                run(name, arguments.runs)
            else:
                run_step(name)
    except InputError as error:
        sys.exit(str(error))
    pages.write_all(RECORDS)


if __name__ == "__main__":
    main()
