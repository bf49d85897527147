"""A folder domain/class/image, good and bad."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from pictures import picture
from torchvision.datasets import ImageFolder

from rcalign.data import describe, load, open_images
from rcalign.errors import InputError


def test_rows_follow_the_folder(make_folder):
    root = make_folder(("env10", "env2", "env1"), ("x", "y"), each=2)
    data = load(root)
    assert data.domains == ("env1", "env2", "env10")
    assert data.classes == ("x", "y")
    assert data.counts().tolist() == [[2, 2]] * 3
    for row, path in enumerate(data.content.paths):
        assert path.is_absolute()
        domain, label = path.relative_to(root).parts[:2]
        assert (data.domains[data.domain[row]], data.classes[data.y[row]]) == (domain, label)
    assert data.split is None and data.group is None and data.y.dtype == np.int64


def test_rows_are_in_the_order_of_image_folder(make_folder):
    root = make_folder(("a",), ("TV", "Table", "lamp", "10", "9"), each=12)
    folder = ImageFolder(root / "a")
    data = load(root)
    assert [str(path) for path in data.content.paths] == [path for path, _ in folder.samples]
    assert data.classes == ("9", "10", "lamp", "Table", "TV")


def test_one_domain_is_for_training_to_refuse(make_folder):
    assert load(make_folder(("only",))).domains == ("only",)


def test_strange_names_work(make_folder, tmp_path):
    root = make_folder(("a", "b"), ("x", "y"), each=1)
    names = ("with space.png", "quote'\".png", "line\nbreak.png", "Ünï-日本語-لغة.png", "back\\slash.png", "50%.png")
    for i, name in enumerate(names):
        picture(root / "a" / "x" / name, 50 + i)
    shutil.move(root / "b", root / "доме́н 2")
    data = load(root)
    assert len(data) == 4 + len(names)
    assert {path.name for path in data.content.paths} >= set(names)
    assert len(open_images(data, 8).take(np.arange(len(data)))) == len(data)


def test_select_keeps_names_and_moves_the_fingerprint(make_folder):
    data = load(make_folder())
    some = data.select([3, 0])
    assert [data.content.paths[i] for i in (3, 0)] == list(some.content.paths)
    assert some.y.tolist() == data.y[[3, 0]].tolist() and some.classes == data.classes
    assert some.fingerprint != data.fingerprint == load(data.content.paths[0].parents[2]).fingerprint


def test_describe_counts(make_folder):
    info = describe(load(make_folder(each=2)))
    assert info["counts"] == {"a": {"x": 2, "y": 2}, "b": {"x": 2, "y": 2}}
    assert (info["rows"], info["kind"], info["groups"], info["native_size"]) == (8, "images", None, None)


def test_an_extra_class_is_reported(make_folder):
    root = make_folder()
    picture(root / "a" / "extra" / "1.png")
    data = load(root)
    assert data.classes == ("extra", "x", "y")
    assert any("'extra'" in note and "1 of 2 domains" in note for note in data.notes)


def test_other_files_are_left_out_and_reported(make_folder):
    root = make_folder()
    for place in ("a/x/notes.txt", "a/readme.md", "list.csv", "a/x/.hidden.png"):
        (root / place).write_text("not an image")
    data = load(root)
    assert len(data) == 12
    assert any("3 files left out" in note and "notes.txt" in note for note in data.notes)


def test_images_in_folders_below_a_class_count(make_folder):
    root = make_folder()
    picture(root / "a" / "x" / "2019" / "may" / "1.png")
    assert load(root).counts().tolist() == [[4, 3], [3, 3]]


def refused(data: Path | str, *words: str, **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        load(data, **options)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert "\n" not in text.strip()
    return text


def test_a_path_that_does_not_exist(tmp_path):
    refused(tmp_path / "nothing", "nothing", "does not exist")
    refused("data/nothing", "does not exist")
    refused("emojy", "unknown data set 'emojy'", "did you mean 'emoji'")


def test_a_file_of_an_unknown_kind(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"x")
    refused(tmp_path / "a.xyz", "unknown kind", ".npz")


def test_a_domain_without_images(make_folder):
    root = make_folder()
    (root / "empty" / "x").mkdir(parents=True)
    refused(root, "domain 'empty'", "no images")


def test_an_empty_folder_and_a_missing_level(tmp_path, make_folder):
    (tmp_path / "bare").mkdir()
    refused(tmp_path / "bare", "no subfolders", "domain/class/image")
    refused(make_folder() / "a", "domain/class/image")  # class/image only


@pytest.mark.parametrize(
    ("first", "second"),
    [("Dog", "dog"), ("alarm clock", "Alarm_Clock"), ("t-shirt", "tshirt"), ("caf\u00e9", "cafe\u0301")],
)
def test_one_class_in_two_spellings(tmp_path, first, second):
    picture(tmp_path / "a" / first / "1.png")
    picture(tmp_path / "b" / second / "1.png")
    refused(tmp_path, f"'{first}'", f"'{second}'", "spell")


def test_alike_names_in_one_domain_are_two_classes(tmp_path):
    for domain in ("a", "b"):
        for label in ("Q", "q", "1_1", "11"):
            picture(tmp_path / domain / label / "1.png")
    assert len(load(tmp_path).classes) == 4


def test_a_link_to_a_folder_is_followed_and_a_loop_is_named(make_folder, tmp_path):
    root = make_folder()
    outside = tmp_path / "elsewhere"
    picture(outside / "x" / "1.png")
    os.symlink(outside, root / "linked")
    assert load(root).domains == ("a", "b", "linked")
    os.symlink(root / "a", root / "a" / "x" / "again")
    refused(root, "again", "loop")
    (root / "a" / "x" / "again").unlink()
    os.symlink("self", root / "a" / "self")
    refused(root, "cannot be read")


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_an_unreadable_folder(make_folder):
    root = make_folder()
    locked = root / "a" / "x"
    for parent in (root, *root.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    locked.chmod(0)
    try:
        if os.getuid() != 0:
            refused(root, "cannot be read", str(locked))
            return
        # root may read everything: look with other eyes, in a child process
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                load(root)
                os.write(writing, b"no error")
            except BaseException as error:
                os.write(writing, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        answer = os.read(reading, 10_000).decode()
        assert answer.startswith("InputError: ") and "cannot be read" in answer and str(locked) in answer
    finally:
        locked.chmod(0o755)


def spoil(path: Path, how: str) -> None:
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"this is not an image", "cut": whole[: len(whole) * 2 // 3]}[how])


@pytest.mark.parametrize(("how", "why"), [("empty", "zero bytes"), ("text", "not an image"), ("cut", "truncated")])
@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp"])
def test_a_spoilt_file_is_named_or_skipped(make_folder, how, why, suffix):
    root = make_folder()
    bad = picture(root / "a" / "x" / f"bad one.{suffix}", 99, (64, 64))
    spoil(bad, how)
    with pytest.raises(InputError, match="bad one") as caught:  # at the latest when it is decoded
        open_images(load(root), 16)
    assert "`skip_bad`" in str(caught.value)
    if how != "cut":
        refused(root, f"bad one.{suffix}", why, "`skip_bad`")
        assert why in str(caught.value)
    data = load(root, skip_bad=True)
    assert len(data) == 12 and bad not in data.content.paths
    assert any("bad one" in note for note in data.notes)
    assert len(open_images(data, 16)) == 12
    refused(root, "bad one")  # what the decoder found is remembered


def test_several_spoilt_files_are_counted(make_folder):
    root = make_folder()
    for i in range(2):
        spoil(root / "a" / "x" / f"{i}.png", "text")
    refused(root, "1 more such files")


def test_skipping_all_images_of_a_domain_is_an_error(make_folder):
    root = make_folder(each=1)
    for label in ("x", "y"):
        spoil(root / "a" / label / "0.png", "text")
    refused(root, "domain 'a'", "no image left", skip_bad=True)


def test_a_broken_link_and_a_pipe(make_folder):
    root = make_folder()
    os.symlink(root / "gone.png", root / "a" / "x" / "link.png")
    refused(root, "link.png", "cannot be read")
    (root / "a" / "x" / "link.png").unlink()
    os.mkfifo(root / "a" / "x" / "pipe.png")  # must not wait for a writer
    refused(root, "pipe.png", "not a regular file")


def test_a_format_that_starts_other_programs_is_no_image(make_folder):
    root = make_folder()
    (root / "a" / "x" / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    refused(root, "0.png", "not an image")
