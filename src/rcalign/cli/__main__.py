"""``python -m rcalign.cli``."""

from rcalign.cli import main

main()
