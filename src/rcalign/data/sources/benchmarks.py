"""The published benchmarks by name, e.g. ``PACS``, ``PACS:root=/data``, ``TerraInc-MLT``, ``ColoredMNIST:seed=1``."""

from __future__ import annotations

from rcalign.data.benchmarks import facts  # the other modules there build on the sources: imported when wanted
from rcalign.data.source import Dataset
from rcalign.data.sources.named import register


def _add(benchmark: facts.Benchmark) -> None:
    @register(benchmark.name, summary=benchmark.summary)
    def load(*, root: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False) -> Dataset:
        from rcalign.data.benchmarks import contents

        return contents.load(benchmark, root or None, partial=partial, skip_bad=skip_bad, progress=progress)

    if benchmark.mlt_name is not None:

        @register(benchmark.mlt_name, summary=f"{benchmark.name}, long-tailed: MDLT's split, all domains train")
        def load_mlt(
            *, root: str = "", splits: str = "", partial: bool = False, skip_bad: bool = False, progress: bool = False
        ) -> Dataset:
            from rcalign.data.benchmarks import contents

            return contents.load_mlt(
                benchmark, root or None, splits or None, partial=partial, skip_bad=skip_bad, progress=progress
            )


for _benchmark in facts.benchmarks().values():
    _add(_benchmark)


@register("ColoredMNIST", summary="small digits or large? The colour knows better than the shape, until it does not")
def coloured_mnist(*, root: str = "", seed: int = 0, few: bool = False) -> Dataset:
    from rcalign.data.benchmarks import mnist

    return mnist.coloured(root or None, seed, few)


@register("RotatedMNIST", summary="digits turned by six angles (domains)")
def rotated_mnist(*, root: str = "", seed: int = 0, few: bool = False) -> Dataset:
    from rcalign.data.benchmarks import mnist

    return mnist.rotated(root or None, seed, few)


@register("hearts", summary="heart disease or not, of the patients of four hospitals (domains)")
def hearts(*, root: str = "", label: str = "disease", flags: bool = False) -> Dataset:
    from rcalign.data.benchmarks import hearts as tables

    return tables.load(root or None, label=label, flags=flags)


@register("sentiment", summary="negative, neutral or positive: sentences of four sources (domains) as embeddings")
def sentiment(*, root: str = "", progress: bool = False) -> Dataset:
    from rcalign.data.benchmarks import sentiment as texts

    return texts.load(root or None, progress=progress)
