"""Downloads from a server on loopback: cut, wrong, short, redirected, too large, interrupted, and two at once."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packing import zipped
from serving import File, Server, serving

from rcalign.data.benchmarks.download import NoSource, Patience, download
from rcalign.data.benchmarks.facts import Remote
from rcalign.errors import InputError

CONTENT = bytes(range(256)) * 40
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
QUICK = Patience(attempts=3, pause=0.01, timeout=5)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def get(server: Server, folder: Path, *paths: str, checksum: str | None = SHA, name: str = "data.bin") -> Path:
    urls = tuple(f"{server.url}/{path}" for path in paths or ("a",))
    return download(Remote(name, urls, checksum), folder, patience=QUICK)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_good_day(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == {"data.bin"}
    get(server, tmp_path)
    assert server.ranges("a") == [None]  # what is there is not asked for again


@pytest.mark.parametrize("checksum", [SHA, None])
def test_cut_connections_go_on(checksum: str | None, server: Server, tmp_path: Path) -> None:
    """Each answer breaks off; the next request asks for the rest only."""
    server.files["a"] = File(CONTENT, cut=[3000, 3000])
    assert get(server, tmp_path, checksum=checksum).read_bytes() == CONTENT
    assert server.ranges("a") == [None, "bytes=3000-", "bytes=6000-"]


def test_more_cuts_than_attempts_are_borne_as_long_as_bytes_come(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, cut=[1000] * 8)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.ranges("a")) == 9


def test_no_byte_comes(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, cut=[0] * 9)
    server.files["b"] = File(CONTENT)
    assert get(server, tmp_path, "a", "b").read_bytes() == CONTENT
    assert len(server.ranges("a")) == 3
    server.files["a"].cut = [0] * 9
    with pytest.raises(NoSource) as found:
        get(server, tmp_path / "other", "a")
    assert list(found.value.reasons.values()) == ["it sent 0 of 10,240 bytes, 3 times in a row"]


def test_a_server_that_recovers(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, failing=2)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_the_next_address_goes_on_where_the_first_stopped(server: Server, tmp_path: Path) -> None:
    """With a checksum, bytes of one address are good for the other."""
    server.files["a"] = File(CONTENT, cut=[3000, 0, 0, 0])
    server.files["b"] = File(CONTENT, etag=False)
    assert get(server, tmp_path, "a", "b").read_bytes() == CONTENT
    assert server.ranges("b") == ["bytes=3000-"]


def test_the_next_address_starts_anew_without_a_checksum(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(bytes(10240), cut=[3000, 0, 0, 0])
    server.files["b"] = File(CONTENT)
    assert get(server, tmp_path, "a", "b", checksum=None).read_bytes() == CONTENT
    assert server.ranges("b") == [None]


def test_wrong_content(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT[:-1] + b"?")
    server.files["b"] = File(CONTENT)
    assert get(server, tmp_path, "a", "b").read_bytes() == CONTENT
    with pytest.raises(NoSource) as found:
        get(server, tmp_path / "other", "a")
    assert "its sha256 is" in found.value.reasons[f"{server.url}/a"]
    assert left(tmp_path / "other") == set()


def test_a_mirror_with_other_content_is_left_and_the_whole_comes_once_more(server: Server, tmp_path: Path) -> None:
    """The first half was of another file: noticed at the end, and repaired."""
    server.files["a"] = File(bytes(10240), cut=[3000, 0, 0, 0])
    server.files["b"] = File(CONTENT)
    assert get(server, tmp_path, "a", "b").read_bytes() == CONTENT
    assert server.ranges("b") == ["bytes=3000-", None]


def test_a_file_that_was_there_and_is_wrong(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"old")
    server.files["a"] = File(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_truncated_at_the_server(server: Server, tmp_path: Path) -> None:
    """The server itself has half a file and says that this is all: found by checksum, or by the look of a zip."""
    whole = zipped(tmp_path / "x.zip", {"a.jpg": CONTENT}).read_bytes()
    server.files["a"] = File(whole[: len(whole) // 2])
    with pytest.raises(NoSource) as found:
        get(server, tmp_path / "one", name="x.zip", checksum=None)
    assert "is not a whole .zip archive" in str(found.value.reasons)
    with pytest.raises(NoSource) as found:
        get(server, tmp_path / "two", name="x.bin", checksum=f"sha256:{hashlib.sha256(whole).hexdigest()}")
    assert "its sha256 is" in str(found.value.reasons)


def test_checksums_that_the_server_promises(server: Server, tmp_path: Path) -> None:
    """Google's and Azure's storage send an md5 along."""
    md5 = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    for path, header in (("a", {"x-goog-hash": f"crc32c=AAAAAA==,md5={md5}"}), ("b", {"Content-MD5": md5})):
        server.files[path] = File(CONTENT, headers=header, cut=[3000])
        assert get(server, tmp_path / path, path, checksum=None).read_bytes() == CONTENT
        server.files[path] = File(CONTENT[:-1] + b"?", headers=header)
        with pytest.raises(NoSource) as found:
            get(server, tmp_path / f"{path}-wrong", path, checksum=None)
        assert "its md5 is" in str(found.value.reasons)


def test_redirects(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(status=302, headers={"Location": f"{server.url}/b?token=1"})
    server.files["b"] = File(CONTENT, cut=[3000])
    assert get(server, tmp_path, "a").read_bytes() == CONTENT
    assert server.ranges("b") == [None, "bytes=3000-"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/loop"])
def test_redirects_that_are_not_followed(target: str, server: Server, tmp_path: Path) -> None:
    server.files["loop"] = File(status=302, headers={"Location": target})
    with pytest.raises(NoSource) as found:
        get(server, tmp_path, "loop")
    assert found.value.reasons
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (File(status=404), "HTTP 404 Not Found"),
        (File(status=403), "HTTP 403 Forbidden"),
        (File(status=503), "HTTP 503 Service Unavailable, 3 times in a row"),
        (File(b"<html>quota exceeded</html>", headers={"Content-Type": "text/html"}), "a web page, not with the file"),
    ],
)
def test_dead_addresses(file: File, said: str, server: Server, tmp_path: Path) -> None:
    server.files["a"] = file
    with pytest.raises(NoSource) as found:
        get(server, tmp_path, checksum=None)
    assert said in found.value.reasons[f"{server.url}/a"]


def test_nobody_listens(tmp_path: Path) -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(NoSource) as found:
        download(Remote("x", (f"{url}/x", "http://no-such-host.invalid/x")), tmp_path, patience=QUICK)
    assert "refused" in found.value.reasons[f"{url}/x"]
    assert len(found.value.reasons) == 2


def test_a_server_that_falls_silent(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, pace=0.6)
    with pytest.raises(NoSource) as found:
        download(Remote("x", (f"{server.url}/a",)), tmp_path, patience=Patience(attempts=1, timeout=0.2))
    assert "it stopped sending" in str(found.value.reasons)


def test_a_file_that_changed_at_the_server(server: Server, tmp_path: Path) -> None:
    """Half of the old and half of the new would be neither: the whole comes anew."""
    server.files["a"] = File(bytes(10240), cut=[3000, 0, 0, 0])
    with pytest.raises(NoSource):
        get(server, tmp_path, checksum=None)
    assert left(tmp_path) == {"data.bin.part", "data.bin.part.json"}
    server.files["a"] = File(CONTENT)
    assert get(server, tmp_path, checksum=None).read_bytes() == CONTENT
    assert server.ranges("a")[-1] == "bytes=3000-"  # it asked to go on, and was given the whole


def test_servers_that_cannot_go_on(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, cut=[3000], ranges=False)
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.files["b"] = File(CONTENT, say_length=False)
    assert get(server, tmp_path / "b", "b").read_bytes() == CONTENT


def test_all_was_there_but_its_name(server: Server, tmp_path: Path) -> None:
    """Stopped between the last byte and the renaming: the server has nothing more to give."""
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    server.files["a"] = File(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges("a") == ["bytes=10240-"]


def test_too_much_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"more")
    server.files["a"] = File(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_no_room_is_said_before(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT, length=10**15, cut=[1000])
    server.files["b"] = File(CONTENT)
    with pytest.raises(InputError, match=r"downloading data.bin needs 931322.57 GiB, but .* GiB free"):
        get(server, tmp_path, "a", "b")  # another address would not help
    assert not server.ranges("b")


RUN = """
import sys
from pathlib import Path
from rcalign.data.benchmarks.download import Patience, download
from rcalign.data.benchmarks.facts import Remote
print("ready", flush=True)
download(Remote("data.bin", (sys.argv[1],), sys.argv[3] or None), Path(sys.argv[2]), patience=Patience(3, 0.01, 5))
"""


def started(server: Server, folder: Path, checksum: str = SHA, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, f"{server.url}/a", str(folder), checksum]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]


def test_the_disk_fills(server: Server, tmp_path: Path) -> None:
    """The system refuses to write on (here by a limit on the size of files); what came is kept."""
    server.files["a"] = File(CONTENT, say_length=False)
    process = started(
        server, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    )
    _, said = process.communicate()
    assert process.returncode == 1
    assert "InputError: no room is left in" in said
    assert (tmp_path / "data.bin.part").stat().st_size == 4096
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges("a")[-1] == "bytes=4096-"


def test_killed_and_started_again(server: Server, tmp_path: Path) -> None:
    server.files["a"] = File(CONTENT * 10, pace=0.02)
    whole = f"sha256:{hashlib.sha256(CONTENT * 10).hexdigest()}"
    process = started(server, tmp_path, whole)
    part = tmp_path / "data.bin.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = part.stat().st_size
    assert not (tmp_path / "data.bin").exists()
    server.files["a"].pace = 0
    assert get(server, tmp_path, checksum=whole).read_bytes() == CONTENT * 10
    assert server.ranges("a")[-1] == f"bytes={have}-" and have > 0


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    """One downloads, the other waits and finds the file."""
    server.files["a"] = File(CONTENT, pace=0.15)
    both = [started(server, tmp_path) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert server.ranges("a") == [None]
    assert left(tmp_path) == {"data.bin"}


def test_a_folder_that_may_not_be_written(server: Server, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        get(server, tmp_path / "x")
