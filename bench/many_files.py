"""Preparing, checking and first using 30,000 image files: what a process needs at the highest above its imports, and
the processor time of each part."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from bench.timing import Row, peak_memory, row

FILES = 30_000
SETUP = """
import json
import time
import numpy as np
import torch
from pathlib import Path
from PIL import Image
from rcalign import api
from rcalign.data.augment import Augmentation
from rcalign.data.batches import Batches
from rcalign.data.benchmarks import actions, facts
from rcalign.data.cache import open_images
from rcalign.data.loading import load
torch.set_num_threads(1)
name, root = "PACS", Path({root!r})
benchmark = facts.get_benchmark(name)
pictures = [Image.fromarray(np.random.default_rng(k).integers(0, 256, (8, 8, 3), dtype=np.uint8)) for k in range(8)]
pairs = [(domain, label) for domain in benchmark.domains for label in benchmark.classes]
for k in range({files}):
    domain, label = pairs[k % len(pairs)]
    folder = root / "source" / "PACS" / domain / label
    folder.mkdir(parents=True, exist_ok=True)
    pictures[k % 8].save(folder / f"{{k}}.png")
"""
WORK = """
seconds, begun = {}, time.process_time()
def done(part):
    global begun
    seconds[part], begun = time.process_time() - begun, time.process_time()
actions.prepare_data(name, [root / "source"], root / "data")
done("prepare")
actions.verify_data(name, root / "data", decode=True)
done("verify")
dataset = load(root / "data" / "PACS")
store = open_images(dataset, 36)
done("fill the image cache with")
rows = [np.flatnonzero(dataset.domain == k) for k in range(len(dataset.domains))]
for batch in Batches(store, dataset.y, rows, 32, 0, augmentation=Augmentation(32)).iterate(0, len(dataset) // 128):
    pass
done("draw an epoch of")
(root / "seconds.json").write_text(json.dumps(seconds))
"""


def measure(files: int = FILES) -> list[Row]:
    before = os.environ.get("RCALIGN_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RCALIGN_CACHE"] = str(Path(folder, "cache"))
        try:
            needed = peak_memory(SETUP.format(root=folder, files=files), WORK)
            seconds = json.loads(Path(folder, "seconds.json").read_text())
        finally:
            if before is None:
                del os.environ["RCALIGN_CACHE"]
            else:
                os.environ["RCALIGN_CACHE"] = before
    return [
        row(f"MiB above the imports to prepare, verify and first use {files:,} files", needed, "<= 256"),
        *(row(f"seconds to {part} {files:,} files", taken) for part, taken in seconds.items()),
    ]
