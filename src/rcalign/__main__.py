"""``python -m rcalign`` is ``rcalign``: for ``torchrun -m rcalign train ...``."""

from rcalign.cli import main

main()
