"""Training on images keeps freed memory, so that steps do not ask the system for it again and again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from rcalign.devices import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
def step():
    torch.empty(16_000_000).fill_(1.0)  # 64 MB, as a layer of a network on images has it
for _ in range(10):  # until the heap is large enough
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives large blocks back at once")
def test_large_blocks_are_not_asked_for_anew() -> None:
    faults = {}
    for word in ("keep", "as it is"):
        command = [sys.executable, "-c", STEPS, word]
        kept, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert kept == str(word == "keep")
        faults[word] = int(count)
    assert faults["keep"] < 0.05 * faults["as it is"]
