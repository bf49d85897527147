"""The algorithms: one file each. Importing this package registers them, in the order of the published tables."""

from rcalign.algorithms import erm, rc_align

__all__ = ["erm", "rc_align"]
