"""Named benchmarks in a data root: loaded, in DomainBed's order, or refused with what is missing."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from rcalign.data import describe, load, split
from rcalign.data.benchmarks import contents, facts, sample
from rcalign.data.splits import mdlt_rule
from rcalign.errors import InputError

PACS = facts.get_benchmark("PACS")
SMALL = ["PACS", "VLCS", "OfficeHome", "TerraIncognita"]
SHOTS = {"VLCS": (12, 5, 0, 3), "PACS": (25, 2, 1, 0), "OfficeHome": (73, 154, 31, 2), "TerraIncognita": (25, 4, 3, 8)}
Whole = Callable[[str], Path]


@pytest.fixture
def whole(own_root: Path, reference: Path, pictures: Path) -> Whole:
    """A data set of the true size: every file of the published list, all of them links to one small picture."""

    def make(name: str) -> Path:
        benchmark = facts.get_benchmark(name)
        picture = own_root / f"{name}.jpg"
        shutil.copyfile(pictures / "PACS/photo/dog/pic_001.jpg", picture)
        for domain in benchmark.domains:
            for label in benchmark.classes:
                (own_root / benchmark.folder / domain / label).mkdir(parents=True)
        with open(reference / "mdlt-splits" / f"{name}.csv", newline="") as file:
            for row in csv.DictReader(file):
                os.link(picture, own_root / benchmark.folder / row["path"])
        return own_root / benchmark.folder

    return make


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_in_domainbeds_order(name: str, pictures: Path) -> None:
    """As torchvision's ImageFolder reads them, domain by domain: DomainBed's split then takes the same rows."""
    benchmark = facts.get_benchmark(name)
    data = load(f"{name}:root={pictures}")
    assert data.domains == benchmark.domains and data.classes == benchmark.classes
    theirs = [
        (Path(path), label, position)
        for position, domain in enumerate(sorted(os.listdir(pictures / benchmark.folder)))
        if not domain.startswith(".")
        for path, label in ImageFolder(str(pictures / benchmark.folder / domain)).samples
    ]
    first = min(position for *_, position in theirs)  # hidden files come before the domains
    ours = list(zip(data.content.paths, data.y.tolist(), data.domain.tolist(), strict=True))
    assert ours == [(path, label, position - first) for path, label, position in theirs]


@pytest.mark.parametrize("name", SMALL)
def test_verify_the_whole(name: str, whole: Whole) -> None:
    whole(name)
    report = contents.verify(facts.get_benchmark(name))
    assert report["complete"] and not report["problems"]
    assert report["images"] == {"PACS": 9991, "VLCS": 10729, "OfficeHome": 15588, "TerraIncognita": 24330}[name]
    assert report["edition"] == facts.get_benchmark(name).editions[0].name


@pytest.mark.parametrize("name", SMALL)
def test_verify_the_long_tailed_split(name: str, whole: Whole, reference: Path) -> None:
    """By the published file and by the rule: the same sizes and shot pairs."""
    whole(name)
    benchmark = facts.get_benchmark(name)
    by_file = contents.verify(benchmark, None, reference / "mdlt-splits" / f"{name}.csv", long_tailed=True)
    by_rule = contents.verify(benchmark, long_tailed=True)
    assert by_file["complete"] and by_rule["complete"]
    assert by_rule["split"]["file"] is None and by_file["split"]["file"] is not None
    assert {**by_rule["split"], "file": 0} == {**by_file["split"], "file": 0}
    assert tuple(by_rule["split"]["shots"].values()) == SHOTS[name]


def test_what_is_missing_is_said(whole: Whole) -> None:
    folder = whole("PACS")
    lost = sorted((folder / "sketch/dog").iterdir())[0]
    lost.unlink()
    report = contents.verify(PACS)
    assert not report["complete"] and report["problems"] == ["sketch/dog has 771 images, 772 expected"]
    with pytest.raises(InputError, match=r"not the whole of PACS: sketch/dog has 771 .*PACS:partial=true"):
        load("PACS")
    data = load("PACS:partial=true")
    assert len(data) == 9990 and "not the whole of PACS: sketch/dog has 771 images, 772 expected" in data.notes
    for path in (folder / "photo").rglob("*.jpg"):
        path.unlink()
    for label in PACS.classes:
        (folder / "photo" / label).rmdir()
    (folder / "photo").rmdir()
    assert contents.verify(PACS)["problems"][0] == "domain 'photo' is missing (1,670 images)"
    with pytest.raises(InputError, match="domain 'photo' is missing"):
        load("PACS:partial=yes")


def test_a_strange_class_is_refused(pictures: Path, own_root: Path) -> None:
    sample.sample(PACS, own_root, each=1, size=8)
    (own_root / "PACS/.stand-in").unlink()
    (own_root / "PACS/photo/cow").mkdir()
    assert "folder 'photo/cow' is not a class of PACS" in contents.verify(PACS)["problems"]
    with pytest.raises(InputError, match="'photo/cow' is not a class"):
        load("PACS:partial=true")


def test_terra_incognita_has_two_editions(whole: Whole) -> None:
    folder = whole("TerraIncognita")
    some = sorted((folder / "location_38/bird").iterdir())[0]
    for n in range(24788 - 24330):
        os.link(some, folder / f"location_46/bird/extra_{n}.jpg")
    report = contents.verify(facts.get_benchmark("TerraIncognita"))
    assert report["complete"] and report["edition"] == "DomainBed's paper"
    assert report["notes"] == ["the counts are those of 'DomainBed's paper'; most use 'the MDLT split file'"]


def test_domainnet_says_whether_its_duplicates_were_dropped(own_root: Path) -> None:
    benchmark = facts.get_benchmark("DomainNet")
    with_duplicates = np.zeros((6, 345), dtype=np.int64)
    assert benchmark.editions[1].domains is not None
    with_duplicates[:, 0] = list(benchmark.editions[1].domains.values())
    found = benchmark.edition_of(with_duplicates)
    assert found is not None and found.name == "with the known duplicates"
    with_duplicates[0, 0] -= 1
    assert benchmark.edition_of(with_duplicates) is None


@pytest.mark.parametrize("name", ["PACS", "VLCS"])
def test_long_tailed_data_set(name: str, whole: Whole, reference: Path) -> None:
    whole(name)
    published = load(f"{name}-MLT:splits={reference / 'mdlt-splits' / name}.csv")
    ruled = load(f"{name}-MLT")
    benchmark = facts.get_benchmark(name)
    known = benchmark.split_counts[0]
    for data in (published, ruled):
        parts = split(data, "mdlt", [], 0, allow_unseen=True)
        sizes = [sum(map(len, part.values())) for part in (parts.train, parts.val, parts.test)]
        assert sizes == [known.train, known.val, known.test]
        assert data.shots == benchmark.shots
    assert published.fingerprint != ruled.fingerprint
    assert any("split by the published rule" in note for note in ruled.notes)
    general = mdlt_rule(ruled.y, ruled.domain, 0, benchmark.held_out)
    assert [(general == p).sum() for p in ("train", "val", "test")] == [known.train, known.val, known.test]


def test_split_file_with_the_images(whole: Whole, reference: Path) -> None:
    """Where its authors want it, beside the domains, it is found; files that it lists and that are gone are named."""
    folder = whole("VLCS")
    (folder / "VLCS.csv").write_bytes((reference / "mdlt-splits/VLCS.csv").read_bytes())
    extra = folder / "SUN09/bird/another.jpg"
    os.link(next((folder / "SUN09/bird").iterdir()), extra)
    data = load("VLCS-MLT")
    assert len(data) == 10729 and "1 images left out: not in the split file" in data.notes
    extra.unlink()
    lost = sorted((folder / "SUN09/bird").iterdir())[0]
    lost.unlink()
    with pytest.raises(InputError, match=f"1 images of the split file .*'SUN09/bird/{lost.name}'"):
        load("VLCS-MLT")
    assert contents.verify(facts.get_benchmark("VLCS"), long_tailed=True)["problems"] == [
        f"1 images of the split file are missing: 'SUN09/bird/{lost.name}'"
    ]
    assert len(load("VLCS-MLT:partial=true")) == 10728
    with pytest.raises(InputError, match="there is no split file"):
        load("VLCS-MLT:splits=/nowhere.csv")


def test_broken_images_are_found_by_decoding(own_root: Path) -> None:
    sample.sample(PACS, own_root, each=1, size=8)
    broken = own_root / "PACS/photo/dog/pic_001.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    assert not any("whole image" in text for text in contents.verify(PACS)["problems"])
    assert "'photo/dog/pic_001.jpg' is not a whole image" in contents.verify(PACS, decode=True)["problems"][-1]


def test_absent(own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"rcalign data fetch PACS.*rcalign data prepare PACS --from PATH"):
        load("PACS")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PACS").mkdir()
    with pytest.raises(InputError, match=r"The folder of that name here is './PACS'"):
        load("PACS")
    (own_root / "domain_net").mkdir()
    with pytest.raises(InputError, match=r"prepare DomainNet126 --from .*domain_net' and --keep LIST"):
        load("DomainNet126")
    with pytest.raises(InputError, match="did you mean 'PACS'"):
        load("PACSS")


@pytest.mark.parametrize("text", ["pacs", "PACS", "office_home", "Terra-Inc-MLT", "domainnet126_mlt"])
def test_names_in_any_spelling(text: str) -> None:
    with pytest.raises(InputError, match="is not in the data root"):
        load(text)


def test_parameters() -> None:
    with pytest.raises(InputError, match="'partial' of data set 'PACS' is 'perhaps'"):
        load("PACS:partial=perhaps")
    with pytest.raises(InputError, match=r"unknown parameter of data set 'PACS' 'rot'.*did you mean 'root'"):
        load("PACS:rot=/data")


def test_info_of_a_stand_in(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = describe(load(f"PACS:root={pictures}"))
    assert info["rows"] == 56 and info["notes"] == ["a drawn stand-in for PACS, not the data set"]
    assert "is a drawn stand-in for PACS" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pacs", "hearts"])
def test_a_folder_with_the_name_of_a_benchmark_is_pointed_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RCALIGN_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=rf"The folder of that name here is './{name}'"):
        load(name)
