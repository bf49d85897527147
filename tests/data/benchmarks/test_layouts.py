"""Paths as people have them, and where their images go."""

from __future__ import annotations

import pytest

from rcalign.data.benchmarks import facts
from rcalign.data.benchmarks.layouts import Spot, place

PACS, VLCS, OFFICE = facts.get_benchmark("PACS"), facts.get_benchmark("VLCS"), facts.get_benchmark("OfficeHome")


@pytest.mark.parametrize(
    ("name", "path", "spot"),
    [
        ("PACS", "photo/dog/1.jpg", ("photo", "dog", "1.jpg")),
        ("PACS", "kfold/art_painting/dog/pic_1.jpg", ("art_painting", "dog", "pic_1.jpg")),
        ("PACS", "pacs_data/pacs_data/Art Painting/Dog/1.JPG", ("art_painting", "dog", "1.JPG")),
        ("VLCS", "VLCS/Caltech101/bird/x.jpg", ("Caltech101", "bird", "x.jpg")),
        ("VLCS", "VLCS/CALTECH/full/0/imgs_1.jpg", ("Caltech101", "bird", "imgs_1.jpg")),
        ("VLCS", "VLCS/PASCAL/test/4/imgs_1.jpg", ("VOC2007", "person", "imgs_1.jpg")),
        ("OfficeHome", "OfficeHomeDataset_10072016/Real World/TV/1.jpg", ("Real World", "TV", "1.jpg")),
        ("OfficeHome", "office_home_dg/real_world/train/alarm_clock/1.jpg", ("Real World", "Alarm_Clock", "1.jpg")),
        ("OfficeHome", "RealWorld/Postit Notes/1.jpg", ("Real World", "Postit_Notes", "1.jpg")),
        ("TerraIncognita", "terra_incognita/location_38/bird/a.jpg", ("location_38", "bird", "a.jpg")),
        ("TerraIncognita", "L100/bird/a.jpg", ("location_100", "bird", "a.jpg")),
        ("DomainNet", "clipart/t-shirt/clipart_1.jpg", ("clipart", "t-shirt", "clipart_1.jpg")),
        ("DomainNet126", "domain_net/real/zebra/real_1.jpg", ("real", "zebra", "real_1.jpg")),
    ],
)
def test_known_layouts(name: str, path: str, spot: tuple[str, str, str]) -> None:
    assert place(facts.get_benchmark(name), [path]).spots == {path: Spot(*spot)}


@pytest.mark.parametrize(
    "path", ["dog/1.jpg", "photo/1.jpg", "photo/dog/readme.txt", "photos/dog/1.jpg", "photo/dog/deep/1.jpg", "1.jpg"]
)
def test_other_paths_have_no_place(path: str) -> None:
    assert not place(PACS, [path]).spots


def test_a_folder_of_no_class_is_named() -> None:
    found = place(PACS, ["photo/dog/1.jpg", "photo/cow/1.jpg", "photo/cow/2.jpg"])
    assert found.left_out == ("2 images in 'photo/cow': not a class of PACS",)
    assert not place(facts.get_benchmark("DomainNet126"), ["real/zebra/1.jpg", "real/airplane/1.jpg"]).left_out


def test_the_whole_tree_goes_before_a_part_and_the_short_path_before_the_long() -> None:
    whole = [f"kfold/{domain}/dog/1.jpg" for domain in PACS.domains]
    raw = [f"Raw images/kfold/{domain}/dog/1.jpg" for domain in PACS.domains]
    some = [f"tried/photo/dog/{n}.jpg" for n in range(5)]
    found = place(PACS, [*raw, *some, *whole])
    assert set(found.spots) == set(whole)
    assert len(found.left_out) == 2


def test_a_data_dir_with_domains_of_the_same_name() -> None:
    """OfficeHome and DomainNet both have clipart, and both have beds."""
    office = [f"office_home/{domain}/Bed/1.jpg" for domain in OFFICE.domains]
    assert set(place(OFFICE, ["domain_net/clipart/bed/1.jpg", *office]).spots) == set(office)


def test_each_archive_unpacked_in_a_folder_of_its_own() -> None:
    paths = ["clipart/clipart/zebra/1.jpg", "real/real/zebra/1.jpg"]
    assert set(place(facts.get_benchmark("DomainNet"), paths).spots) == set(paths)


def test_parts_are_joined_and_full_is_not_counted_twice() -> None:
    parts = [f"SUN/{part}/0/{part}_{n}.jpg" for part in ("train", "crossval", "test") for n in range(2)]
    full = [f"SUN/full/0/{part}_{n}.jpg" for part in ("train", "crossval") for n in range(2)]
    assert set(place(VLCS, [*full, *parts]).spots) == set(parts)


def test_the_choice_of_parts_goes_by_the_known_number_of_images() -> None:
    """3,282 images of SUN09: here full and test have them together."""
    full = [f"SUN/full/0/{n}.jpg" for n in range(3000)]
    test = [f"SUN/test/0/{n}.jpg" for n in range(282)]
    train = [f"SUN/train/0/{n}.jpg" for n in range(100)]
    found = place(VLCS, [*train, *full, *test]).spots
    assert set(found) == {*full, *test}
    assert len(set(found.values())) == 3282  # equal names in two parts do not overwrite each other
