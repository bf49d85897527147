"""CSV manifests, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from pictures import picture

from rcalign.data import load
from rcalign.errors import InputError


def write(folder: Path, text: str) -> Path:
    for i in range(4):
        picture(folder / "images" / f"{i}.png", i)
    file = folder / "list.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_columns_in_any_order_with_a_byte_order_mark(tmp_path):
    parts = ("train", "val", "test", "train")
    rows = [f'd{i % 2},"c, {i // 2}",images/{i}.png,{part},p{i},-\n' for i, part in enumerate(parts)]
    data = load(write(tmp_path, "\ufeffdomain, label,path,split,group,extra\n" + "".join(rows)))
    assert data.classes == ("c, 0", "c, 1") and data.domains == ("d0", "d1")
    assert data.split.tolist() == ["train", "val", "test", "train"]
    assert data.group.tolist() == [0, 1, 2, 3]
    assert [path.name for path in data.content.paths] == [f"{i}.png" for i in range(4)]


def test_a_name_with_a_line_break(tmp_path):
    picture(tmp_path / "images" / 'new\nline "1".png')
    file = write(tmp_path, 'path,label,domain\n"images/new\nline ""1"".png",x,a\nimages/1.png,y,a\n')
    assert len(load(file)) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\nimages/0.png,x\n", ("lacks the column domain", "found path, label")),
        ("", ("lacks the column path, label, domain", "found nothing")),
        ("path,label,domain\n", ("lists no images",)),
        ("path,label,domain\nimages/0.png,x,a\nimages/9.png,x,a\n", ("9.png", "line 3", "do not exist")),
        ("path,label,domain\nimages/0.png,,a\n", ("line 2", "no label")),
        ("path,label,domain\nimages/0.png,x\n", ("line 2", "no domain")),
        ("path,label,domain,split\nimages/0.png,x,a,dev\n", ("line 2", "'dev'", "train, val or test")),
        ("path,label,domain\n../secret.png,x,a\n", ("../secret.png", "outside", "absolute path")),
        ("path,label,domain\n/etc/passwd,x,a\n", ("/etc/passwd", "not a whole image")),
        ("path,label,domain\nimages/0.png,x,a\n./images/0.png,x,a\n", ("0.png", "twice", "lines 2 and 3")),
        ("path,label,domain\nimages/0.png,Dog,a\nimages/1.png,dog,b\n", ("'Dog'", "'dog'", "spell")),
        ('path,label,domain\n"images/0.png,x,a\n', ("CSV",)),
    ],
)
def test_one_sentence_for_each_fault(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_other_encodings_are_refused(tmp_path):
    file = write(tmp_path, "")
    file.write_bytes("path,label,domain\nimages/0.png,café,a\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        load(file)


def test_absolute_paths(tmp_path):
    picture(tmp_path / "elsewhere" / "1.png")
    (tmp_path / "inside").mkdir()
    file = write(tmp_path / "inside", f"path,label,domain\n{tmp_path}/elsewhere/1.png,x,a\n")
    assert load(file).content.paths == (tmp_path / "elsewhere" / "1.png",)


def test_labels_are_part_of_the_fingerprint(tmp_path):
    first = load(write(tmp_path, "path,label,domain\nimages/0.png,x,a\nimages/1.png,y,a\n")).fingerprint
    second = load(write(tmp_path, "path,label,domain\nimages/0.png,y,a\nimages/1.png,x,a\n")).fingerprint
    assert first != second


def test_spoilt_files_are_skipped_with_their_row(tmp_path):
    rows = [f"images/{i}.png,c{i},a,{'train' if i else 'test'},g{i}\n" for i in range(4)]
    file = write(tmp_path, "path,label,domain,split,group\n" + "".join(rows))
    (tmp_path / "images" / "1.png").write_text("no image")
    with pytest.raises(InputError, match=r"1\.png"):
        load(file)
    data = load(file, skip_bad=True)
    assert data.classes == ("c0", "c2", "c3") and data.split.tolist() == ["test", "train", "train"]
    assert data.group.tolist() == [0, 1, 2]
