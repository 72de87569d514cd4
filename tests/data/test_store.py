"""Images decoded once, and where they are kept."""

import errno
import logging
import multiprocessing
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image

from medic.data import BENCHMARKS, Storage
from medic.data.benchmarks.own import read_folder, read_lists
from medic.data.check import check
from medic.data.decode import decode, read_file
from medic.data.images import Mapped, Streamed
from medic.data.store import find_index, open_store
from medic.errors import DiskFullError, MedicError
from tests.data.pictures import encoded, picture, tiff


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.INFO, logger="medic.data.store")
    return caplog


def open_folder(root, where="ram", on_bad="error", unique=False):
    return open_store(replace(read_folder(root), unique=unique), Storage(16, where, on_bad=on_bad))


class TestStore:
    @pytest.mark.parametrize("where", ["ram", "map", "stream"])
    def test_every_place_gives_the_same_pixels(self, root, where, logged):
        listing = read_folder(root)
        images, index = open_folder(root, where)
        positions = torch.tensor([5, 0, 5, 11])
        gathered = images.gather(positions, torch.device("cpu"))
        expected = np.stack([decode(read_file(listing.files[i]), 16, "x")[0] for i in positions])
        assert np.array_equal(gathered.numpy(), expected)
        assert "12 images at 16 px" in logged.messages[-1]
        assert index.hash == open_folder(root)[1].hash

    def test_decoded_once(self, root, logged):
        first = open_folder(root)[1]
        open_folder(root)
        assert sum("decoding" in line for line in logged.messages) == 1
        picture(99).save(root / "二番" / "b" / "1.png")
        assert open_folder(root)[1].hash != first.hash
        assert sum("decoding" in line for line in logged.messages) == 2

    @pytest.mark.parametrize("where", ["ram", "map", "stream"])
    def test_bad_images(self, root, where, logged):
        (root / "二番" / "b" / "bad.png").write_bytes(b"")
        (root / "二番" / "b" / "0.png").write_bytes(b"text")
        with pytest.raises(
            MedicError, match=r"0\.png is not in a supported image format.*and 1 more .*--on-bad-image skip"
        ):
            open_folder(root, where)
        images, index = open_folder(root, where, on_bad="skip")
        assert len(index.kept) == 12
        assert any("2 images skipped" in line for line in logged.messages)
        listing = read_folder(root)
        last = images.gather(torch.tensor([11]), torch.device("cpu"))[0]
        assert np.array_equal(last.numpy(), decode(read_file(listing.files[index.kept[11]]), 16, "x")[0])

    def test_duplicates_of_a_domain_count_once(self, root):
        data = (root / "二番" / "b" / "1.png").read_bytes()
        (root / "二番" / "b" / "again.png").write_bytes(data)
        (root / "fotos à la carte" / "b" / "again.png").write_bytes(data)
        assert len(open_folder(root)[1].kept) == 14
        assert len(open_folder(root, unique=True)[1].kept) == 13

    @pytest.mark.parametrize(("on_bad", "unique"), [("error", False), ("error", True), ("skip", False), ("skip", True)])
    def test_a_look_finds_the_same_and_keeps_nothing(self, root, tmp_path, monkeypatch, on_bad, unique):
        (root / "二番" / "b" / "again.png").write_bytes((root / "二番" / "b" / "1.png").read_bytes())
        if on_bad == "skip":
            (root / "二番" / "b" / "bad.png").write_bytes(b"text")
        listing = replace(read_folder(root), unique=unique)
        with monkeypatch.context() as patch:
            if on_bad == "error":
                patch.setattr("medic.data.store.decode", None)
            preview = find_index(listing, Storage(16, on_bad=on_bad))
        assert not (tmp_path / "cache").exists()
        _, index = open_folder(root, on_bad=on_bad, unique=unique)
        open_folder(root, on_bad=on_bad, unique=not unique)
        assert (index.kept, index.hash) == (preview.kept, preview.hash)
        monkeypatch.setattr("medic.data.store.read_file", None)
        again = find_index(listing, Storage(24, on_bad=on_bad))
        assert (again.kept, again.hash) == (preview.kept, preview.hash)
        if on_bad == "skip":
            with pytest.raises(MedicError, match=r"bad\.png is not in a supported image format"):
                find_index(listing, Storage(16))

    def test_a_look_at_files_that_are_not_there(self, root, tmp_path):
        (root / "二番" / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        with pytest.raises(MedicError, match=r"gone\.png cannot be read"):
            find_index(read_folder(root), Storage(16))

    @pytest.mark.parametrize("where", ["ram", "map"])
    def test_damage_on_disk_is_noticed(self, root, where, tmp_path):
        open_folder(root)
        (path,) = (tmp_path / "cache" / "stores").glob("*.bin")
        data = bytearray(path.read_bytes())
        data[1000] ^= 255
        path.write_bytes(data)
        with pytest.raises(MedicError, match=r"image store .*\.bin is damaged: delete it"):
            open_folder(root, where)[0].gather(torch.arange(12), torch.device("cpu"))

    def test_frames_are_those_of_the_files(self, root):
        picture(size=(60, 20)).save(root / "二番" / "b" / "1.png")
        for where in ("ram", "stream"):
            dataset = read_folder(root).load(Storage(16, where))
            assert dataset.frames[dataset.paths.index("二番/b/1.png")].tolist() == [20, 60]
            assert dataset.frames[0].tolist() == [30, 40]

    def test_two_processes_at_once(self, root):
        """Both get whole images, and only one decodes them."""

        def child(pipe):
            logging.getLogger("medic.data.store").info = lambda *line: pipe.send(line[0])
            pipe.send(int(open_folder(root)[0].pixels.long().sum()))

        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe() for _ in range(2)]
        both = [fork.Process(target=child, args=(pipe,)) for _, pipe in pipes]
        for process in both:
            process.start()
        for process in both:
            process.join()
        said = [[here.recv() for _ in iter(here.poll, False)] for here, _ in pipes]
        assert sorted(len(lines) for lines in said) == [2, 3]
        assert said[0][-1] == said[1][-1] > 0

    def test_a_full_disk_is_an_error_and_leaves_nothing(self, root, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("medic.data.store.make_index", full)
        with pytest.raises(DiskFullError, match=r"(?i)disk full.*cache/stores"):
            open_folder(root)
        assert not list((tmp_path / "cache" / "stores").glob(".*.tmp"))
        assert not list((tmp_path / "cache" / "stores").glob("*.bin"))

    @pytest.mark.parametrize("where", ["ram", "stream"])
    def test_files_that_are_not_there_are_bad_images(self, root, where, tmp_path):
        (root / "二番" / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        (root / "二番" / "b" / "circle.png").symlink_to(root / "二番" / "b" / "circle.png")
        with pytest.raises(MedicError, match=r"circle\.png cannot be read: Too many levels.*and 1 more"):
            open_folder(root, where)
        assert len(open_folder(root, where, on_bad="skip")[1].kept) == 12

    def test_a_list_that_names_missing_files(self, root, logged):
        lines = [f"{file.relative_to(root)} 1" for file in sorted((root / "二番").rglob("*.png"))]
        (root / "二番.txt").write_text("\n".join([*lines, "gone/one.png 2", "gone/two.png 2"]))
        with pytest.raises(MedicError, match=r"one\.png cannot be read: No such file or directory, and 1 more"):
            read_lists(root).load(Storage(16))
        assert len(read_lists(root).load(Storage(16, on_bad="skip")).paths) == len(lines)
        assert any("2 images skipped" in line for line in logged.messages)

    @pytest.mark.parametrize("where", ["ram", "stream"])
    def test_nothing_can_be_read(self, root, where):
        for file in root.rglob("*.*"):
            file.write_bytes(b"")
        with pytest.raises(MedicError, match="none of the 12 images in folder can be read"):
            open_folder(root, where, on_bad="skip")

    def test_the_same_names_elsewhere_are_other_images(self, root, tmp_path):
        _, first = open_folder(root)
        shutil.copytree(root, tmp_path / "copy")
        changed = tmp_path / "copy" / "二番" / "b" / "1.png"
        status, size = changed.stat(), changed.stat().st_size
        changed.write_bytes(encoded(picture(77), "PNG").ljust(size, b"\0")[:size])
        os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert open_folder(tmp_path / "copy", on_bad="skip")[1].hash != first.hash

    def test_a_cache_that_cannot_be_written(self, root, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(MedicError, match="cannot be written: Not a directory"):
            open_folder(root)

    def test_what_a_killed_process_left_is_removed(self, root, tmp_path):
        """Its own: another store may be in the making on another machine, which sees the same folder."""
        folder = tmp_path / "cache" / "stores"
        open_folder(root)
        (store,) = folder.glob("*.bin")
        store.unlink()
        for name in (store.stem, "abc-64"):
            (folder / f".{name}.bin.999999999.tmp").touch()
        open_folder(root)
        assert store.exists()
        assert [path.name for path in folder.glob(".*.tmp")] == [".abc-64.bin.999999999.tmp"]

    def test_the_same_store_from_another_working_directory(self, root, tmp_path, monkeypatch):
        open_folder(root)
        monkeypatch.chdir(tmp_path)
        open_folder(root)
        assert len(list((tmp_path / "cache" / "stores").glob("*.bin"))) == 1

    def test_file_names_that_are_not_utf8(self, root):
        (root / "二番" / "b" / "1.png").rename(os.fsdecode(os.fsencode(root / "二番" / "b") + b"/\xff\xfe.png"))
        assert len(open_folder(root)[1].kept) == 12

    def test_an_image_replaced_by_one_of_the_same_size_and_time(self, root, tmp_path):
        _, first = open_folder(root)
        for replace_file in (lambda new, old: old.write_bytes(new.read_bytes()), os.replace):
            old, new = root / "二番" / "b" / "1.png", tmp_path / "new.png"
            status = old.stat()
            data = bytearray(old.read_bytes())
            data[-1] ^= 1  # in the checksum of the last chunk, which is not decoded
            new.write_bytes(data)
            replace_file(new, old)
            os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert (old.stat().st_size, old.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
            _, index = open_folder(root, on_bad="skip")
            assert index.hash != first.hash
            first = index

    def test_a_check_finds_the_bad_images_that_stop_a_run(self, root):
        folder = root / "二番" / "b"
        os.mkfifo(folder / "pipe.png")
        (folder / "zero.png").symlink_to("/dev/zero")
        (folder / "text.png").write_bytes(b"text")
        (folder / "float.tif").write_bytes(encoded(Image.new("F", (8, 8), 200.0), "TIFF"))
        (folder / "large.tif").write_bytes(tiff(2**15, 2**15, 16, b""))
        bad = check(BENCHMARKS["folder"], root).bad
        assert [line.split()[0].rpartition("/")[2] for line in bad] == [
            "float.tif", "large.tif", "pipe.png", "text.png", "zero.png",
        ]  # fmt: skip
        assert open_folder(root, on_bad="skip")[1].bad == tuple(bad)
        with pytest.raises(MedicError, match=r"float\.tif .*and 4 more.*--on-bad-image skip"):
            open_folder(root)


class TestMapped:
    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_pages_are_given_back(self, tmp_path):
        """Reading a map of 32 MiB with a limit of 1 MiB leaves about that in memory."""
        pixels = np.random.default_rng(0).integers(0, 256, (1024, 2, 128, 128), dtype=np.uint8)
        pixels.tofile(tmp_path / "pixels")
        checksums = np.array([crc32(row.tobytes()) for row in pixels], np.uint32)

        def mapped_pages(limit: int) -> int:
            mapping = np.memmap(tmp_path / "pixels", np.uint8, "r", shape=pixels.shape)
            images = Mapped(mapping, checksums, limit)
            for part in torch.arange(1024).split(16):
                assert np.array_equal(images.gather(part, torch.device("cpu")).numpy(), pixels[part])
            here = False
            for line in Path("/proc/self/smaps").read_text().splitlines():
                here = str(tmp_path / "pixels") in line if "-" in line.split()[0] else here
                if here and line.startswith("Rss:"):
                    return int(line.split()[1])  # KiB
            raise AssertionError("the file is not mapped")

        assert mapped_pages(2**20) <= 2**12  # the system maps some pages around those that are touched
        assert mapped_pages(2**30) == 2**15


class TestStreamed:
    def images(self) -> tuple[Streamed, list[int]]:
        decoded: list[int] = []

        def decode_row(row: int) -> np.ndarray:
            decoded.append(row)
            return np.full((3, 2, 2), row, np.uint8)

        return Streamed(decode_row, (100, 3, 2, 2)), decoded

    def test_what_is_expected_is_decoded_once(self):
        images, decoded = self.images()
        images.expect(torch.tensor([3, 1, 2]))
        images.expect(torch.tensor([2, 7]))
        gathered = images.gather(torch.tensor([1, 2, 1, 9]), torch.device("cpu"))
        assert gathered[:, 0, 0, 0].tolist() == [1, 2, 1, 9]
        assert sorted(decoded) == [1, 2, 3, 7, 9]
        images.gather(torch.tensor([1]), torch.device("cpu"))  # nothing is kept
        assert decoded.count(1) == 2

    def test_a_file_that_went_bad_is_named(self, root):
        images, _ = open_folder(root, "stream")
        (root / "二番" / "b" / "1.png").write_bytes(b"")
        with pytest.raises(MedicError, match=r"1\.png is empty"):
            images.gather(torch.arange(12), torch.device("cpu"))
