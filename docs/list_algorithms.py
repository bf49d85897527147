"""For the documentation site: the table of all algorithms, from the registry, so that nobody keeps it by hand."""

from __future__ import annotations

from typing import Any

import rcalign.algorithms  # noqa: F401  (registers)
from rcalign import registry

PLACE = "<!-- the table of algorithms -->"


def table() -> str:
    """One line for each algorithm: its name, linked to its page, its family, what it does; baselines first.

    >>> table().splitlines()[2]
    '| [ERM](erm.md) | baseline | plain training on all source domains together |'
    """
    lines = ["| algorithm | family | what it does |", "|---|---|---|"]
    entries = [registry.get(name) for name in registry.names(parts=True)]
    for entry in sorted(entries, key=lambda entry: (entry.family != "baseline", entry.family, entry.name)):
        page = entry.algorithm.__module__.rpartition(".")[2]
        lines.append(f"| [{entry.name}]({page}.md) | {entry.family} | {entry.summary} |")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Called by mkdocs for every page."""
    return markdown.replace(PLACE, table())
