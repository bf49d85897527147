"""What is known of each benchmark: names, counts, splits, where it was published. Facts only; nothing here acts.

Class names and images per (domain, class) pair stand in ``tables.json``, in DomainBed's order: domains and classes
sorted by their characters. That order decides which rows DomainBed's split takes, so it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from rcalign.errors import unknown
from rcalign.store.names import name_key


@dataclass(frozen=True)
class Edition:
    """One known state of a data set. domains: images of each domain. pairs: images of each class, by domain."""

    name: str
    rows: int
    domains: Mapping[str, int] | None = None
    pairs: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class SplitCounts:
    """Rows of a known MDLT split, and its (domain, class) pairs with many, medium, few and zero training rows."""

    name: str
    train: int
    val: int
    test: int
    shots: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Remote:
    """A file to fetch. urls: the same bytes at each. checksum: 'md5:...' or 'sha256:...', None where none is known."""

    name: str
    urls: tuple[str, ...]
    checksum: str | None = None
    role: str = "data"  # data, drop (a list of files to leave out), keep (a list of files to use), splits


@dataclass(frozen=True)
class Offer:
    """One way to get a whole data set: files, or a data set of parquet files on the Hugging Face hub."""

    files: tuple[Remote, ...] = ()
    hub: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """folder: its place in a data root, named as in DomainBed, so that one root serves both.

    other_names: other spellings of a domain or class -> ours. held_out: (test, val) images of each pair under MDLT.
    shots: a pair with more training rows than the first number is "many", with at most the second "few".
    suffix: of the files of a domain, '.jpg' where not said. part_of: a larger data set whose other classes and domains
    are left out. annotated: published as images and annotation files, not as folders of classes.
    """

    name: str
    folder: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    editions: tuple[Edition, ...]
    summary: str
    citation: str
    licence: str
    page: str
    offers: tuple[Offer, ...]
    mlt_name: str | None = None
    held_out: tuple[int, int] = (20, 10)
    shots: tuple[int, int] = (100, 20)
    split_counts: tuple[SplitCounts, ...] = ()
    split_file: Remote | None = None
    other_names: Mapping[str, str] = field(default_factory=dict)
    suffix: Mapping[str, str] = field(default_factory=dict)
    part_of: str | None = None
    annotated: bool = False

    def edition_of(self, counts: np.ndarray) -> Edition | None:
        """The edition with these counts (K, C), or None."""
        totals = dict(zip(self.domains, counts.sum(1).tolist(), strict=True))
        if not self.editions and counts.all():  # nothing is known to compare with but that every pair is there
            return Edition("counts are not published", int(counts.sum()))
        for edition in self.editions:
            if edition.pairs is not None:
                same = [list(edition.pairs[name]) for name in self.domains] == counts.tolist()
            elif edition.domains is not None:
                same = dict(edition.domains) == totals
            else:
                same = edition.rows == int(counts.sum())
            if same:
                return edition
        return None


MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def get_benchmark(name: str) -> Benchmark:
    """The facts of an image benchmark, by its own name or that of its long-tailed version.

    >>> get_benchmark("terrainc-mlt").name, len(get_benchmark("DomainNet").classes)
    ('TerraIncognita', 345)
    """
    for benchmark in benchmarks().values():
        spellings = (benchmark.name, benchmark.mlt_name or "", f"{benchmark.name}-MLT")
        if name_key(name) in map(name_key, spellings):
            return benchmark
    raise unknown("benchmark", name, [*benchmarks(), *filter(None, (b.mlt_name for b in benchmarks().values()))])


def is_mlt(name: str) -> bool:
    """Whether a name is that of a long-tailed version."""
    return name_key(name).endswith("mlt")


def _drive(identity: str) -> str:
    """The address of a public file on Google Drive that answers with the file, also when it is too large to scan."""
    return f"https://drive.usercontent.google.com/download?id={identity}&export=download&confirm=t"


def _tsinghua(files: Mapping[str, str]) -> Offer:
    """The archives of the Transfer Learning Library, one for each domain."""
    return Offer(tuple(Remote(name, (f"https://cloud.tsinghua.edu.cn/f/{at}/?dl=1",)) for name, at in files.items()))


def _raw(path: str) -> tuple[str, ...]:
    """A file of a public repository: owner/name/branch/path."""
    owner, name, branch, rest = path.split("/", 3)
    return (
        f"https://raw.githubusercontent.com/{path}",
        f"https://github.com/{owner}/{name}/raw/{branch}/{rest}",
    )


def _lila(name: str) -> Remote:
    """A file of the Caltech camera traps, on the three clouds where LILA keeps it."""
    hosts = (
        "https://storage.googleapis.com/public-datasets-lila",
        "http://us-west-2.opendata.source.coop.s3.amazonaws.com/agentmorris/lila-wildlife",
        "https://lilawildlife.blob.core.windows.net/lila-wildlife",
    )
    return Remote(name, tuple(f"{host}/caltechcameratraps/{name}" for host in hosts))


def _split_file(name: str, sha256: str | None) -> Remote:
    path = f"YyzHarry/multi-domain-imbalance/main/mdlt/dataset/split/{name}.csv"
    return Remote(f"{name}.csv", _raw(path), sha256 and f"sha256:{sha256}", role="splits")


_DOMAINNET_ZIPS = tuple(
    Remote(f"{domain}.zip", (f"http://csr.bu.edu/ftp/visda/2019/multi-source/{folder}{domain}.zip",))
    for domain, folder in (
        ("clipart", "groundtruth/"),
        ("infograph", ""),
        ("painting", "groundtruth/"),
        ("quickdraw", ""),
        ("real", ""),
        ("sketch", ""),
    )
)
_DUPLICATES = Remote(
    "domain_net_duplicates.txt",
    _raw("facebookresearch/DomainBed/main/domainbed/misc/domain_net_duplicates.txt"),
    "sha256:a52b4ab70203f4f3df381077694dba3e33ff44c26407e1c5faca76919c702770",
    role="drop",
)
_LISTS_126 = tuple(
    Remote(
        f"{domain}_list.txt",
        _raw(f"DianCh/AdaContrast/master/datasets/domainnet-126/{domain}_list.txt"),
        f"sha256:{sha256}",
        role="keep",
    )
    for domain, sha256 in (
        ("clipart", "057b0496db8b60a90804b1267b65d64e6f9bd548ef555521b4d63d9cfb3bdb6e"),
        ("painting", "0d91298e5777ff28b8d1dabf673af566d1002e2331bea1972ac9dea27978f0db"),
        ("real", "c567b5ddc123a243f010d2048123d57c987717febd064a298e2c155d24795af8"),
        ("sketch", "4c52172cc37acc3bda07adf14e8ec8c7e542886175844ef2186ac787ea7a3c44"),
    )
)
_DOMAINNET_PAPER = "Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019"
_DOMAINNET_LICENCE = "fair use for research and teaching; the images belong to their makers"


@cache
def _tables() -> dict[str, Any]:
    return json.loads((resources.files(__package__) / "tables.json").read_text(encoding="utf-8"))


def class_names(name: str) -> tuple[str, ...]:
    """The classes of a data set in their published order.

    >>> class_names("VLCS")
    ('bird', 'car', 'chair', 'dog', 'person')
    """
    return tuple(_tables()["classes"][name])


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Every image benchmark by name."""
    tables, classes = _tables(), class_names

    def counted(name: str, edition: str) -> Edition:
        pairs = {domain: tuple(counts) for domain, counts in tables["images"][name].items()}
        totals = {domain: sum(counts) for domain, counts in pairs.items()}
        return Edition(edition, sum(totals.values()), totals, pairs)

    def totals(edition: str, **domains: int) -> Edition:
        return Edition(edition, sum(domains.values()), domains)

    found: tuple[Benchmark, ...] = (
        Benchmark(
            name="PACS",
            folder="PACS",
            domains=("art_painting", "cartoon", "photo", "sketch"),
            classes=classes("PACS"),
            editions=(counted("PACS", "as published"),),
            summary="photos, art paintings, cartoons and sketches of seven things",
            citation="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
            licence="none stated",
            page="https://domaingeneralization.github.io/#data",
            offers=(
                Offer((Remote("PACS.zip", (_drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),)),)),
                Offer((Remote("pacs.zip", (_drive("1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE"),)),)),
                _tsinghua(
                    {
                        "art_painting.tgz": "46684292e979402b8d87",
                        "cartoon.tgz": "7bfa413b34ec4f4fa384",
                        "photo.tgz": "45f71386a668475d8b42",
                        "sketch.tgz": "4ba559535e4b4b6981e5",
                    }
                ),
                Offer(hub="flwrlabs/pacs"),
            ),
            mlt_name="PACS-MLT",
            held_out=(50, 25),
            split_counts=(SplitCounts("as published", 7891, 700, 1400, (25, 2, 1, 0)),),
            split_file=_split_file("PACS", "72b39e126012a53561cc0ffe2e0a6771f175fd0c29239844ba784400ea3b65e4"),
            other_names={"art": "art_painting", "painting": "art_painting"},
            suffix={"sketch": ".png"},
        ),
        Benchmark(
            name="VLCS",
            folder="VLCS",
            domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
            classes=classes("VLCS"),
            editions=(counted("VLCS", "as published"),),
            summary="five things in the photos of four older data sets",
            citation="Fang, Xu and Rockmore, Unbiased Metric Learning, ICCV 2013",
            licence="those of Caltech-101, LabelMe, SUN09 and PASCAL VOC 2007",
            page="https://github.com/belaalb/G2DM#download-vlcs",
            offers=(
                Offer((Remote("VLCS.tar.gz", (_drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"),)),)),
                Offer((Remote("vlcs.zip", (_drive("1r0WL5DDqKfSPp9E3tRENwHaXNs1olLZd"),)),)),
            ),
            mlt_name="VLCS-MLT",
            held_out=(30, 15),
            split_counts=(SplitCounts("as published", 9872, 285, 572, (12, 5, 0, 3)),),
            split_file=_split_file("VLCS", "5bbbb7373c619f125b4e98c1f2f2f5678cefc40fd6dd95fab256202677d51c8e"),
            other_names={
                "caltech": "Caltech101",
                "c": "Caltech101",
                "l": "LabelMe",
                "sun": "SUN09",
                "s": "SUN09",
                "voc": "VOC2007",
                "pascal": "VOC2007",
                "pascalvoc2007": "VOC2007",
                "v": "VOC2007",
            },
        ),
        Benchmark(
            name="OfficeHome",
            folder="office_home",
            domains=("Art", "Clipart", "Product", "Real World"),
            classes=classes("OfficeHome"),
            editions=(counted("OfficeHome", "as published"),),
            summary="65 things of office and home in art, clipart, product pictures and photos",
            citation="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017",
            licence="fair use for non-commercial research and teaching; the images belong to their makers",
            page="https://www.hemanthdv.org/officeHomeDataset.html",
            offers=(
                Offer((Remote("office_home.zip", (_drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),)),)),
                _tsinghua(
                    {
                        "Art.tgz": "6a006656b9a14567ade2",
                        "Clipart.tgz": "ae88aa31d2d7411dad79",
                        "Product.tgz": "f219b0ff35e142b3ab48",
                        "Real_World.tgz": "6c19f3f15bb24ed3951a",
                    }
                ),
                Offer(hub="flwrlabs/office-home"),
            ),
            mlt_name="OfficeHome-MLT",
            held_out=(10, 5),
            shots=(60, 20),
            split_counts=(SplitCounts("as published", 11688, 1300, 2600, (73, 154, 31, 2)),),
            split_file=_split_file("OfficeHome", "0a6c4e7800f629b8c6b67ba71dd238a83d4f513ac77694ab58796e528985a5b5"),
            other_names={"artistic": "Art", "real": "Real World"},
        ),
        Benchmark(
            name="TerraIncognita",
            folder="terra_incognita",
            domains=("location_100", "location_38", "location_43", "location_46"),
            classes=classes("TerraIncognita"),
            editions=(
                counted("TerraIncognita", "the MDLT split file"),
                Edition("DomainBed's paper", 24788),
            ),
            summary="ten kinds of animals, and nothing, before four camera traps",
            citation="Beery, Van Horn and Perona, Recognition in Terra Incognita, ECCV 2018",
            licence="Community Data License Agreement, permissive variant 1.0 (Caltech Camera Traps)",
            page="https://lila.science/datasets/caltech-camera-traps",
            offers=(Offer((_lila("eccv_18_all_images_sm.tar.gz"), _lila("eccv_18_annotations.tar.gz"))),),
            mlt_name="TerraInc-MLT",
            held_out=(20, 10),
            shots=(100, 25),
            split_counts=(SplitCounts("as published", 23269, 353, 708, (25, 4, 3, 8)),),
            split_file=_split_file(
                "TerraIncognita", "e2cc6802e5fa63e78e05f86d09132a24527dee6c5710843f37805f6fd52a61de"
            ),
            other_names={
                spelling: f"location_{number}"
                for number in (38, 43, 46, 100)
                for spelling in (f"l{number}", f"{number}")
            },
            annotated=True,
        ),
        Benchmark(
            name="DomainNet",
            folder="domain_net",
            domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
            classes=classes("DomainNet"),
            editions=(
                totals(
                    "without the known duplicates",
                    clipart=48129,
                    infograph=51605,
                    painting=72266,
                    quickdraw=172500,
                    real=172947,
                    sketch=69128,
                ),
                totals(
                    "with the known duplicates",
                    clipart=48833,
                    infograph=53201,
                    painting=75759,
                    quickdraw=172500,
                    real=175327,
                    sketch=70386,
                ),
            ),
            summary="345 things in six styles",
            citation=_DOMAINNET_PAPER,
            licence=_DOMAINNET_LICENCE,
            page="https://ai.bu.edu/M3SDA/",
            offers=(
                Offer((*_DOMAINNET_ZIPS, _DUPLICATES)),
                _tsinghua(
                    {
                        "clipart.tgz": "f0515164a4864220b98b",
                        "infograph.tgz": "98b19d5fc9884109a9cb",
                        "painting.tgz": "11285ce9fbd34bb7b28c",
                        "quickdraw.tgz": "6faa9efb498b494abf66",
                        "real.tgz": "17a101842c564959b525",
                        "sketch.tgz": "b305add26e9d47349495",
                    }
                ),
                Offer(hub="wltjr1007/DomainNet"),
            ),
            mlt_name="DomainNet-MLT",
            held_out=(40, 20),
            split_counts=(SplitCounts("as published", 468574, 39240, 78761),),
            split_file=_split_file("DomainNet", None),
            suffix={"quickdraw": ".png"},
        ),
        Benchmark(
            name="DomainNet126",
            folder="domain_net_126",
            domains=("clipart", "painting", "real", "sketch"),
            classes=classes("DomainNet126"),
            editions=(
                counted("DomainNet126", "the public lists without the known duplicates"),
                totals(
                    "the public lists with the known duplicates",
                    clipart=18703,
                    painting=31502,
                    real=70358,
                    sketch=24582,
                ),
                Edition("the RC-Align paper", 122504),
            ),
            summary="126 classes and four domains of DomainNet with fewer wrong labels",
            citation="Saito et al., Semi-supervised Domain Adaptation via Minimax Entropy, ICCV 2019; "
            + _DOMAINNET_PAPER,
            licence=_DOMAINNET_LICENCE,
            page="https://github.com/VisionLearningGroup/SSDA_MME",
            offers=(
                Offer(
                    (
                        *(remote for remote in _DOMAINNET_ZIPS if remote.name[:5] not in ("infog", "quick")),
                        *_LISTS_126,
                    )
                ),
            ),
            mlt_name="DomainNet126-MLT",
            held_out=(40, 20),
            split_counts=(
                SplitCounts("the RC-Align paper", 97995, 8132, 16377),
                SplitCounts("the rule on the public lists", 113085, 9733, 19516, (317, 122, 19, 46)),
            ),
            part_of="DomainNet",
        ),
    )
    found += (
        Benchmark(
            name="SVIRO",
            folder="sviro",
            domains=("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
            classes=tuple(map(str, range(7))),
            editions=(),
            summary="what sits on the rear seats of ten cars (drawn by a program)",
            citation="Dias Da Cruz et al., SVIRO: Synthetic Vehicle Interior Rear Seat Occupancy, WACV 2020",
            licence="non-commercial use, see its page",
            page="https://sviro.kl.dfki.de",
            offers=(
                Offer(
                    (
                        Remote(
                            "sviro_grayscale_rectangle_classification.zip", ("https://sviro.kl.dfki.de/?wpdmdl=1731",)
                        ),
                    )
                ),
            ),
        ),
        Benchmark(
            name="DigitsDG",
            folder="digits_dg",
            domains=("mnist", "mnist_m", "svhn", "syn"),
            classes=tuple(map(str, range(10))),
            editions=(
                Edition(
                    "as published",
                    24_000,
                    dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), 6000),
                    dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), (600,) * 10),
                ),
            ),
            summary="digits by hand, on photos, on house fronts and drawn by a program",
            citation="Zhou et al., Deep Domain-Adversarial Image Generation for Domain Generalisation, AAAI 2020",
            licence="those of MNIST, MNIST-M, SVHN and SYN",
            page="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
            offers=(Offer((Remote("digits_dg.zip", (_drive("15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7"),)),)),),
            other_names={"mnistm": "mnist_m", "synth": "syn"},
        ),
        Benchmark(
            name="miniDomainNet",
            folder="mini_domain_net",
            domains=("clipart", "painting", "real", "sketch"),
            classes=classes("DomainNet126"),
            editions=(Edition("as published", 140_006),),
            summary="126 classes and four domains of DomainNet, meant for 96 x 96",
            citation="Zhou et al., Domain Adaptive Ensemble Learning, IEEE TIP 2021; " + _DOMAINNET_PAPER,
            licence=_DOMAINNET_LICENCE,
            page="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
            offers=(),
            part_of="DomainNet",
        ),
    )
    return {benchmark.name: benchmark for benchmark in found}
