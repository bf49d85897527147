"""The cache: what decoding makes of odd files, and that it is whole whatever happens while it is built."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pictures import picture
from PIL import Image
from torchvision.transforms.functional import resize

from rcalign.data import cache, load, open_images
from rcalign.errors import InputError

RED, WHITE = (255, 0, 0), (255, 255, 255)


# --- one image -------------------------------------------------------------------------------------------------------


def test_a_plain_image_comes_back_and_resizes_as_torchvision_does(tmp_path):
    file = picture(tmp_path / "a.png", size=(40, 30))
    image = Image.open(file)
    assert (cache.decode(file, None) == np.asarray(image)).all()
    assert (cache.decode(file, 16) == np.asarray(resize(image, [16, 16]))).all()


def test_alpha_is_composited_on_white(tmp_path):
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[..., 0], rgba[:4, :, 3], rgba[4:, :, 3] = 255, 0, 51  # invisible red above, a fifth of red below
    Image.fromarray(rgba).save(tmp_path / "a.png")
    out = cache.decode(tmp_path / "a.png", None)
    assert (out[:4] == WHITE).all()
    assert (np.abs(out[4:].astype(int) - (255, 204, 204)) <= 1).all()


def test_transparent_palette_grey_and_colour_key(tmp_path):
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((0, 0), 1)
    palette.save(tmp_path / "p.png", transparency=0)
    out = cache.decode(tmp_path / "p.png", None)
    assert out[0, 0].tolist() == [0, 0, 255] and (out[1:] == WHITE).all()
    palette.save(tmp_path / "opaque.png")
    assert (cache.decode(tmp_path / "opaque.png", None)[1:] == RED).all()
    Image.new("LA", (4, 4), (10, 0)).save(tmp_path / "la.png")
    assert (cache.decode(tmp_path / "la.png", None) == WHITE).all()
    Image.new("RGB", (4, 4), RED).save(tmp_path / "key.png", transparency=RED)
    assert (cache.decode(tmp_path / "key.png", None) == WHITE).all()


def test_sixteen_bits_are_cut_to_eight(tmp_path):
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert cache.decode(tmp_path / "a.png", None)[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    Image.fromarray(values).save(tmp_path / "a.tiff")
    assert cache.decode(tmp_path / "a.tiff", None)[0, :, 1].tolist() == [0, 0, 1, 128, 255]


def test_floats_cmyk_bilevel(tmp_path):
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)).save(tmp_path / "f.tiff")
    assert cache.decode(tmp_path / "f.tiff", None)[0, :, 0].tolist() == [0, 128, 255]
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "c.jpg", quality=100)
    assert (np.abs(cache.decode(tmp_path / "c.jpg", None).astype(int) - RED) <= 3).all()
    Image.new("1", (4, 4), 1).save(tmp_path / "b.png")
    assert (cache.decode(tmp_path / "b.png", None) == WHITE).all()


def test_the_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (cache.decode(tmp_path / "a.gif", None) == RED).all()


def test_exif_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (32, 16), WHITE)
    image.paste(RED, (0, 0, 16, 16))  # left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise: left becomes top
    image.save(tmp_path / "a.jpg", exif=exif, quality=100)
    out = cache.decode(tmp_path / "a.jpg", None).astype(int)
    assert out.shape == (32, 16, 3)
    assert np.abs(out[:14] - RED).max() < 8 and np.abs(out[18:] - WHITE).max() < 8


def test_a_bomb_is_bad_not_fatal(tmp_path, monkeypatch):
    file = picture(tmp_path / "a.png", size=(64, 64))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(cache.BadImage, match="more pixels"):
        cache.decode(file, 8)


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_shards(monkeypatch):
    """Ten images of 8 x 8 to a shard."""
    monkeypatch.setattr(cache, "SHARD_BYTES", 10 * 8 * 8 * 3)


def test_rows_across_shards(make_folder, small_shards):
    data = load(make_folder(("a", "b", "c"), ("x", "y"), each=4))  # 24 rows, three shards
    store = open_images(data, 8)
    rows = np.array([23, 0, 9, 10, 10, 19, 20])
    out = store.take(rows)
    assert (len(store), tuple(out.shape), str(out.dtype)) == (24, (7, 8, 8, 3), "torch.uint8")
    for got, row in zip(out.numpy(), rows, strict=True):
        assert (got == cache.decode(data.content.paths[row], 8)).all()
    with pytest.raises(IndexError):
        store.take([24])
    with pytest.raises(IndexError):
        store.take([-1])


def test_it_is_built_once(make_folder, own_cache):
    data = load(make_folder())
    open_images(data, 8)
    before = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.uint8")}
    open_images(load(data.content.paths[0].parents[2]), 8)
    assert before == {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.uint8")} and before
    open_images(data, 9)
    assert len(list(own_cache.rglob("*.uint8"))) == 2


def test_a_folder_and_a_manifest_of_the_same_files_share_it(make_folder, own_cache, tmp_path, capsys):
    folder = load(make_folder())
    rows = [f"{path},other,{path.parents[1].name}" for path in folder.content.paths]
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists" / "all.csv"
    file.write_text("\n".join(["path,label,domain", *rows]) + "\n")
    backwards = tmp_path / "lists" / "backwards.csv"
    backwards.write_text("\n".join(["path,label,domain", *rows[::-1]]) + "\n")
    assert load(file).fingerprint != folder.fingerprint  # other labels
    for _ in range(2):
        first = open_images(folder, 8).take(np.arange(len(folder)))
        assert (open_images(load(file), 8).take(np.arange(len(folder))) == first).all()
        assert (open_images(load(backwards), 8).take(np.arange(len(folder))) == first.flip(0)).all()
    assert "changed" not in capsys.readouterr().err
    assert len(list(own_cache.rglob("*.uint8"))) == 2  # one for each order
    assert open_images(folder.select([3, 0]), 8).take([0, 1])[1].equal(first[0])


def test_reading_gives_pages_back(make_folder, monkeypatch):
    data = load(make_folder())
    store = open_images(data, 8)
    first = store.take(np.arange(12)).numpy().copy()
    monkeypatch.setattr(cache, "MAPPED_BYTES", 100)
    for _ in range(3):
        assert (store.take(np.arange(12)).numpy() == first).all()


def test_changed_files_are_noticed_and_decoded_again(make_folder, own_cache, capsys):
    root = make_folder()
    old = open_images(load(root), 8).take([0])
    time.sleep(0.01)
    picture(root / "a" / "x" / "0.png", seed=1234)
    new = open_images(load(root), 8).take([0])
    assert (old != new).any() and (new[0].numpy() == cache.decode(root / "a" / "x" / "0.png", 8)).all()
    assert "changed" in capsys.readouterr().err
    assert len(list(own_cache.rglob("*.uint8"))) == 1  # the old one is gone


def test_a_shard_cut_short_is_built_again(make_folder, own_cache):
    data = load(make_folder())
    whole = open_images(data, 8).take(np.arange(12))
    (shard,) = own_cache.rglob("*.uint8")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert (open_images(data, 8).take(np.arange(12)) == whole).all()


def test_no_room_is_said_before_it_starts(make_folder, monkeypatch, own_cache):
    data = load(make_folder())
    usage = shutil.disk_usage(own_cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"GiB free.*RCALIGN_CACHE"):
        open_images(data, 64)
    assert not list(own_cache.rglob("*.uint8"))


def test_a_full_disk_is_one_sentence(make_folder):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    data = load(make_folder())
    folder = Path(os.environ["RCALIGN_CACHE"]) / "images"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_growing", lambda file: Path("/dev/full"))
        with pytest.raises(InputError, match="No space left"):
            open_images(data, 8)
    assert not list(folder.rglob("*.uint8"))
    assert len(open_images(data, 8)) == 12


def test_a_cache_folder_that_cannot_be_made(make_folder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RCALIGN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match="RCALIGN_CACHE"):
        load(make_folder())


def test_arrays_have_no_images(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=[0, 1], domain=[0, 1])
    with pytest.raises(InputError, match="has no images"):
        open_images(load(tmp_path / "a.npz"), 8)


# --- other processes -------------------------------------------------------------------------------------------------


def build_in_child(root: Path, log: Path, gate: Path | None = None) -> multiprocessing.Process:
    """Another process that builds the cache, slowly, or not before the gate exists; ``log``: its stderr and its sum."""

    def run() -> None:
        plain = cache.decode

        def slow(path, size):
            time.sleep(0.02)
            while gate is not None and not gate.exists():
                time.sleep(0.01)
            return plain(path, size)

        with open(log, "w", buffering=1) as sys.stderr:
            cache.decode = slow
            cache._cores = lambda: 1
            store = open_images(load(root), 8)
            print("sum", int(store.take(np.arange(len(store))).numpy().sum()), file=sys.stderr)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def kill(process: multiprocessing.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_finished_shards_survive_a_kill(make_folder, own_cache, small_shards, tmp_path):
    root = make_folder(("a", "b", "c", "d"), ("x", "y"), each=5)  # 40 rows, four shards
    process = build_in_child(root, tmp_path / "log")
    wait_for(lambda: len(list(own_cache.rglob("*.partial/*.uint8"))) >= 2)
    kill(process)
    assert not [path for path in (own_cache / "images").iterdir() if path.is_dir() and path.suffix != ".partial"]
    kept = {path.name: path.stat().st_ino for path in own_cache.rglob("*.partial/*.uint8")}
    data = load(root)
    store = open_images(data, 8)
    now = {path.name: path.stat().st_ino for path in own_cache.rglob("*.uint8")}
    assert len(now) == 4 and len(kept) >= 2 and kept.items() <= now.items()
    for row in range(40):
        assert (store.take([row])[0].numpy() == cache.decode(data.content.paths[row], 8)).all()


def test_a_bad_file_is_not_forgotten_by_a_kill(make_folder, own_cache, small_shards, tmp_path):
    root = make_folder(("a", "b", "c", "d"), ("x", "y"), each=5)
    bad = picture(root / "a" / "x" / "0.png", 7, (64, 64))
    bad.write_bytes(bad.read_bytes()[:-60])
    process = build_in_child(root, tmp_path / "log")
    wait_for(lambda: len(list(own_cache.rglob("*.partial/*.uint8"))) >= 1)
    kill(process)
    with pytest.raises(InputError, match="truncated"):
        open_images(load(root), 8)


def test_a_second_process_waits_and_says_so(make_folder, own_cache, small_shards, tmp_path):
    root = make_folder(("a", "b", "c", "d"), ("x", "y"), each=5)
    logs = tmp_path / "first", tmp_path / "second"
    gate = tmp_path / "gate"
    first = build_in_child(root, logs[0], gate)
    wait_for(lambda: list(own_cache.rglob("*.growing")))
    second = build_in_child(root, logs[1], gate)
    wait_for(lambda: logs[1].exists() and "waiting" in logs[1].read_text())
    gate.touch()
    first.join(60)
    second.join(60)
    assert first.exitcode == second.exitcode == 0
    texts = [log.read_text() for log in logs]
    assert "waiting" not in texts[0]
    assert texts[0].split("sum")[1] == texts[1].split("sum")[1]
    assert len(list(own_cache.rglob("*.uint8"))) == 4


def test_the_one_that_waits_takes_over_from_a_killed_one(make_folder, own_cache, small_shards, tmp_path):
    root = make_folder(("a", "b", "c", "d"), ("x", "y"), each=5)
    first = build_in_child(root, tmp_path / "first", tmp_path / "never")
    wait_for(lambda: list(own_cache.rglob("*.growing")))
    second = build_in_child(root, tmp_path / "second")
    wait_for(lambda: (tmp_path / "second").exists() and "waiting" in (tmp_path / "second").read_text())
    kill(first)
    second.join(60)
    assert second.exitcode == 0 and len(list(own_cache.rglob("*.uint8"))) == 4


# --- kept as JPEG --------------------------------------------------------------------------------------------------


def photographs(root, count=12):
    """Smooth shapes with a little noise, as in photographs."""
    rng = np.random.default_rng(0)
    for k in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            (80, 60), Image.Resampling.BICUBIC
        )
        fine = np.asarray(coarse) + rng.normal(0, 2, (60, 80, 3))
        file = root / "ab"[k % 2] / "thing" / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(fine.clip(0, 255).astype(np.uint8)).save(file)
    return root


def bytes_below(folder, *suffixes):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in suffixes)


def test_jpeg_is_small_near_and_in_the_same_order(tmp_path, own_cache, monkeypatch):
    pytest.importorskip("simplejpeg")
    data = load(photographs(tmp_path / "photos"))
    raw = open_images(data, 64).take(np.arange(12)).int()
    monkeypatch.setenv("RCALIGN_CACHE_FORM", "jpeg")
    monkeypatch.setattr(cache, "SHARD_BYTES", 5 * 64 * 64 * 3)  # three shards
    packed = open_images(data, 64)
    assert packed.form == "jpeg" and len(packed) == 12
    some = [11, 0, 5, 5, 4]
    near = packed.take(some).int()
    assert (near - raw[some]).abs().float().mean() < 3
    assert [(near[i] - raw).abs().float().mean((1, 2, 3)).argmin().item() for i in range(5)] == some
    assert bytes_below(own_cache, ".jpeg") < bytes_below(own_cache, ".uint8") / 5  # 600 bytes of each are its header
    with pytest.raises(IndexError):
        packed.take([12])


def test_the_form_is_chosen_by_the_room_and_said(tmp_path, own_cache, monkeypatch, capsys):
    pytest.importorskip("simplejpeg")
    data = load(photographs(tmp_path / "photos"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage._replace(free=200_000))
    assert open_images(data, 64).form == "jpeg"  # raw would be 147 kB
    said = capsys.readouterr().err
    assert "12 images at 64 x 64" in said and "RCALIGN_CACHE_FORM=raw" in said
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    assert open_images(data, 64).form == "jpeg"  # it is there
    assert capsys.readouterr().err == ""
    assert open_images(data, 32).form == "raw"  # there is room
    monkeypatch.setenv("RCALIGN_CACHE_FORM", "raw")
    assert open_images(data, 64).form == "raw"  # as asked, and the other one stays
    monkeypatch.setenv("RCALIGN_CACHE_FORM", "jpeg")
    before = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.jpeg")}
    open_images(data, 64)
    assert before == {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.jpeg")}
    monkeypatch.setenv("RCALIGN_CACHE_FORM", "png")
    with pytest.raises(InputError, match="raw or jpeg"):
        open_images(data, 64)


@pytest.mark.parametrize("damage", ["data", "index", "no index"])
def test_a_damaged_jpeg_shard_is_built_again(tmp_path, own_cache, monkeypatch, damage):
    pytest.importorskip("simplejpeg")
    monkeypatch.setenv("RCALIGN_CACHE_FORM", "jpeg")
    data = load(photographs(tmp_path / "photos"))
    first = open_images(data, 32).take(np.arange(12))
    shard = next(own_cache.rglob("*.jpeg"))
    index = shard.with_suffix(".npy")
    if damage == "data":
        shard.write_bytes(shard.read_bytes()[:-5])
    elif damage == "index":
        index.write_bytes(index.read_bytes()[:-8])
    else:
        index.unlink()
    assert (open_images(data, 32).take(np.arange(12)) == first).all()
