"""For the documentation site: examples in docstrings (>>> ...) become code blocks, which Markdown leaves alone."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """The text with each example, from its first >>> to the next empty line, as a fenced block.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").split("\\n")
    ['Adds.', '', '```python', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if not inside and line.lstrip().startswith(">>>"):
            lines += ["", "```python"] if lines and lines[-1].strip() else ["```python"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.lstrip() if inside and line.lstrip().startswith((">>>", "...")) else line)
    return "\n".join(lines).rstrip()


class FencedDoctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
