"""From archives, folders, parquet files and annotations into the data root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packing import pack, zipped
from PIL import Image

from rcalign.data.benchmarks import facts, sample
from rcalign.data.benchmarks.place import check_room
from rcalign.data.benchmarks.prepare import prepare as run
from rcalign.errors import InputError

PACS, TERRA, NET, NET126 = (
    facts.get_benchmark(name) for name in ("PACS", "TerraIncognita", "DomainNet", "DomainNet126")
)
EVERY_PAIR = dict.fromkeys(PACS.domains, 14)  # two images of seven classes


def tree(folder: Path) -> dict[str, bytes]:
    """What lies in a folder: relative path -> content, hidden files left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.parametrize("form", ["folder", "data_dir", "zip", "tar.gz", "zip per domain", "folder of zips", "linked"])
def test_every_form_gives_the_same_files(form: str, pictures: Path, own_root: Path, tmp_path: Path) -> None:
    have = pictures / "PACS"
    if form == "folder":
        sources = [have]
    elif form == "data_dir":
        sources = [pictures]
    elif form == "zip":
        sources = [pack(have, tmp_path / "PACS.zip", "PACS/kfold/")]
    elif form == "tar.gz":
        sources = [pack(have, tmp_path / "PACS.tar.gz", "kfold/")]
    elif form == "linked":
        (tmp_path / "mine").symlink_to(have)
        sources = [tmp_path / "mine"]
    else:
        sources = [pack(have / name, tmp_path / f"{name}.zip", f"{name}/") for name in PACS.domains]
        sources = [tmp_path] if form == "folder of zips" else sources
    done = run(PACS, sources)
    assert done["images"] == EVERY_PAIR
    assert tree(own_root / "PACS") == tree(have)
    # whether a free lock leaves its file behind is for the version of filelock to say
    assert {path.name for path in own_root.iterdir()} - {".PACS.lock"} == {"PACS"}


@pytest.mark.parametrize("name", ["VLCS", "OfficeHome", "TerraIncognita"])
def test_data_dir_of_other_sets(name: str, pictures: Path, own_root: Path) -> None:
    benchmark = facts.get_benchmark(name)
    run(benchmark, [pictures])
    assert tree(own_root / benchmark.folder) == tree(pictures / benchmark.folder)


@pytest.mark.parametrize("form", ["folder", "zips", "parquet"])
def test_the_bar_knows_its_total(
    form: str, pictures: Path, own_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    have, total = pictures / "PACS", sum(EVERY_PAIR.values())
    if form == "folder":
        sources = [have]
    elif form == "zips":
        sources = [pack(have / name, tmp_path / f"{name}.zip", f"{name}/") for name in PACS.domains]
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = [(path.parts[-3], path.parts[-2], path.read_bytes()) for path in sorted(have.glob("*/*/*"))]
        table = dict(zip(("domain", "label", "image"), map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(pyarrow.table(table), tmp_path / "PACS.parquet")
        sources = [tmp_path / "PACS.parquet"]
    run(PACS, sources, progress=True)
    assert f"{total}/{total} images" in capsys.readouterr().err


def test_domains_one_after_the_other(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    """Archives of single domains may come in several commands; what is in place stays."""
    first = pack(pictures / "PACS" / "photo", tmp_path / "photo.zip", "photo/")
    assert run(PACS, [first])["images"] == {"photo": 14}
    done = run(PACS, [pictures / "PACS"])
    assert set(done["images"]) == {"art_painting", "cartoon", "sketch"}
    assert done["notes"] == ["left alone, since in place: photo (`replace` prepares them anew)"]
    with pytest.raises(InputError, match="has all domains of PACS already"):
        run(PACS, [pictures / "PACS"])
    before = (own_root / "PACS/photo/dog").stat().st_ino
    assert run(PACS, [pictures / "PACS"], replace=True)["images"] == EVERY_PAIR
    assert (own_root / "PACS/photo/dog").stat().st_ino != before
    assert tree(own_root / "PACS") == tree(pictures / "PACS")


def test_lists_of_what_to_drop_and_keep(own_root: Path, tmp_path: Path) -> None:
    folders = [f"{domain}/{label}" for domain in NET.domains for label in ("zebra", "airplane")]
    images = [f"{folder}/{n}.jpg" for folder in folders for n in range(3)]
    archive = zipped(tmp_path / "net.zip", dict.fromkeys(images, b"x"))
    (tmp_path / "duplicates.txt").write_text("real/zebra/1.jpg\nsketch/zebra/9.jpg\n\n")
    done = run(NET, [archive], drop=tmp_path / "duplicates.txt")
    assert done["images"] == {**dict.fromkeys(NET.domains, 6), "real": 5}
    assert done["notes"] == ["1 of the 2 files to drop were there"]
    assert not (own_root / "domain_net/real/zebra/1.jpg").exists()

    (tmp_path / "real_list.txt").write_text("real/zebra/0.jpg 125\nreal/zebra/1.jpg 125\n")
    (tmp_path / "sketch_list.txt").write_text("sketch/zebra/2.jpg 125")
    done = run(NET126, [own_root / "domain_net"], keep=[tmp_path / "real_list.txt", tmp_path / "sketch_list.txt"])
    assert set(tree(own_root / "domain_net_126")) == {"real/zebra/0.jpg", "sketch/zebra/2.jpg"}
    assert "1 listed files were not found, such as 'real/zebra/1.jpg'" in done["notes"]
    (tmp_path / "wrong.txt").write_text("zebra/0.jpg\n")
    with pytest.raises(InputError, match=r"line 1 of .* is 'zebra/0.jpg'"):
        run(NET126, [own_root / "domain_net"], keep=[tmp_path / "wrong.txt"], replace=True)


def camera_traps(folder: Path) -> tuple[Path, list[dict[str, object]]]:
    """Images as published, all in one folder, with two annotation files; one image shows two animals."""
    places = {
        "a": (38, ["bird"]),
        "b": (38, ["bird", "bobcat"]),
        "c": (100, ["raccoon"]),
        "d": (7, ["bird"]),
        "e": ("46", ["car"]),
    }
    names = ["bird", "bobcat", "raccoon", "car"]
    (folder / "eccv_18_all_images_sm").mkdir(parents=True)
    for name in places:
        Image.fromarray(np.full((8, 8, 3), ord(name), np.uint8)).save(folder / "eccv_18_all_images_sm" / f"{name}.jpg")
    files = []
    for some in ("abde", "c"):
        files.append(
            {
                "images": [{"id": n, "file_name": f"{n}.jpg", "location": places[n][0]} for n in some],
                "annotations": [
                    {"image_id": n, "category_id": names.index(label)} for n in some for label in places[n][1]
                ],
                "categories": [{"id": i, "name": label} for i, label in enumerate(names)],
            }
        )
    return folder, files


@pytest.mark.parametrize("form", ["archives", "folder", "json and folder", "json zip"])
def test_terra_incognita_from_camera_traps(form: str, own_root: Path, tmp_path: Path) -> None:
    folder, annotations = camera_traps(tmp_path / "cct")
    if form == "archives":
        images = pack(folder, tmp_path / "eccv_18_all_images_sm.tar.gz")
        texts = zipped(
            tmp_path / "eccv_18_annotations.zip",
            {f"eccv/{n}.json": json.dumps(content).encode() for n, content in enumerate(annotations)},
        )
        sources = [images, texts]
    elif form == "folder":
        for n, content in enumerate(annotations):
            (folder / f"{n}.json").write_text(json.dumps(content))
        sources = [folder]
    else:
        joined = {key: [item for content in annotations for item in content[key]] for key in annotations[0]}  # type: ignore[attr-defined]
        text = json.dumps(joined)
        if form == "json zip":
            sources = [zipped(tmp_path / "cct.json.zip", {"cct.json": text.encode()}), folder]
        else:
            (tmp_path / "cct.json").write_text(text)
            sources = [folder, tmp_path / "cct.json"]
    done = run(TERRA, sources)
    assert done["images"] == {"location_100": 1, "location_38": 3}
    assert set(tree(own_root / "terra_incognita")) == {
        "location_38/bird/a.jpg",
        "location_38/bird/b.jpg",
        "location_38/bobcat/b.jpg",
        "location_100/raccoon/c.jpg",
    }
    assert np.asarray(Image.open(own_root / "terra_incognita/location_38/bobcat/b.jpg")).mean() == ord("b")


def test_camera_traps_with_images_missing(own_root: Path, tmp_path: Path) -> None:
    folder, annotations = camera_traps(tmp_path / "cct")
    (folder / "eccv_18_all_images_sm/c.jpg").unlink()
    for n, content in enumerate(annotations):
        (folder / f"{n}.json").write_text(json.dumps(content))
    assert run(TERRA, [folder])["notes"] == ["1 annotated images were not found, such as 'c.jpg'"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a camera-trap annotation file"),
        ('{"images": []}', "not a camera-trap annotation file"),
        ('{"images": [], "annotations": [], "categories": []}', "no image of TerraIncognita"),
        ('{"images": {}, "annotations": [], "categories": []}', "its tables are not lists"),
    ],
)
def test_wrong_annotations(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cct.json").write_text(text)
    folder, _ = camera_traps(tmp_path / "cct")
    with pytest.raises(InputError, match=said):
        run(TERRA, [folder, tmp_path / "cct.json"])


def test_annotations_alone(tmp_path: Path) -> None:
    (tmp_path / "cct.json").write_text("{}")
    with pytest.raises(InputError, match="but no images"):
        run(TERRA, [tmp_path / "cct.json"])


# --- parquet -----------------------------------------------------------------------------------------------------


def parquet_of(folder: Path, file: Path, *, numbers: bool, embedded: bool = True, domain: str | None = None) -> Path:
    """The images of a tree as Hugging Face keeps them."""
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files need the extra 'parquet'")
    import pyarrow.parquet as pq

    rows = [path for path in sorted(folder.rglob("*")) if path.suffix in (".jpg", ".png")]
    labels = [path.parent.name for path in rows]
    names = sorted(set(labels))
    table = {
        "image": [{"bytes": path.read_bytes() if embedded else None, "path": path.name} for path in rows],
        "label": [names.index(label) for label in labels] if numbers else labels,
    }
    if domain is None:
        table["domain"] = [path.parent.parent.name for path in rows]
    header = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}}}
    made = pyarrow.table(table)
    if numbers:
        made = made.replace_schema_metadata({"huggingface": json.dumps(header)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, file, row_group_size=10)
    return file


@pytest.mark.parametrize("numbers", [True, False])
def test_parquet(numbers: bool, pictures: Path, own_root: Path, tmp_path: Path) -> None:
    for name in ("photo", "sketch"):
        (tmp_path / name).mkdir()
        shutil.copytree(pictures / "PACS" / name, tmp_path / name / name)
        parquet_of(tmp_path / name, tmp_path / "hub/data" / f"train-{name}.parquet", numbers=numbers)
    done = run(PACS, [tmp_path / "hub"])
    assert done["images"] == {"photo": 14, "sketch": 14}
    for name in ("photo", "sketch"):
        assert tree(own_root / "PACS" / name) == tree(pictures / "PACS" / name)


def test_parquet_with_a_file_for_each_domain(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    file = parquet_of(
        pictures / "PACS/sketch", tmp_path / "sketch-00000-of-00001.parquet", numbers=True, domain="sketch"
    )
    assert run(PACS, [file])["images"] == {"sketch": 14}
    with pytest.raises(InputError, match="no column named domain"):
        run(PACS, [file.rename(tmp_path / "train.parquet")])


def test_parquet_without_images(pictures: Path, tmp_path: Path) -> None:
    file = parquet_of(pictures / "PACS", tmp_path / "a.parquet", numbers=True, embedded=False)
    with pytest.raises(InputError, match="without the bytes of its image"):
        run(PACS, [file])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="not a readable parquet file"):
        run(PACS, [tmp_path / "b.parquet"])
    with pytest.raises(InputError, match="has the class"):
        run(PACS, [parquet_of(pictures / "VLCS", tmp_path / "photo-1.parquet", numbers=False, domain="photo")])


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_nothing_to_prepare_from(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        run(PACS, [tmp_path / "PACS.zip"])
    with pytest.raises(InputError, match="nothing was given"):
        run(PACS, [])
    (tmp_path / "notes.docx").write_bytes(b"")
    with pytest.raises(InputError, match="no kind that PACS is made from"):
        run(PACS, [tmp_path / "notes.docx"])
    with pytest.raises(InputError, match=r"no image to add to PACS.*art_painting, cartoon, .*dog, elephant"):
        run(PACS, [pictures / "VLCS"])
    assert not (own_root / "PACS").exists()


def test_a_hostile_archive_leaves_nothing(own_root: Path, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "evil.zip", {"PACS/photo/dog/1.jpg": b"x", "PACS/photo/dog/../../../../../x.jpg": b"x"})
    with pytest.raises(InputError, match="outside the folder"):
        run(PACS, [archive])
    assert not list(own_root.rglob("*.jpg"))
    assert not list(tmp_path.rglob("x.jpg"))


def test_a_stand_in_is_never_mixed_with_the_data_set(pictures: Path, own_root: Path) -> None:
    sample.sample(PACS, own_root, each=1, size=8)
    with pytest.raises(InputError, match="drawn stand-in"):
        run(PACS, [pictures / "PACS"])
    run(PACS, [pictures / "PACS"], replace=True)
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    assert not (own_root / "PACS/.stand-in").exists()


def test_what_does_not_fit_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unpacking 'PACS.zip' needs 931322574.62 GiB, but .* GiB free"):
        check_room(tmp_path / "not/there/yet", 10**18, "unpacking 'PACS.zip'")


RUN = """
import sys
from rcalign.data.benchmarks import facts, prepare
prepare.prepare(facts.get_benchmark("PACS"), [sys.argv[1]])
"""
CUT = """
import os
written = 0
def replace(a, b, real=os.replace):
    global written
    written += 1
    if written == 20:
        os.kill(os.getpid(), 9)
    real(a, b)
os.replace = replace
"""


def test_killed_and_run_again(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    """A kill leaves no domain in place; the same command goes on with what was written and removes what is stale."""
    archive = pack(pictures / "PACS", tmp_path / "PACS.zip")
    killed = subprocess.run([sys.executable, "-c", CUT + RUN, str(archive)], env={**os.environ}, check=False)
    assert killed.returncode == -9
    assert not (own_root / "PACS").exists()
    kept = list((own_root / ".PACS.growing").rglob("pic_*"))
    assert len(kept) == 19
    inode = kept[0].stat().st_ino
    (own_root / ".PACS.growing/photo/dog").mkdir(parents=True, exist_ok=True)
    (own_root / ".PACS.growing/photo/dog/stale.jpg").write_bytes(b"of another archive")
    run(PACS, [archive])
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    assert (own_root / "PACS" / kept[0].relative_to(own_root / ".PACS.growing")).stat().st_ino == inode
    assert not (own_root / ".PACS.growing").exists()


def test_two_at_once(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    archive = pack(pictures / "PACS", tmp_path / "PACS.tar.gz")
    both = [
        subprocess.Popen([sys.executable, "-c", RUN, str(archive)], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    assert sum("has all domains of PACS already" in text for text in said) == 1
    assert tree(own_root / "PACS") == tree(pictures / "PACS")


def test_split_file(pictures: Path, own_root: Path, tmp_path: Path) -> None:
    (tmp_path / "PACS.csv").write_text("env,label,path,split\nphoto,0,photo/dog/pic_001.jpg,train\n")
    done = run(PACS, [pictures / "PACS", tmp_path / "PACS.csv"])
    assert done["split_file"]
    assert (own_root / "PACS/PACS.csv").read_text() == (tmp_path / "PACS.csv").read_text()
    (tmp_path / "PACS.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="has the columns a, b"):
        run(PACS, [tmp_path / "PACS.csv"])


def test_names_from_zip_are_safe(own_root: Path, tmp_path: Path) -> None:
    """Names that mean something to a shell or a file system stay names."""
    archive = zipped(tmp_path / "a.zip", {"photo/dog/-rf *.jpg": b"1", "photo/dog/ü\n.jpg": b"2"})
    run(PACS, [archive])
    assert sorted(path.name for path in (own_root / "PACS/photo/dog").iterdir()) == ["-rf *.jpg", "ü\n.jpg"]


def test_encrypted_zip(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"photo/dog/1.jpg": b"1"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(bytes(content))
    with pytest.raises(InputError, match="is encrypted"):
        run(PACS, [archive])
