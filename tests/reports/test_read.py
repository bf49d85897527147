"""Folders as people have them: whole, cut, mixed, of other programs, of other versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rcalign import api
from rcalign.errors import InputError
from rcalign.store.read_runs import read_runs
from rcalign.store.sweep_folder import SweepFolder
from reports.conftest import CLASSES, DOMAINS, write_rows

A, B, C = DOMAINS


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_sweep_is_read_as_planned(finished_sweep: Path) -> None:
    found = read_runs(finished_sweep)
    assert (found.name, found.written_by, found.tuned, found.notes, found.missing) == ("tiny", "rcalign", False, (), ())
    assert len(found.runs) == 48
    run = next(r for r in found.runs if r.test_domains == (A,) and r.algorithm == "CORAL" and r.draw == 1)
    assert run.domains == tuple(sorted(DOMAINS)) and run.data == "rows"
    assert run.config is not None and run.config.spec.classes == tuple(sorted(CLASSES))
    assert [record.step for record in run.records] == [2, 4, 6]
    assert run.seconds is not None and run.shots.keys() == {run.result.best_step}  # type: ignore[index]
    assert sum(r.companion for r in found.runs) == 24


def test_every_metric_is_read_as_it_was_written(finished_sweep: Path) -> None:
    for run in read_runs(finished_sweep).runs[:8]:
        lines = Path(run.folder, "records.jsonl").read_text().splitlines()
        for record, line in zip(run.records, lines, strict=True):
            written = json.loads(line)["metrics"]
            assert {name: record.metrics[name] for name in written} == written
            assert list(record.accuracy) == list(written["accuracy"])
            assert "no such metric" not in record.metrics


def test_one_run_alone(finished_sweep: Path) -> None:
    folder = next((finished_sweep / "runs").iterdir())
    (run,) = read_runs(folder).runs
    assert (run.trial, run.draw, run.name, run.problem) == (run.seed, 0, folder.name, None)


def test_a_tree_of_runs_trained_by_hand(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.npz")
    for seed, domain, rate in [(0, A, 0.01), (0, A, 0.02), (0, B, 0.01), (1, A, 0.01)]:
        out = tmp_path / "runs" / f"{seed}-{DOMAINS.index(domain)}" / str(rate)
        api.train(data, "ERM", [domain], steps=2, seed=seed, hparams={"learning_rate": rate}, out=out)
    found = read_runs(tmp_path / "runs")
    by_name = {run.name: run for run in found.runs}
    assert (by_name["0-0/0.01"].draw, by_name["0-0/0.02"].draw, by_name["1-0/0.01"].trial) == (0, 1, 1)
    # seed 1 never held out B, which the average over domains needs
    assert [(run.trial, run.test_domains, run.problem) for run in found.missing] == [(1, (B,), "not trained")]


def test_a_first_stage_is_no_run_of_its_own_but_its_time_counts(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.npz")
    api.train(data, "CRT", protocol="mdlt", steps=2, out=tmp_path / "runs" / "crt")
    (run,) = read_runs(tmp_path / "runs").runs
    first = json.loads((tmp_path / "runs" / "crt" / "stage-1" / "result.json").read_text())["seconds"]
    assert run.algorithm == "CRT" and run.result is not None
    assert run.seconds == pytest.approx(run.result.seconds + first)


def test_averaged_weights_are_what_a_run_that_averages_is_judged_by(tmp_path: Path) -> None:
    result = api.train(write_rows(tmp_path / "rows.npz"), "ERM", [A], steps=4, average="ema", out=tmp_path / "run")
    (run,) = read_runs(tmp_path / "run").runs
    (checkpoint,) = run.checkpoints
    assert checkpoint.averaged and checkpoint.accuracy[A]["test"] == result["accuracy"][A]


def test_unfinished_failed_lost_and_unstarted_runs(sweep: Path, run_id: Callable[..., str]) -> None:
    layout = SweepFolder(sweep)
    stopped, failed, diverged, given_up, unstarted = (
        run_id([A], draw=0),
        run_id([A], draw=1),
        run_id([A], trial=1, draw=0),
        run_id([A], trial=1, draw=1),
        run_id([B]),
    )
    for run in (stopped, failed, diverged, given_up):
        layout.run(run).result_file.unlink()
    shutil.rmtree(layout.run(unstarted).path)
    layout.fail(failed, "error", "RuntimeError: no memory", ["line one", "line two"])
    layout.fail(diverged, "diverged", "the loss of step 3 is not a number", [])
    layout.give_up(given_up, 4, 0.5)
    found = {run.name: run for run in read_runs(sweep).runs}
    assert found[stopped].problem == "stopped at step 6 of 6"
    assert found[failed].problem == "failed: RuntimeError: no memory"
    assert found[failed].last_lines == ("line one", "line two")
    assert found[unstarted].problem == "not started" and found[unstarted].test_domains == (B,)
    assert found[diverged].problem is None and found[diverged].lost == "diverged: the loss of step 3 is not a number"
    assert found[given_up].problem is None and found[given_up].lost == "given up at step 4"


def test_a_cut_line_is_said_and_the_rest_is_read(sweep: Path, run_id: Callable[..., str]) -> None:
    run = run_id([A])
    records = sweep / "runs" / run / "records.jsonl"
    records.write_text(records.read_text()[:-30])
    found = read_runs(sweep)
    assert len(found.notes) == 1 and found.notes[0].endswith("its last line is cut; the lines before it are read.")
    (missing,) = found.missing
    assert (missing.name, missing.problem) == (run, "its records stop at step 4 of 6")
    assert [record.step for record in missing.records] == [2, 4]


def test_a_damaged_line_in_the_middle_is_passed_over(sweep: Path, run_id: Callable[..., str]) -> None:
    records = sweep / "runs" / run_id([A]) / "records.jsonl"
    first, _, third = records.read_text().splitlines()
    records.write_text(f"{first}\n[1, 2]\n{third}\n")
    assert read_runs(sweep).notes[0].endswith("line 2 is not a JSON object and is passed over.")


def test_a_damaged_result_is_an_incomplete_run(sweep: Path, run_id: Callable[..., str]) -> None:
    (sweep / "runs" / run_id([A]) / "result.json").write_text('{"steps": ')
    assert [run.problem for run in read_runs(sweep).missing] == ["its result.json is damaged"]


def test_runs_of_different_versions_are_named(sweep: Path, run_id: Callable[..., str]) -> None:
    config = sweep / "runs" / run_id([A]) / "config.json"
    versions = json.loads(config.read_text())["versions"]
    change_json(config, versions=versions | {"torch": "1.0"}, device="cuda")
    notes = read_runs(sweep).notes
    assert "different versions" in notes[0] and "torch 1.0" in notes[0] and "(47 runs)" in notes[0]
    assert notes[1] == "the runs were made with different devices: cuda (1 runs); cpu (47 runs)."


def test_what_a_newer_version_wrote_is_refused(sweep: Path, run_id: Callable[..., str]) -> None:
    records = sweep / "runs" / run_id([A]) / "records.jsonl"
    records.write_text(json.dumps(json.loads(records.read_text().splitlines()[0]) | {"colour": 1}))
    with pytest.raises(InputError, match=r"rows of another version of rcalign .*colour"):
        read_runs(sweep)
    change_json(sweep / "runs" / run_id([A]) / "config.json", format=99)
    with pytest.raises(InputError, match="newer rcalign"):
        read_runs(sweep)
    change_json(sweep / "plan.json", format=99)
    with pytest.raises(InputError, match=r"newer rcalign .format 99.: update"):
        read_runs(sweep)


def test_other_data_under_the_same_name_is_another_table(sweep: Path, run_id: Callable[..., str]) -> None:
    change_json(sweep / "runs" / run_id([A]) / "config.json", data_fingerprint="f" * 64)
    found = read_runs(sweep)
    assert len({run.data for run in found.runs}) == 2 and "rows (ffffff)" in {run.data for run in found.runs}
    assert "not the same data in all runs" in found.notes[0]


def test_folders_outside_the_plan_are_left_out(sweep: Path, run_id: Callable[..., str]) -> None:
    shutil.copytree(sweep / "runs" / run_id([A]), sweep / "runs" / "stranger")
    found = read_runs(sweep)
    assert len(found.runs) == 48 and "1 folders" in found.notes[0] and "stranger" in found.notes[0]


def test_two_sweeps_in_one_folder(sweep: Path) -> None:
    shutil.copytree(sweep, sweep.parent / "second")
    with pytest.raises(InputError, match=r"the sweep '.*second' and the sweep '.*sweep': report on one of them"):
        read_runs(sweep.parent)


def test_the_same_run_twice(sweep: Path, run_id: Callable[..., str]) -> None:
    (sweep / "plan.json").unlink()
    run = sweep / "runs" / run_id([A])
    shutil.copytree(run, sweep / "runs" / "again")
    with pytest.raises(InputError, match=r"are the same run twice .*as if two sweeps"):
        read_runs(sweep / "runs")
    (sweep / "runs" / "again" / "result.json").unlink()
    assert any("the finished one counts" in note for note in read_runs(sweep / "runs").notes)


@pytest.mark.parametrize("content", [{}, {"config.json": "{}"}, {"notes.txt": "x"}])
def test_a_folder_that_is_no_sweep(tmp_path: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="holds no runs: expected folders that 'rcalign train'"):
        read_runs(tmp_path)


def test_no_folder_and_a_broken_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_runs(tmp_path / "nowhere")
    (tmp_path / "plan.json").write_text('{"runs": [{"id": 1}]}')
    with pytest.raises(InputError, match=r"plan.json' is damaged \(KeyError"):
        read_runs(tmp_path)


# --- other people's sweeps -----------------------------------------------------------------------------------------


def domainbed_folder(root: Path, held_out: list[int], trial: int, draw: int) -> Path:
    """The folder of a run of DomainBed's sweep."""
    for folder in root.iterdir():
        args = json.loads((folder / "results.jsonl").read_text().splitlines()[0])["args"]
        if (sorted(args["test_envs"]), args["trial_seed"], args["hparams_seed"]) == (held_out, trial, draw):
            return folder
    raise LookupError


def test_domainbeds_sweep(reference: Path) -> None:
    found = read_runs(reference / "domainbed-sweep")
    assert (found.written_by, len(found.runs), found.notes, found.missing) == ("DomainBed", 40, (), ())
    run = next(run for run in found.runs if run.test_domains == ("L", "S"))
    assert run.domains == ("C", "L", "S", "V")
    assert set(run.records[0].accuracy["L"]) == {"val", "test"} and set(run.records[0].accuracy["C"]) == {
        "val",
        "train",
    }
    assert run.seconds is not None and run.seconds > 60


def test_domainbed_run_that_is_not_there(domainbed: Path) -> None:
    shutil.rmtree(domainbed_folder(domainbed, [1], 1, 0))
    (missing,) = read_runs(domainbed).missing
    assert (missing.test_domains, missing.trial, missing.draw) == (("L",), 1, 0)
    assert missing.problem == "is not in the folder"


def test_domainbed_run_that_was_cut(domainbed: Path) -> None:
    file = domainbed_folder(domainbed, [1], 1, 0) / "results.jsonl"
    file.write_text(file.read_text()[:-100])
    found = read_runs(domainbed)
    assert "its last line is cut" in found.notes[0]
    assert [run.problem for run in found.missing] == ["stops at step 900 of 1000"]


def test_domainbed_run_without_its_mark(domainbed: Path) -> None:
    (domainbed_folder(domainbed, [1], 1, 0) / "done").unlink()
    assert [run.problem for run in read_runs(domainbed).missing] == ["has no file 'done'"]


def test_two_domainbed_sweeps_in_one_folder(domainbed: Path) -> None:
    folder = domainbed_folder(domainbed, [1], 1, 0)
    shutil.copytree(folder, domainbed / "again")
    with pytest.raises(InputError, match=r"are the same run twice \(ERM on VLCS, L held out, trial 1, draw 0\)"):
        read_runs(domainbed)


def test_domainbed_run_that_was_restarted(domainbed: Path) -> None:
    file = domainbed_folder(domainbed, [1], 1, 0) / "results.jsonl"
    file.write_text(file.read_text() * 2)
    found = read_runs(domainbed)
    assert not found.missing and "several rows for a step" in found.notes[0]


def test_not_what_domainbed_writes(domainbed: Path) -> None:
    file = domainbed_folder(domainbed, [1], 1, 0) / "results.jsonl"
    file.write_text('{"step": 0}\n')
    with pytest.raises(InputError, match=r"is not what the program writes .KeyError: 'args'"):
        read_runs(domainbed)


def boda_rows(seed: int, draw: int, steps: int = 3, domains: int = 11) -> str:
    rows = []
    for step in range(0, 100 * steps, 100):
        row: dict[str, Any] = {"step": step, "loss": 1.0, "sht_many": 0.5, "sht_median": 0.4, "sht_few": -1}
        row |= {f"env{k}_{part}": k / 20 for k in range(domains) for part in ("val", "test")}
        args = {"algorithm": "ERM", "dataset": "Own", "seed": seed, "hparams_seed": draw, "steps": None}
        rows.append(json.dumps(row | {"args": args, "hparams": {"lr": 0.1}, "class_acc": {}}))
    return "\n".join(rows) + "\n"


def test_bodas_sweep(tmp_path: Path) -> None:
    # a search over three draws of which one is missing, then a winner repeated with another seed
    for seed, draw in [(0, 0), (0, 2), (1, 2)]:
        folder = tmp_path / f"own_hparams{draw}_seed{seed}"
        folder.mkdir()
        (folder / "results.json").write_text(boda_rows(seed, draw))
    found = read_runs(tmp_path)
    assert found.written_by == "BoDA" and found.runs[0].protocol == "mdlt"
    assert found.runs[0].domains[2] == "env2" and found.runs[0].domains[10] == "env10"  # by number, not by letters
    assert found.runs[0].shots[0] == {"many": 0.5, "medium": 0.4, "few": None, "zero": None}
    assert [(run.trial, run.draw) for run in found.missing] == [(0, 1)]


def test_runs_of_two_programs_in_one_folder(domainbed: Path) -> None:
    folder = domainbed / "boda"
    folder.mkdir()
    (folder / "results.json").write_text(boda_rows(0, 0))
    with pytest.raises(InputError, match="holds 40 runs of DomainBed and 1 runs of BoDA"):
        read_runs(domainbed)
