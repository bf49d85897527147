"""The diagnosis as one self-contained page: no request leaves it, whatever the names in the data are."""

from rcalign.diagnosis.html.page import render_html

__all__ = ["render_html"]
