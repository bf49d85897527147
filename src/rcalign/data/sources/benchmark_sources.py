"""The published benchmarks by name, e.g. ``PACS``, ``PACS:root=/data``, ``TerraInc-MLT``, ``ColoredMNIST:seed=1``."""

from __future__ import annotations

import numpy as np

from rcalign.data.benchmarks import facts  # the other modules there build on the sources: imported when wanted
from rcalign.data.source import Dataset
from rcalign.data.sources.arrays import from_arrays
from rcalign.data.sources.named import register_source


def _add(benchmark: facts.Benchmark) -> None:
    @register_source(benchmark.name, summary=benchmark.summary)
    def load(*, root: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False) -> Dataset:
        from rcalign.data.benchmarks import contents

        return contents.load(benchmark, root or None, partial=partial, skip_bad=skip_bad, progress=progress)

    if benchmark.mlt_name is not None:

        @register_source(benchmark.mlt_name, summary=f"{benchmark.name}, long-tailed: MDLT's split, all domains train")
        def load_mlt(
            *, root: str = "", splits: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False
        ) -> Dataset:
            from rcalign.data.benchmarks import contents

            return contents.load_mlt(
                benchmark, root or None, splits or None, partial=partial, skip_bad=skip_bad, progress=progress
            )


for _benchmark in facts.benchmarks().values():
    _add(_benchmark)


@register_source(
    "ColoredMNIST", summary="small digits or large? The colour knows better than the shape, until it does not"
)
def coloured_mnist(*, root: str = "", seed: int = 0, few: bool = False) -> Dataset:
    from rcalign.data.benchmarks import mnist

    return mnist.coloured(root or None, seed, few)


@register_source("RotatedMNIST", summary="digits turned by six angles (domains)")
def rotated_mnist(*, root: str = "", seed: int = 0, few: bool = False) -> Dataset:
    from rcalign.data.benchmarks import mnist

    return mnist.rotated(root or None, seed, few)


@register_source("hearts", summary="heart disease or not, of the patients of four hospitals (domains)")
def hearts(*, root: str = "", label: str = "disease", flags: bool = False) -> Dataset:
    from rcalign.data.benchmarks import hearts as tables

    return tables.load(root or None, label=label, flags=flags)


@register_source(
    "sentiment", summary="negative, neutral or positive: sentences of four sources (domains) as embeddings"
)
def sentiment(*, root: str = "", progress: bool = False) -> Dataset:
    from rcalign.data.benchmarks import sentiment as texts

    return texts.load(root or None, progress=progress)


def _add_wilds(name: str, summary: str) -> None:
    @register_source(name, summary=summary)
    def load(*, root: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False) -> Dataset:
        from rcalign.data.benchmarks import wilds

        return wilds.load(name, root or None, partial=partial, skip_bad=skip_bad, progress=progress)


_add_wilds("Camelyon17", "tumour or not in slides of five hospitals, with WILDS's parts for protocol wilds")
_add_wilds("FMoW", "62 uses of land in six regions, later years tested, with WILDS's parts for protocol wilds")
_add_wilds("WILDSCamelyon", "Camelyon17 as DomainBed has it: five hospitals to leave out")
_add_wilds("WILDSFMoW", "FMoW as DomainBed has it: six regions to leave out")


def _add_spawrious(variant: str) -> None:
    @register_source(variant, summary="four dog breeds whose backgrounds mislead in training")
    def load(*, root: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False) -> Dataset:
        from rcalign.data.benchmarks import spawrious

        return spawrious.load(variant, root or None, partial=partial, skip_bad=skip_bad, progress=progress)


for _kind in ("O2O", "M2M"):
    for _level in ("easy", "medium", "hard"):
        _add_spawrious(f"Spawrious{_kind}_{_level}")


def _add_debug(size: int) -> None:
    @register_source(
        f"Debug{size}", summary=f"noise of {size} x {size} in three domains and two classes, to try things on"
    )
    def load(*, seed: int = 0) -> Dataset:
        """DomainBed's: 16 images of each domain with random labels; there is nothing to learn."""
        rng = np.random.default_rng([seed, size])
        noise = np.clip(rng.normal(128, 64, (48, size, size, 3)), 0, 255).astype(np.uint8)
        labels = np.concatenate([rng.permutation(16) % 2 for _ in range(3)])  # both classes in every domain
        return from_arrays({"x": noise, "y": labels, "domain": np.repeat(np.arange(3), 16)}, name=f"Debug{size}")


for _size in (28, 224):
    _add_debug(_size)
