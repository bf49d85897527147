"""What all pages share: the charts, their style, and data that are safe inside a page."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def chart_script() -> str:
    """The script that draws charts, to stand before a page's own."""
    return (resources.files(__package__) / "charts.js").read_text(encoding="utf-8")


def chart_style() -> str:
    """The style of charts; its colours are variables that the page's own style sets."""
    return (resources.files(__package__) / "charts.css").read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever names it holds.

    >>> embedded({"a": "</script><b>"})
    '{"a":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
