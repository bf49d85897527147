"""What users call: each function here is one command of the command line."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import exports, registry
from rcalign.data import loading, source
from rcalign.data.benchmarks import actions
from rcalign.data.source import Arrays, Dataset, with_sample
from rcalign.data.sources import table
from rcalign.devices import resolve_device
from rcalign.diagnosis import Diagnosis
from rcalign.diagnosis.diagnose_run import diagnose_file, diagnose_run
from rcalign.distributed import process_group
from rcalign.errors import InputError, unknown
from rcalign.evaluation.metrics import next_value_interval
from rcalign.exports.model_hub import local_run, push_run
from rcalign.extensions import import_modules
from rcalign.files import check_output, format_by_ending, write_whole
from rcalign.predictions import Predictions, write_csv
from rcalign.store.names import file_name, short_data_name
from rcalign.store.run_folder import RunFolder, read_config
from rcalign.training import job
from rcalign.training.callbacks import Callback
from rcalign.training.evaluate_run import evaluate_run
from rcalign.training.options import DEFAULT_ALGORITHM, checked_option, train_options
from rcalign.training.run_data import LabelledOutputs, untrained_outputs
from rcalign.training.trained import TrainedModel, load_trained, member_folders

if TYPE_CHECKING:
    from rcalign.store.sweep_folder import SweepFolder
    from rcalign.sweeps.plan import PlannedRun, Sweep
    from rcalign.sweeps.resources import Resources


def train(
    data: str | Path | Dataset,
    algorithm: str = DEFAULT_ALGORITHM,
    test_domains: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> dict[str, Any]:
    """Trains one model and returns its result (also written to ``result.json`` in the run folder ``out``).

    data: a folder domain/class/image, a CSV manifest, an .npz, or a name such as "emoji". test_domains: held out under
    protocol "lodo"; under "mdlt" all domains train and are tested. resume: go on with the run in ``out``. callbacks:
    follow the run while it trains (``rcalign.training.callbacks.Callback``), beside the loggers that the option ``log``
    names. options: the other fields of ``rcalign.training.options.TrainOptions``, which are those of ``rcalign train``;
    ``hparams`` are the algorithm's own, by field name.

    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = folder + "/rows.npz"
    ...     np.savez(file, x=rng.normal(size=(90, 4)), y=np.arange(90) % 2, domain=np.arange(90) % 3)
    ...     result = train(file, "ERM", ["2"], steps=3, out=folder + "/run")
    >>> sorted(result["accuracy"]), result["steps"]
    (['2'], 3)
    """
    chosen = train_options(algorithm=algorithm, test_domains=test_domains, **options)
    with process_group(chosen.device) as group:
        if chosen.workers > 1 and group.size == 1:
            if isinstance(data, Dataset):
                raise InputError("with several `workers`, give data by path or name: each worker loads them.")
            if callbacks:
                raise InputError(
                    "with several `workers`, name callbacks in `log` as module:Class: a worker makes them."
                )
            from rcalign.sweeps.train_on_ray import train_on_workers

            return train_on_workers(data, chosen, out=out, resume=resume, progress=progress)
        shown = progress and group.is_first
        return job.run_job(data, chosen, out=out, resume=resume, progress=shown, callbacks=callbacks)


def load(run: str | Path, *, device: str = "auto") -> TrainedModel:
    """The model of a run folder, or of a model that ``push`` published: ``load("hf://OWNER/NAME")``.

    It has ``logits``, ``probabilities`` and ``features`` of network inputs, and ``inputs`` makes those from a data set.
    """
    return load_trained(local_run(run), torch.device(resolve_device(device)))


def push(run: str | Path, name: str, *, private: bool = False, dry_run: bool = False) -> dict[str, Any]:
    """Publishes a finished run on the Hugging Face hub as OWNER/NAME: weights, configuration, figures and a card.

    The token is the hub client's own (``hf auth login``, or ``HF_TOKEN``). private: make the repository a private one.
    dry_run: only list the files. The result: ``files`` (name -> bytes), ``url``, ``commit``, and the ``address`` that
    ``load``, ``predict`` and ``evaluate`` take.
    """
    return push_run(run, name, private=private, dry_run=dry_run)


def evaluate(
    run: str | Path,
    data: str | Path | Dataset | None = None,
    *,
    include_training: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """The figures of a run on its own test parts, or on other data with the same classes.

    Domains of other data are reported one by one; they need not be known to the run. Rows that the run was trained on
    are left out, and ``notes`` say how many, unless include_training asks for them. The result: the figures of
    ``evaluation.evaluate.summary``, the ``calibration`` error before and after the run's temperature, and for each
    domain the ``recall`` of every class and the ``confusion`` matrix (true classes in rows, predicted in columns).
    """
    where = torch.device(resolve_device(device))
    return evaluate_run(local_run(run), data, include_training=include_training, device=where)


def leave_one_out(
    data: str | Path | Dataset,
    algorithm: str = DEFAULT_ALGORITHM,
    *,
    seeds: int = 1,
    level: float = 0.9,
    out: str | Path | None = None,
    folds_at_once: int | None = None,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """What to expect on the next domain: trains once for each domain held out (and each seed), and tests on it.

    The result: ``accuracy`` of each domain when it was held out (mean over seeds), their ``average``, the ``worst``,
    and the ``interval`` in which the accuracy on one more domain lies with probability ``level``, if it is drawn like
    these. The runs are kept in ``out``, and found there again. folds_at_once: runs at a time, by default one for each
    core where the data are rows and that saves time. options: those of ``train``.
    """
    from rcalign.sweeps.held_out_folds import HeldOutFold, train_folds

    if seeds < 1:
        raise InputError(f"`seeds` is {seeds}, but must be at least 1.")
    chosen = train_options(algorithm=algorithm, **options)
    import_modules(chosen.imports)
    dataset = data if isinstance(data, Dataset) else loading.load(data, skip_bad=chosen.skip_bad)
    if len(dataset.domains) < 2:
        raise InputError(
            f"'{dataset.name}' has one domain, '{dataset.domains[0]}', but leaving one out takes two or more: "
            "add a domain."
        )
    name = registry.get(algorithm).name
    root = (
        Path(out) if out is not None else Path("runs") / file_name(Path(str(dataset.name)).stem, name, "leave_one_out")
    )
    folds = [
        HeldOutFold(
            chosen.replace(test_domains=(domain,), seed=seed), root / f"{position}-{file_name(domain)}-seed{seed}"
        )
        for position, domain in enumerate(dataset.domains)
        for seed in range(seeds)
    ]
    console = Console(stderr=True, quiet=not progress, highlight=False)
    found_runs = train_folds(data, dataset, folds, at_once=folds_at_once, say=console.print, progress=progress)
    runs: dict[str, list[dict[str, Any]]] = {domain: [] for domain in dataset.domains}
    for fold, found in zip(folds, found_runs, strict=True):
        runs[fold.options.test_domains[0]].append(found)
    accuracy = {domain: float(np.mean([run["average"] for run in found])) for domain, found in runs.items()}
    errors = [run["calibration"]["ece"]["test"] for found in runs.values() for run in found]
    return {
        "algorithm": name,
        "data": dataset.name,
        "seeds": seeds,
        "accuracy": accuracy,
        "balanced": {d: float(np.mean([run["balanced"][d] for run in found])) for d, found in runs.items()},
        "average": float(np.mean(list(accuracy.values()))),
        "worst": min(accuracy.values()),
        "worst_domain": min(accuracy, key=lambda domain: accuracy[domain]),
        "level": level,
        "interval": list(next_value_interval(list(accuracy.values()), level)),
        "ece": {when: float(np.mean([error[when] for error in errors])) for when in ("before", "after")},
        "folder": str(root),
    }


def predict(
    run: str | Path,
    paths: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    threshold: float | None = None,
    adapt_priors: bool = False,
    coverage: float | None = None,
    device: str = "auto",
    progress: bool = False,
) -> dict[str, Any]:
    """Class and calibrated probabilities for image files, folders or lists of them, or an .npz with ``x``.

    The result: ``rows``, a dict for each file in order, with ``problem`` and nothing else where it is no image;
    ``skipped``, (path, problem) of those; ``count``, the number of the others; ``notes``, what to know of the model and
    of what was done. With ``out`` the rows go to that CSV file as they are made, and ``rows`` is empty, so that any
    number of files needs the same memory. threshold: below this probability the class is "unknown". adapt_priors:
    estimate the class shares among these files (``priors``) and correct for them where the estimate can be trusted
    (``adapted``); it is checked against validation rows of the run's own data. coverage: for a
    model of ``fit``, also the set of classes that has the true one with this probability on a new domain (``set``).
    """
    if out is not None:
        check_output(out)
    run = local_run(run)
    model = load_trained(run, torch.device(resolve_device(device)))
    sources = _sources(run, model) if adapt_priors else None
    sets = None if coverage is None else _prediction_sets(run, coverage)
    predictions = Predictions(model, paths, threshold=threshold, adapt_priors=adapt_priors, sources=sources, sets=sets)
    with Progress(console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("Predicting", total=predictions.total)

        def shown() -> Iterator[dict[str, Any]]:
            for row in predictions:
                bar.update(task, completed=predictions.seen)
                yield row

        rows = list(shown()) if out is None else []
        written = len(rows) if out is None else write_csv(out, predictions.columns, shown())
    return {
        "rows": rows,
        "count": written - len(predictions.skipped),
        "skipped": predictions.skipped,
        "notes": predictions.notes,
        "priors": predictions.priors,
        "adapted": predictions.adapted,
        "out": None if out is None else str(out),
    }


def _sources(run: str | Path, model: TrainedModel) -> LabelledOutputs | None:
    """What the model gives for rows of its own data that it was not trained on; None if the data are not there."""
    try:
        return untrained_outputs(run, model)
    except InputError:
        return None


def _prediction_sets(run: str | Path, coverage: float) -> Callable[[np.ndarray], np.ndarray]:
    """(n, C) probabilities -> (n, C) bool, which classes are in each row's set."""
    from rcalign.fit.conformal import PredictionSets
    from rcalign.fit.pipeline import SETS_FILE

    file = Path(run) / SETS_FILE
    if not file.is_file():
        raise InputError(
            f"'{run}' has no left-out predictions to make sets from, so `coverage` cannot be kept: make the model with "
            "'rcalign fit' and a budget."
        )
    sets = PredictionSets.from_json(json.loads(file.read_text()))
    sets.threshold(coverage)  # an impossible level is an error before anything is read
    return lambda probabilities: sets.sets(probabilities, coverage)


def fit(
    data: str | Path | Dataset,
    *,
    label: str | None = None,
    domain: str | None = None,
    id: str | None = None,
    ignore: Sequence[str] = (),
    category: Sequence[str] = (),
    text: Sequence[str] = (),
    encoder: str | None = None,
    budget: str | float = "10m",
    rule: str = "mean",
    more: Sequence[str] = (),
    steps: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    begun: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """From a folder or a table to a model with what to expect of it, in ``out``; ``fit.json`` has what is returned.

    data: as for ``train``. label, domain, id, ignore, category, text, encoder: of a table, what its columns are for
    (see ``data.sources.table.Roles``). budget: time for everything, such as "30m", "90s" or seconds; 0 trains the
    recommended method only. rule: choose by the "mean" or the "worst" left-out domain. more: further algorithms to
    compare, such as "MLDG" or "MLDG+swad". steps: of a full training. workers: processes; one for each core by default.
    begun: the time.monotonic() from which the budget counts, by default now. settings: further options of ``train``,
    such as ``backbone``.

    The same call goes on where it was stopped.
    """
    from rcalign.fit import pipeline
    from rcalign.fit.reading import read_in_time
    from rcalign.fit.ticker import Ticker
    from rcalign.fit.timing import Clock, seconds_of, torch_threads

    seconds = seconds_of(str(budget))
    clock = Clock(seconds, begun)
    roles = {
        "label": label,
        "domain": domain,
        "id": id,
        "ignore": tuple(ignore),
        "category": tuple(category),
        "text": tuple(text),
        "encoder": encoder,
    }
    found = {name: value for name, value in roles.items() if value}
    ticker = Ticker(progress)
    sample = None
    if isinstance(data, Dataset):
        dataset, place = data, data.name
    else:
        place = _table_address(data, found)

        def read(rows: int | None) -> Dataset:
            return loading.load(with_sample(place, rows), skip_bad=bool(settings.get("skip_bad")), progress=progress)

        columns = table.divided(place)[1]
        if columns is not None and columns.text:  # which take time to read
            earlier = Path(out) if out is not None else Path("fits") / file_name(short_data_name(place))
            dataset, sample = read_in_time(read, clock, ticker.say, earlier)
        else:
            dataset = read(None)
        place = with_sample(job.located(place), None if sample is None else sample.rows)
    folder = Path(out) if out is not None else Path("fits") / file_name(Path(dataset.name).stem)
    # on small networks more threads only wait for one another, the longer the busier the cores are
    threads = 1 if isinstance(dataset.content, Arrays) else torch.get_num_threads()
    with ticker, torch_threads(threads):
        fitted = pipeline.run_pipeline(
            dataset,
            place,
            folder,
            budget=seconds,
            rule=rule,
            more=more,
            steps=steps,
            seed=seed,
            settings={name: value for name, value in settings.items() if value},
            workers=1 if isinstance(data, Dataset) else workers,
            clock=clock,
            sample=sample,
            say=ticker.say,
            show=ticker.show,
        )
    return pipeline.fit_summary(fitted)


def _table_address(data: str | Path, roles: Mapping[str, Any]) -> str:
    """The address of a table whose columns have roles; other data are named as they are."""
    path = Path(data)
    if path.suffix.lower() in table.SUFFIXES and path.is_file():
        missing = [name for name in ("label", "domain") if name not in roles]
        if roles and missing:
            raise InputError(f"`{missing[0]}` is missing: name the column of '{path}' that has the {missing[0]}.")
        if roles:
            return table.address(path, table.Roles(**roles))
        if not table.is_table(path) and table.header(path).isdisjoint({"path"}):
            names = ", ".join(sorted(table.header(path)))
            raise InputError(
                f"which columns of '{path}' hold the class and the domain? Name them with `label` and `domain` (its "
                f"columns: {names})."
            )
    elif roles and path.suffix.lower() in table.SUFFIXES:
        raise InputError(f"there is no file '{data}': give a .csv or .parquet file.")
    elif roles:
        raise InputError(f"`{next(iter(roles))}` is for tables (.csv, .parquet), but '{data}' is none: leave it out.")
    return str(data)


def data_info(data: str | Path | Dataset) -> dict[str, Any]:
    """Samples per domain and class, what was dropped and why."""
    return source.describe(data if isinstance(data, Dataset) else loading.load(data))


def data_list(root: str | Path | None = None) -> list[dict[str, Any]]:
    """The published benchmarks, and which of them are in the data root (``$RCALIGN_DATA``)."""
    return actions.list_data(root)


def data_prepare(
    name: str,
    sources: Sequence[str | Path],
    root: str | Path | None = None,
    *,
    drop: str | Path | None = None,
    keep: Sequence[str | Path] = (),
    replace: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Puts a benchmark into the data root: from archives, folders, parquet files, camera-trap annotations, split files.

    drop: a list of images to leave out (DomainNet's duplicates). keep: lists of the only images to use (DomainNet126).
    """
    return actions.prepare_data(name, sources, root, drop=drop, keep=keep, replace=replace, progress=progress)


def data_verify(
    name: str,
    root: str | Path | None = None,
    *,
    split_file: str | Path | None = None,
    decode: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Compares domains, classes and counts of a benchmark with the published ones; decode: every image too."""
    return actions.verify_data(name, root, split_file=split_file, decode=decode, progress=progress)


def data_fetch(
    name: str,
    root: str | Path | None = None,
    *,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Downloads a benchmark and prepares it. mirror: an address that has its files, asked before the published ones."""
    return actions.fetch_data(name, root, mirror=mirror, keep_archives=keep_archives, progress=progress)


def data_sample(name: str, out: str | Path, *, each: int = 4, size: int = 64, seed: int = 0) -> dict[str, Any]:
    """Writes a tiny stand-in with a benchmark's layout and names into the data root ``out``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     use = data_sample("VLCS", folder, each=1, size=8)["use"]
    ...     data_info(use)["rows_of_domain"]
    {'Caltech101': 5, 'LabelMe': 5, 'SUN09': 5, 'VOC2007': 5}
    """
    return actions.sample_data(name, out, each=each, size=size, seed=seed)


def algorithm_list(name: str | None = None, *, imports: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every algorithm, or one with its hyperparameters. imports: modules of your own that register more.

    >>> [row["name"] for row in algorithm_list("erm")]
    ['ERM']
    """
    from rcalign import catalogue

    return catalogue.list_algorithms(imports) if name is None else [catalogue.describe_algorithm(name, imports)]


def sweep(
    plan: str | Path,
    *,
    out: str | Path | None = None,
    ray: str | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float = 0.0,
    workers: int | None = None,
    retry_failed: bool = False,
    stalled_after: float = 7200.0,
    dry_run: bool = False,
    measured_by: Sequence[str | Path] = (),
    keep: str | None = None,
    slurm: str | None = None,
    slurm_tasks: int | None = None,
    join: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Trains all runs of a sweep file, or of a recipe by its name, and returns how far it came.

    What is finished is never trained again: the same call goes on where the last one stopped. ray: the address of a
    cluster; without it, Ray runs on this machine. retry_failed: try again what failed before. stalled_after: seconds
    without a heartbeat after which a run is stopped. dry_run: plan only; measured_by: finished runs, best one of
    each data set, from which disk and hours are then forecast. keep: which weights finished runs keep, in place of what
    the file says. slurm: options for ``sbatch``; an array job of at most ``slurm_tasks`` tasks (16) is submitted, which
    train the runs, and its number, tasks and script are under ``slurm`` in the result. join: train, in this process,
    runs that no other process trains; this is what those tasks do. The result is ``sweep_status`` with ``stopped``,
    None or in a sentence why the sweep ended early.
    """
    from rcalign.store.sweep_folder import SweepFolder
    from rcalign.sweeps import plan_file
    from rcalign.sweeps.address import check_address
    from rcalign.sweeps.plan import DataSummary, expand, repeats

    planned = plan_file.read_plan(plan)
    if keep is not None:
        planned = dataclasses.replace(planned, settings={**planned.settings, "keep": checked_option("keep", keep)})
    given = {"ray": ray is not None, "slurm": slurm is not None, "join": join}
    if sum(given.values()) > 1:
        names = " and ".join(f"`{name}`" for name, here in given.items() if here)
        raise InputError(f"{names} are two ways to train a sweep: give one of them.")
    if workers is not None and (join or slurm is not None):
        raise InputError("`workers` is for Ray: leave it out, or give `slurm_tasks` with `slurm`.")
    if slurm_tasks is not None and slurm is None:
        raise InputError("`slurm_tasks` is given without `slurm`: give the options for sbatch too, or leave it out.")
    if slurm is not None:
        from rcalign.sweeps.slurm import check_slurm

        sbatch_options = check_slurm(slurm, gpus_per_run, slurm_tasks)
    if ray is not None and not dry_run:
        check_address(ray)  # before ray is imported and the data are read, which may take longer
    from rcalign.sweeps.resources import Resources

    resources = Resources(
        address=ray,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
        workers=workers,
        stalled_after=stalled_after,
    )

    @functools.cache
    def summarise(data: str) -> DataSummary:
        dataset = loading.load(planned.located(data), skip_bad=planned.settings.get("skip_bad", False))
        return DataSummary(dataset.domains, isinstance(dataset.content, Arrays))

    runs = expand(planned, summarise)
    if dry_run:
        entries = [planned.entry(run) for run in runs]
        # who will win is not known, but all draws are taken to cost the same
        again, _ = repeats(planned, runs, {run.id: 0.0 for run in runs})
        costs = _forecast([*entries, *map(planned.entry, again)], measured_by, workers)
        return {"name": planned.name, "planned": len(runs), "repeats": len(again), "runs": entries, **costs}
    for data in planned.data:  # domains that the file lists may be spelled otherwise in the data
        for name in dict.fromkeys(name for run in runs if run.data == data for name in run.test_domains):
            if name not in summarise(data).domains:
                raise unknown(f"domain of '{data}'", name, summarise(data).domains)
    folder = SweepFolder(out if out is not None else Path("sweeps") / planned.name)
    if slurm is not None:
        return _submitted(plan, planned, runs, folder, sbatch_options, slurm_tasks, resources, retry_failed, keep)
    if join:
        from rcalign.sweeps.join import join_sweep
        from rcalign.sweeps.slurm import task_device

        device = task_device(gpus_per_run)
        say = functools.partial(print, flush=True) if progress else lambda line: None
        stopped = join_sweep(planned, runs, folder, threads=cpus_per_run, device=device, say=say)
        return {**sweep_status(folder.path), "stopped": stopped}
    from rcalign.sweeps import run_on_ray

    stopped = run_on_ray.execute(planned, runs, folder, resources, retry_failed=retry_failed, progress=progress)
    return {**sweep_status(folder.path), "stopped": stopped}


def _submitted(
    plan: str | Path,
    planned: Sweep,
    runs: Sequence[PlannedRun],
    folder: SweepFolder,
    options: Sequence[str],
    tasks: int | None,
    resources: Resources,
    retry_failed: bool,
    keep: str | None,
) -> dict[str, Any]:
    """The status of a sweep whose tasks were submitted to Slurm, with the job; none if nothing is left to train."""
    from rcalign.sweeps.join import write_plan_now
    from rcalign.sweeps.slurm import submit

    entries = write_plan_now(planned, runs, folder)
    if retry_failed:
        for run in folder.failures():
            folder.clear_failure(run)
    over = folder.finished() | folder.failures().keys()
    left = sum(entry["id"] not in over for entry in entries)
    job = None
    if left:
        job = submit(
            plan,
            folder,
            options,
            left=left,
            tasks=tasks,
            cpus_per_run=resources.cpus_per_run,
            gpus_per_run=resources.gpus_per_run,
            keep=keep,
        )
    return {**sweep_status(folder.path), "stopped": None, "slurm": None if job is None else dataclasses.asdict(job)}


def _forecast(
    entries: Sequence[Mapping[str, Any]], measured_by: Sequence[str | Path], workers: int | None
) -> dict[str, Any]:
    from rcalign import presets
    from rcalign.store.forecast import forecast, measured

    if not measured_by:
        return {}
    steps = [int(entry.get("steps") or presets.get_preset(entry.get("preset") or "default").steps) for entry in entries]
    found = forecast(entries, [measured(run) for run in measured_by], steps=steps, at_once=workers or 1)
    return {"forecast": {**found, "at_once": workers or 1}}


def soup(
    runs: Sequence[str | Path], *, out: str | Path, kind: str = "uniform", progress: bool = False
) -> dict[str, Any]:
    """Averages the weights of finished runs that share their start into the run folder ``out``, and tests them.

    runs: run folders, or folders of runs such as a sweep's. kind: "uniform", the mean of all (DiWA), or "greedy", of
    those that do not lower the validation accuracy on the source domains. The result is that of a run, with ``runs``.
    """
    from rcalign.training.soup import make_soup as average_runs

    return average_runs(runs, out=out, kind=kind, progress=progress)


def ensemble(runs: Sequence[str | Path], *, out: str | Path, progress: bool = False) -> dict[str, Any]:
    """Averages the probabilities of finished runs with the same split into the run folder ``out``, and tests them.

    runs: run folders, or folders of runs such as a sweep's; algorithms and networks may differ. The folder holds copies
    of them. The result is that of a run, with ``runs``.
    """
    from rcalign.training.ensemble import make_ensemble

    return make_ensemble(runs, out=out, progress=progress)


def sweep_status(folder: str | Path) -> dict[str, Any]:
    """How far a sweep is, read from its folder alone, whether or not it is running."""
    from rcalign.store.sweep_folder import read_status

    return dataclasses.asdict(read_status(folder))


def report(
    folder: str | Path,
    *,
    select: str | None = None,
    format: str | None = None,
    compare: str | None = None,
    baseline: str | None = None,
    data: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    out: str | Path | None = None,
    width: int | None = None,
    colour: bool = False,
) -> str:
    """The report on a run, a folder of runs, a sweep, or a sweep of DomainBed or BoDA; ``out`` also writes it.

    select: "training-domain", "leave-one-domain-out", "oracle", "mdlt" or "wilds"; None is the protocol's own. format:
    "terminal", "markdown", "latex", "csv" or "html", or "tensorboard" or "mlflow", which write a folder; None goes by
    the ending of ``out``. compare: "published" sets the paper's figures beside ours. baseline: what algorithms are
    compared with. data, algorithms: report on these only, by their names in the report.
    """
    from rcalign.reports.render import format_of, render
    from rcalign.reports.report import make_report

    wanted = format_of(format, out)
    return render(make_report(folder, select, compare, baseline, data, algorithms), wanted, out, width, colour)


def diagnose(
    subject: str | Path,
    data: str | Path | Dataset | None = None,
    *,
    target: str | Path | None = None,
    include_training: bool = False,
    device: str = "auto",
) -> Diagnosis:
    """What to expect of a model on a domain, and why: the paper's bound with every term measured.

    subject: a run folder, or an .npz of features (see docs/diagnosis.md). Of a run, the validation parts of its source
    domains and the test parts of the others are compared, or all rows of other data that it was not trained on (with
    include_training those as well). target: the name of a domain; or
    samples without labels: a folder of images, a .csv that lists them, an .npz (features, or for a run its inputs
    ``x``), or for a run on a table another table. Without it, the first held-out domain of a run.
    """
    if Path(subject).suffix == ".npz":
        return diagnose_file(subject, target)
    where = torch.device(resolve_device(device))
    return diagnose_run(local_run(subject), data, target=target, include_training=include_training, device=where)


def export(
    run: str | Path, format: str | None = None, *, out: str | Path | None = None, diagnosis: bool = False
) -> dict[str, Any]:
    """A trained model as a file for other programs, "onnx", "torchscript" or "safetensors", and a model card beside it.

    The graph takes uint8 RGB images of any size (or rows of numbers) and gives logits and calibrated probabilities; it
    is run and compared with the trained model on some of the run's own data, if they are still there. out: the file,
    whose ending decides the format where none is given (without either, ONNX). diagnosis: put the findings of
    ``diagnose`` into the card.
    """
    format = format_by_ending(format, out, exports.ENDINGS, "onnx")
    file = Path(out) if out is not None else Path(run) / "export" / f"model{exports.ENDINGS[format][0]}"
    model = load_trained(run, torch.device("cpu"))
    check_output(file)
    findings = [(finding.title, finding.text) for finding in diagnose(run).advice] if diagnosis else []
    done = exports.export_model(model, format, file, exports.some_inputs(model))
    card = exports.card_file(file)
    members = [read_config(member) for member in member_folders(run)]
    text = exports.model_card(
        model.config, RunFolder(run).result(), done, findings, members=members, fit_findings=exports.kept_findings(run)
    )
    write_whole(card, text.encode(errors="backslashreplace"))
    return {**dataclasses.asdict(done), "file": str(file), "card": str(card), "notes": model.notes}
