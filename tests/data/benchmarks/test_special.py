"""Camelyon17, FMoW, Spawrious, SVIRO, DigitsDG, miniDomainNet and the Debug sets: layouts, parts, counts."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rcalign.data import loading, source
from rcalign.data.benchmarks import actions, facts, spawrious, wilds
from rcalign.data.source import ImageArray, Images
from rcalign.data.splits import split
from rcalign.errors import InputError


def unmarked(name: str, root: Path) -> Path:
    """The folder of a stand-in without its mark: what somebody might have."""
    done = actions.sample_data(name, root, each=1, size=8)
    folder = Path(done["root"]) / done["folder"]
    (folder / ".stand-in").unlink()
    return folder


@pytest.mark.parametrize("name", ["Camelyon17", "SpawriousO2O_easy", "SVIRO", "DigitsDG"])
def test_prepare_verify_info(name: str, tmp_path: Path) -> None:
    folder = unmarked(name, tmp_path / "mine")
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(folder, "some/top/" + folder.name)
    done = actions.prepare_data(name, [tmp_path / "archive.tar.gz"], tmp_path / "root")
    assert sum(done["images"].values()) == sum(1 for path in folder.rglob("*") if path.suffix in (".png", ".jpg"))
    report = actions.verify_data(name, tmp_path / "root")
    assert report["complete"] is (name == "SVIRO")  # whose counts nobody published
    assert report["images"] == sum(done["images"].values())
    with pytest.raises(InputError):
        actions.prepare_data(name, [tmp_path / "archive.tar.gz"], tmp_path / "root")
    data = loading.load(f"{name}:root={tmp_path / 'root'},partial=true")
    assert source.describe(data)["rows"] > 0


def test_camelyon_has_the_official_parts(tmp_path: Path) -> None:
    use = actions.sample_data("Camelyon17", tmp_path, each=3)["use"]
    data = loading.load(use)
    assert data.domains == tuple(f"hospital_{n}" for n in range(5)) and data.classes == ("normal", "tumor")
    parts = split(data, "wilds", (), 0)
    assert list(parts.train) == ["hospital_0", "hospital_3", "hospital_4"]
    assert list(parts.test) == ["hospital_2"] and set(parts.val) == {*parts.train, "hospital_1"}
    rows = np.concatenate([*parts.train.values(), *parts.val.values(), *parts.test.values()])
    assert sorted(rows) == list(range(len(data)))
    assert all(len(part) == 6 for part in (*parts.train.values(), *parts.val.values(), *parts.test.values()))
    with pytest.raises(InputError, match="tests 'hospital_2'"):
        split(data, "wilds", ("hospital_0",), 0)
    plain = loading.load(use.replace("Camelyon17", "WILDSCamelyon"))
    assert plain.split is None and len(plain) == len(data)
    with pytest.raises(InputError, match="no split of its own"):
        split(plain, "wilds", (), 0)


def test_fmow_is_split_by_time_and_tested_by_region(tmp_path: Path) -> None:
    header = "split,category,country_code,timestamp\n"
    rows = [
        ("train", "zoo", "AUT", "2012-12-31T23:59:59Z", "Europe", "train"),
        ("train", "zoo", "AUT", "2013-01-01T00:00:00Z", None, None),  # the official split uses no such row
        ("val", "zoo", "AUT", "2012-05-01T00:00:00Z", "Europe", "val"),
        ("val", "airport", "AUT", "2013-05-01T00:00:00Z", "Europe 2013-2015", "val"),
        ("test", "zoo", "AUT", "2012-05-01T00:00:00Z", None, None),  # in-distribution test
        ("test", "zoo", "AUT", "2015-12-31T00:00:00Z", None, None),
        ("test", "zoo", "AUT", "2016-01-01T00:00:00Z", "Europe 2016-2017", "test"),
        ("test", "zoo", "XXX", "2017-01-01T00:00:00Z", None, None),  # region Other is not tested
        ("val", "zoo", "XXX", "2014-01-01T00:00:00Z", None, None),  # nor does it choose
        ("seq", "zoo", "AUT", "2016-01-01T00:00:00Z", None, None),
        ("train", "airport", "XXX", "2003-01-01T00:00:00Z", "Other", "train"),
    ]
    folder = tmp_path / "fmow_v1.1"
    (folder / "images").mkdir(parents=True)
    (folder / "rgb_metadata.csv").write_text(header + "".join(",".join(row[:4]) + "\n" for row in rows))
    (folder / "country_code_mapping.csv").write_text("alpha-3,region\nAUT,Europe\n")
    example = tmp_path / "example.png"
    from PIL import Image

    Image.new("RGB", (8, 8)).save(example)
    for n in range(len(rows)):
        shutil.copy(example, folder / "images" / f"rgb_img_{n}.png")
    data = loading.load(f"FMoW:root={tmp_path}")
    assert isinstance(data.content, Images) and data.split is not None
    found = {
        int(path.stem.rpartition("_")[2]): (data.domains[k], part)
        for path, k, part in zip(data.content.paths, data.domain, data.split, strict=True)
    }
    assert found == {n: (row[4], row[5]) for n, row in enumerate(rows) if row[4] is not None}
    parts = split(data, "wilds", (), 0)
    assert list(parts.test) == ["Europe 2016-2017"] and list(parts.train) == ["Europe", "Other"]
    assert len(loading.load(f"WILDSFMoW:root={tmp_path}")) == 10  # all but the sequestered one


@pytest.mark.parametrize("name", ["Camelyon17", "FMoW"])
def test_published_counts_add_up(name: str) -> None:
    """The totals that WILDS states beside the parts; FMoW's also has 11,327 in-distribution test rows."""
    total = {"Camelyon17": 455_954, "FMoW": 141_696 - 11_327}[name]
    assert sum(wilds.get_wilds(name).expected.values()) == total


def test_a_lost_image_is_named(tmp_path: Path) -> None:
    use = actions.sample_data("Camelyon17", tmp_path, each=1)["use"]
    lost = next(tmp_path.rglob("*.png"))
    lost.unlink()
    with pytest.raises(InputError, match=lost.name):
        loading.load(use)
    assert len(loading.load(f"{use},partial=true")) == 15


@pytest.mark.parametrize("variant", spawrious.VARIANTS)
def test_spawrious_backgrounds(variant: str) -> None:
    """Domains have as many images of each breed; no image trains and is tested; backgrounds of a breed change."""
    found = list(spawrious.choices(variant))
    for domain in spawrious.DOMAINS:
        totals = {
            breed: sum(c.count(spawrious.EACH) for c in found if (c.domain, c.breed) == (domain, breed))
            for breed in spawrious.BREEDS
        }
        assert set(totals.values()) == {spawrious.EACH * (2 if domain == "Test" else 1)}
    tested = {(c.background, c.breed) for c in found if c.domain == "Test"}
    trained = {(c.background, c.breed) for c in found if c.domain != "Test"}
    assert not tested & trained
    assert len({(c.domain, c.half, c.background, c.breed) for c in found}) == len(found)


def test_spawrious_loads_shares(tmp_path: Path) -> None:
    use = actions.sample_data("SpawriousO2O_hard", tmp_path, each=10)["use"]
    data = loading.load(use)
    assert data.domains == spawrious.DOMAINS and data.classes == spawrious.BREEDS
    assert data.counts().tolist() == [[20] * 4, [10] * 4, [10] * 4]
    paths = [path.relative_to(tmp_path / "spawrious224") for path in data.content.paths]  # type: ignore[union-attr]
    first = [path.parts for path, k in zip(paths, data.domain, strict=True) if k == 1 and path.parts[2] == "corgi"]
    assert sorted({(half, place) for half, place, *_ in first}) == [("0", "beach"), ("0", "desert")]
    assert sum(place == "desert" for _, place, *_ in first) == 9  # 97 % of ten


@pytest.mark.parametrize("size", [28, 224])
def test_debug_sets_need_nothing(size: int) -> None:
    data = loading.load(f"Debug{size}")
    assert isinstance(data.content, ImageArray) and data.content.x.shape == (48, size, size, 3)
    assert (data.counts() > 0).all() and data.counts().sum(1).tolist() == [16, 16, 16]
    assert data.fingerprint == loading.load(f"debug{size}").fingerprint
    assert data.fingerprint != loading.load(f"Debug{size}:seed=1").fingerprint


def test_mini_domainnet_is_made_of_domainnet_by_lists(tmp_path: Path) -> None:
    mini = facts.get_benchmark("miniDomainNet")
    actions.sample_data("DomainNet126", tmp_path / "large", each=2, size=8)
    label = mini.classes[0]
    (tmp_path / "list.txt").write_text(f"clipart/{label}/pic_001.jpg 0\nreal/{label}/pic_002.jpg 0\n")
    done = actions.prepare_data(
        "miniDomainNet", [tmp_path / "large" / "domain_net_126"], tmp_path / "root", keep=[tmp_path / "list.txt"]
    )
    assert done["images"] == {"clipart": 1, "real": 1} and not done["complete"]
    with pytest.raises(InputError, match="Dassl"):
        actions.fetch_data("miniDomainNet", tmp_path / "empty")
