"""Foreign archives: read where harmless, refused by the entry's name where not, and nothing is written then."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from packing import link, tarred, zipped

from rcalign.data.benchmarks.archives import Entry, Limits, open_source
from rcalign.errors import InputError


def unpack(archive: Path, out: Path, limits: Limits = Limits()) -> list[str]:  # noqa: B008
    return [entry.path for entry in open_source(archive, limits).copy(lambda entry: [out / entry.name])]


@pytest.mark.parametrize(
    "name", ["../../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "..\\x.jpg", "C:\\x.jpg", "a/b/../../../x"]
)
@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_entries_that_leave_the_folder(name: str, suffix: str, tmp_path: Path) -> None:
    archive = tmp_path / f"evil{suffix}"
    if suffix == ".zip":
        zipped(archive, {"fine.jpg": b"1", name: b"2"})
    else:
        tarred(archive, tarfile.TarInfo("fine.jpg"), tarfile.TarInfo(name), content=b"1")
    with pytest.raises(InputError, match="outside the folder") as found:
        list(open_source(archive).entries())
    assert name in str(found.value)


@pytest.mark.parametrize(
    "member",
    [
        link("a/b.jpg", "/etc/passwd"),
        link("a/b.jpg", "../../x"),
        link("b.jpg", "../top/x"),
        link("a/b.jpg", "../x", tarfile.LNKTYPE),
        link("a/b.jpg", "c/../../../a/x"),
    ],
    ids=lambda member: member.linkname,
)
def test_links_out(member: tarfile.TarInfo, tmp_path: Path) -> None:
    archive = tarred(tmp_path / "evil.tar.gz", member)
    with pytest.raises(InputError, match="link out of the archive") as found:
        unpack(archive, tmp_path / "out")
    assert f"'{member.name}'" in str(found.value)
    assert member.linkname in str(found.value)


def test_zip_links_out(tmp_path: Path) -> None:
    archive = tmp_path / "evil.zip"
    info = zipfile.ZipInfo("photo/dog/1.jpg")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(info, "../../../../etc/passwd")
    with pytest.raises(InputError, match=r"'photo/dog/1.jpg'.*link out"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("dev/x.jpg")
    member.type = kind
    with pytest.raises(InputError, match=r"'dev/x.jpg'.*device or a pipe"):
        unpack(tarred(tmp_path / "evil.tar.gz", member), tmp_path / "out")


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(entry_bytes=1000), "would unpack to 300,000 bytes"),
        (Limits(total_bytes=500_000, growth=10**9), "would bring what is unpacked to 600,000 bytes"),
        (Limits(growth=2, free=400_000), "would bring what is unpacked to 600,000 bytes"),
        (Limits(entries=1), "more than 1 entries"),
    ],
)
def test_bombs(limits: Limits, said: str, suffix: str, tmp_path: Path) -> None:
    archive = tmp_path / f"bomb{suffix}"
    content = bytes(300_000)
    if suffix == ".zip":
        zipped(archive, {"a.jpg": content, "b.jpg": content})
    else:
        tarred(archive, tarfile.TarInfo("a.jpg"), tarfile.TarInfo("b.jpg"), content=content)
    with pytest.raises(InputError, match=said) as found:
        list(open_source(archive, limits).entries())
    assert "'a.jpg'" in str(found.value) or "'b.jpg'" in str(found.value)


def test_a_real_bomb(tmp_path: Path) -> None:
    """Half a megabyte that would become 512 is refused by the limits as they are, before it is unpacked."""
    archive = tmp_path / "bomb.zip"
    block = bytes(2**24)
    with (
        zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("x.jpg", "w") as out,
    ):
        for _ in range(32):
            out.write(block)
    with pytest.raises(InputError, match=r"'x.jpg'.*536,870,912 bytes"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_entry_at_the_end_of_a_zip_keeps_all_others_out(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "evil.zip", {"fine.jpg": b"1", "../x.jpg": b"2"})
    with pytest.raises(InputError):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar"])
@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_cut_short_or_no_archive(suffix: str, keep: float, tmp_path: Path) -> None:
    archive = tmp_path / f"cut{suffix}"
    if suffix == ".zip":
        zipped(archive, {"a.jpg": bytes(range(256)) * 40})
    else:
        tarred(archive, tarfile.TarInfo("a.jpg"), content=bytes(range(256)) * 400)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(keep * len(whole))] or b"<html>not found</html>")
    with pytest.raises(InputError, match="broken or cut short"):
        unpack(archive, tmp_path / "out")


def test_wrong_content_is_noticed(tmp_path: Path) -> None:
    archive = tmp_path / "flipped.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a.jpg", b"A" * 1000)
    archive.write_bytes(archive.read_bytes().replace(b"A" * 500, b"A" * 499 + b"B", 1))
    with pytest.raises(InputError, match=r"broken or cut short.*CRC"):
        unpack(archive, tmp_path / "out")


def test_links_inside_a_tar_stand_for_their_file(tmp_path: Path) -> None:
    hard = link("b/2.jpg", "a/1.jpg", tarfile.LNKTYPE)
    soft = link("b/3.jpg", "../a/1.jpg")
    archive = tarred(tmp_path / "x.tar.gz", tarfile.TarInfo("a/1.jpg"), hard, soft, content=b"picture")
    assert sorted(unpack(archive, tmp_path / "out")) == ["a/1.jpg", "b/2.jpg", "b/3.jpg"]
    assert {path.read_bytes() for path in (tmp_path / "out").iterdir()} == {b"picture"}
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_folders_with_loops_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/1.jpg").write_bytes(b"x")
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/gone.jpg").symlink_to(tmp_path / "nowhere")
    assert list(open_source(tmp_path).entries()) == [Entry("a/b/1.jpg", 1)]


def test_equal_archives_give_equal_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is unpacked: the fingerprint of a data set contains the times of its files."""
    import time

    archive = zipped(tmp_path / "a.zip", {"1.jpg": b"x"})
    times = set()
    for zone in ("UTC", "Pacific/Auckland"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        unpack(archive, tmp_path / zone.lower())
        times.add((tmp_path / zone.lower() / "1.jpg").stat().st_mtime_ns)
    monkeypatch.delenv("TZ")
    time.tzset()
    assert len(times) == 1


def test_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"x")
    with pytest.raises(InputError, match="no known kind"):
        open_source(tmp_path / "x.rar")
