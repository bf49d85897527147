"""What folder and manifest share: files are checked once, and what was found is remembered by their fingerprint."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from rcalign.data import cache
from rcalign.data.source import Dataset, Images, files_fingerprint, from_names, listed
from rcalign.errors import InputError


def dataset_of_files(
    name: str,
    root: Path,
    paths: Sequence[Path],
    labels: Sequence[str],
    domains: Sequence[str],
    *,
    split: Sequence[str] | None = None,
    group: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    class_order: Sequence[str] | None = None,
    domain_order: Sequence[str] | None = None,
    skip_bad: bool,
    progress: bool,
) -> Dataset:
    """A data set of image files, after each file was looked at: an error, or with ``skip_bad`` a note, for bad ones."""
    stats = [_stat(path) for path in paths]
    more = [*labels, *domains, *(split or ()), *(group or ())]
    state = files_fingerprint(root, paths, stats, more)
    bad = cache.bad_files(state, paths, stats, thorough=skip_bad, progress=progress)
    notes = list(notes)
    if bad:
        shown = {
            os.fspath(paths[row].relative_to(root)) if paths[row].is_relative_to(root) else os.fspath(paths[row]): why
            for row, why in bad.items()
        }
        if not skip_bad:
            first, why = next(iter(shown.items()))
            others = f" (and {len(shown) - 1} more such files)" if len(shown) > 1 else ""
            raise InputError(
                f"'{first}'{others} in '{root}' is not a whole image: {why}; replace or remove it, or go on without it "
                "with `skip_bad`."
            )
        kept = [row for row in range(len(paths)) if row not in bad]
        lost = set(domains) - {domains[row] for row in kept}
        if lost:
            raise InputError(f"domain {listed(sorted(lost))} has no image left after the bad files were skipped.")
        stats = [stats[row] for row in kept]
        paths, labels, domains = ([seq[row] for row in kept] for seq in (paths, labels, domains))  # type: ignore[assignment]
        split = None if split is None else [split[row] for row in kept]
        group = None if group is None else [group[row] for row in kept]
        state = files_fingerprint(root, paths, stats, [*labels, *domains, *(split or ()), *(group or ())])
        notes += [f"skipped '{path}': {why}" for path, why in shown.items()]
    return from_names(
        name,
        Images(tuple(paths), state=_state(paths, stats)),
        labels,
        domains,
        fingerprint=state,
        split=split,
        group=group,
        notes=notes,
        class_order=class_order,
        domain_order=domain_order,
    )


def _state(paths: Sequence[Path], stats: Sequence[os.stat_result]) -> str:
    """Of the files alone, by their paths below the folder that has them all: the same wherever that folder lies."""
    above = os.path.commonpath([path.parent for path in paths]) if paths else os.sep
    return files_fingerprint(Path(above), paths, stats, [])


def _stat(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be read ({error.strerror}): check that it exists and its permissions."
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"'{path}' is not a regular file: remove it or put an image in its place.")
    return found
