"""One self-contained page: no request leaves it, whatever the names in the data are."""

from rcalign.reports.html.page import make_page

__all__ = ["make_page"]
