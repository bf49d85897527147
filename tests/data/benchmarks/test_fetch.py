"""Whole data sets from a server on loopback, and what is said when there is none."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from packing import pack
from serving import File, Server, hub, serving
from test_prepare import parquet_of, tree

from rcalign.data import load
from rcalign.data.benchmarks import facts, fetch, mnist, sample
from rcalign.data.benchmarks.download import Patience
from rcalign.data.benchmarks.facts import Offer, Remote
from rcalign.errors import InputError

PACS = facts.get_benchmark("PACS")
QUICK = Patience(attempts=2, pause=0.01, timeout=5)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def archive(pictures: Path, tmp_path: Path) -> bytes:
    return pack(pictures / "PACS", tmp_path / "PACS.zip", "kfold/").read_bytes()


def at(server: Server, *names: str, hub: str | None = None) -> facts.Benchmark:
    """PACS, offered by the server: first all files, then the hub."""
    files = tuple(Remote(name, (f"{server.url}/{name}",)) for name in names)
    return replace(PACS, offers=(Offer(files), *([Offer(hub=hub)] if hub else [])))


def test_fetch_and_prepare(server: Server, archive: bytes, pictures: Path, own_root: Path) -> None:
    server.files["PACS.zip"] = File(archive, cut=[5000])
    done = fetch.fetch(at(server, "PACS.zip"), patience=QUICK)
    assert sum(done["images"].values()) == 56
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    assert not list((own_root / "downloads").iterdir())
    again = fetch.fetch(at(server, "PACS.zip"), patience=QUICK)
    assert again["notes"] == ["its images are in place already"]
    assert len(server.ranges("PACS.zip")) == 2


def test_the_next_offer(server: Server, pictures: Path, own_root: Path, tmp_path: Path) -> None:
    """One archive is gone; the archives of the single domains are elsewhere."""
    names = []
    for domain in PACS.domains:
        file = pack(pictures / "PACS" / domain, tmp_path / f"{domain}.tar.gz", f"{domain}/")
        server.files[file.name] = File(file.read_bytes())
        names.append(file.name)
    gone = Offer((Remote("PACS.zip", (f"{server.url}/PACS.zip",)),))
    benchmark = replace(PACS, offers=(gone, *at(server, *names).offers))
    fetch.fetch(benchmark, patience=QUICK, keep_archives=True)
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    assert {path.name for path in (own_root / "downloads/PACS").glob("*.gz")} == set(names)


def test_an_archive_that_is_broken_inside(server: Server, pictures: Path, own_root: Path, tmp_path: Path) -> None:
    """No checksum is known and its length is right: noticed when unpacked, not kept, and the next offer is used."""
    whole = pack(pictures / "PACS", tmp_path / "a.tar.gz").read_bytes()
    server.files["a.tar.gz"] = File(whole[: len(whole) // 2])
    server.files["b.tar.gz"] = File(whole)
    benchmark = replace(PACS, offers=(*at(server, "a.tar.gz").offers, *at(server, "b.tar.gz").offers))
    fetch.fetch(benchmark, patience=QUICK)
    assert tree(own_root / "PACS") == tree(pictures / "PACS")


def test_lists_come_first_and_are_used(server: Server, own_root: Path, tmp_path: Path) -> None:
    benchmark = facts.get_benchmark("DomainNet126")
    made = tmp_path / "made"
    for domain in benchmark.domains:
        for label in ("zebra", "airplane"):
            (made / domain / label).mkdir(parents=True)
            (made / domain / label / "1.jpg").write_bytes(b"x")
    server.files["net.zip"] = File(pack(made, tmp_path / "net.zip").read_bytes())
    text = b"real/zebra/1.jpg 125\nsketch/zebra/1.jpg 125\n"
    server.files["list.txt"] = File(text)
    checksum = f"sha256:{hashlib.sha256(text).hexdigest()}"
    lists = Remote("list.txt", (f"{server.url}/list.txt",), checksum, role="keep")
    offer = Offer((Remote("net.zip", (f"{server.url}/net.zip",)), lists))
    fetch.fetch(replace(benchmark, offers=(offer,)), patience=QUICK)
    assert set(tree(own_root / "domain_net_126")) == {"real/zebra/1.jpg", "sketch/zebra/1.jpg"}
    assert [path for _, path, _ in server.asked] == ["list.txt", "net.zip"]


def test_every_source_is_dead(server: Server, own_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources, why each failed, where to get the file by hand, and the command for then."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(InputError) as found:
        fetch.fetch(at(server, "PACS.zip", hub="someone/pacs"), patience=QUICK)
    text = str(found.value)
    assert f"{server.url}/PACS.zip: HTTP 404 Not Found" in text
    assert "the Hugging Face hub (someone/pacs)" in text
    assert PACS.page in text
    assert "rcalign data prepare PACS --from FILE" in text
    assert not (own_root / "PACS").exists()


def test_published_addresses_are_addresses() -> None:
    for benchmark in facts.benchmarks().values():
        for offer in benchmark.offers:
            assert bool(offer.files) != bool(offer.hub)
            for remote in offer.files:
                assert remote.urls and all(url.startswith(("http://", "https://")) for url in remote.urls)
                assert remote.checksum is None or remote.checksum.startswith(("md5:", "sha256:"))


def test_mirror(server: Server, archive: bytes, own_root: Path, pictures: Path) -> None:
    server.files["mine/PACS.zip"] = File(archive)
    fetch.fetch(PACS, mirror=f"{server.url}/mine/", patience=QUICK)
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    with pytest.raises(InputError, match="is no address"):
        fetch.fetch(facts.get_benchmark("VLCS"), mirror="/nas/data")


def test_long_tailed(server: Server, archive: bytes, own_root: Path) -> None:
    server.files["PACS.zip"] = File(archive)
    split = b"env,label,path,split\nphoto,0,photo/dog/pic_001.jpg,train\n"
    remote = Remote("PACS.csv", (f"{server.url}/PACS.csv",), f"sha256:{hashlib.sha256(split).hexdigest()}")
    benchmark = replace(at(server, "PACS.zip"), split_file=remote)
    done = fetch.fetch(benchmark, long_tailed=True, patience=QUICK)
    assert "the published rule will make the split" in done["notes"][0]
    server.files["PACS.csv"] = File(split)
    fetch.fetch(benchmark, long_tailed=True, patience=QUICK)
    assert (own_root / "PACS/PACS.csv").read_bytes() == split


def test_a_split_file_of_other_names_is_not_put_in_the_way(server: Server, archive: bytes, own_root: Path) -> None:
    server.files["PACS.zip"] = File(archive)
    server.files["PACS.csv"] = File(b"env,label,path,split\nphoto,0,photo/dog/056_0001.jpg,train\n")
    remote = Remote("PACS.csv", (f"{server.url}/PACS.csv",))
    done = fetch.fetch(replace(at(server, "PACS.zip"), split_file=remote), long_tailed=True, patience=QUICK)
    assert "such as 'photo/dog/056_0001.jpg'" in done["notes"][0]
    assert not (own_root / "PACS/PACS.csv").exists()


def test_a_stand_in_is_in_the_way(server: Server, own_root: Path) -> None:
    sample.sample(PACS, own_root, each=1, size=8)
    with pytest.raises(InputError, match="drawn stand-in"):
        fetch.fetch(at(server, "PACS.zip"))
    assert not server.asked


def test_mnist(server: Server, own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By md5: drawn digits have another one, so the facts are set to theirs."""
    sample.sample_mnist("RotatedMNIST", tmp_path, each=2)
    remotes = []
    for file in sorted((tmp_path / "MNIST/raw").iterdir()):
        content = file.read_bytes()
        server.files[file.name] = File(content, cut=[500])
        md5 = f"md5:{hashlib.md5(content).hexdigest()}"
        remotes.append(Remote(file.name, (f"{server.url}/{file.name}",), md5))
    server.files["wrong/x"] = File(gzip.compress(b"no"))
    monkeypatch.setattr(fetch, "MNIST_OFFER", Offer((replace(remotes[0], urls=(f"{server.url}/wrong/x",)),)))
    with pytest.raises(InputError, match=r"(?s)its md5 is.*rcalign data prepare RotatedMNIST --from FOLDER"):
        fetch.fetch_mnist(patience=QUICK)
    monkeypatch.setattr(fetch, "MNIST_OFFER", Offer(tuple(remotes)))
    fetch.fetch_mnist(patience=QUICK)
    assert mnist.find_digits(own_root / "MNIST") is not None
    assert fetch.fetch_mnist()["notes"] == ["it is in place already"]


RUN = """
import sys
from dataclasses import replace
from rcalign.data.benchmarks import facts, fetch
offer = facts.Offer((facts.Remote("PACS.zip", (sys.argv[1],)),))
print(fetch.fetch(replace(facts.get_benchmark("PACS"), offers=(offer,)))["notes"])
"""


def test_two_at_once(server: Server, archive: bytes, pictures: Path, own_root: Path) -> None:
    server.files["PACS.zip"] = File(archive, pace=0.02)
    command = [sys.executable, "-c", RUN, f"{server.url}/PACS.zip"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate()[0].strip() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said == ["['its images are in place already']", "[]"]
    assert server.ranges("PACS.zip") == [None]
    assert tree(own_root / "PACS") == tree(pictures / "PACS")


# --- the hub -----------------------------------------------------------------------------------------------------


def test_hub(pictures: Path, own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the archive is gone, the hub's own client gets the parquet files."""
    pytest.importorskip("huggingface_hub", reason="the hub needs its own client")
    table = parquet_of(pictures / "PACS", tmp_path / "train-00000-of-00001.parquet", numbers=True).read_bytes()
    answer = hub({"data/train-00000-of-00001.parquet": table, "README.md": b"# PACS"}, "someone/pacs")
    with serving(answer=answer) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        done = fetch.fetch(at(server, "PACS.zip", hub="someone/pacs"), patience=QUICK)
        assert not any("README" in path and "resolve" in path for _, path, _ in server.asked)
    assert sum(done["images"].values()) == 56
    assert tree(own_root / "PACS") == tree(pictures / "PACS")
    (own_root / "PACS/.stand-in").write_text("")
    assert len(load("PACS")) == 56
