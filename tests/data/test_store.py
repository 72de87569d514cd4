"""Images decoded once, and where they are kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch

from medic.data.decode import decode
from medic.data.images import Mapped, Streamed
from medic.data.readers import read_folder, read_lists
from medic.data.store import look, open_store, read_file
from medic.errors import DiskFullError, MedicError
from tests.data.pictures import encoded, picture


class TestStore:
    def open(self, root, where="ram", on_bad="error", unique=False):
        said = []
        store = open_store(read_folder(root), 16, where, torch.device("cpu"), on_bad, said.append, unique)
        return store, said

    @pytest.mark.parametrize("where", ["ram", "map", "stream"])
    def test_every_place_gives_the_same_pixels(self, root, where):
        listing = read_folder(root)
        store, said = self.open(root, where)
        positions = torch.tensor([5, 0, 5, 11])
        gathered = store.images.gather(positions, torch.device("cpu"))
        expected = np.stack([decode(read_file(listing.files[i]), 16, "x").pixels for i in positions])
        assert np.array_equal(gathered.numpy(), expected)
        assert "12 images of 16 px" in said[-1]
        assert store.hash == self.open(root)[0].hash

    def test_decoded_once(self, root):
        assert any("decoding" in line for line in self.open(root)[1])
        first, again = self.open(root)
        assert not any("decoding" in line for line in again)
        picture(99).save(root / "二番" / "b" / "1.png")
        changed, said = self.open(root)
        assert any("decoding" in line for line in said)
        assert changed.hash != first.hash

    @pytest.mark.parametrize("where", ["ram", "map", "stream"])
    def test_bad_images(self, root, where):
        (root / "二番" / "b" / "bad.png").write_bytes(b"")
        (root / "二番" / "b" / "0.png").write_bytes(b"text")
        with pytest.raises(MedicError, match=r"0\.png is not an image, and 1 more cannot be read; --on-bad-image skip"):
            self.open(root, where)
        store, said = self.open(root, where, on_bad="skip")
        assert len(store.kept) == 12
        assert any("2 images left out" in line for line in said)
        listing = read_folder(root)
        last = store.images.gather(torch.tensor([11]), torch.device("cpu"))[0]
        assert np.array_equal(last.numpy(), decode(read_file(listing.files[store.kept[11]]), 16, "x").pixels)

    def test_duplicates_of_a_domain_count_once(self, root):
        data = (root / "二番" / "b" / "1.png").read_bytes()
        (root / "二番" / "b" / "again.png").write_bytes(data)
        (root / "fotos à la carte" / "b" / "again.png").write_bytes(data)
        assert len(self.open(root)[0].kept) == 14
        assert len(self.open(root, unique=True)[0].kept) == 13

    @pytest.mark.parametrize(("on_bad", "unique"), [("error", False), ("error", True), ("skip", False), ("skip", True)])
    def test_a_look_finds_the_same_and_keeps_nothing(self, root, tmp_path, monkeypatch, on_bad, unique):
        (root / "二番" / "b" / "again.png").write_bytes((root / "二番" / "b" / "1.png").read_bytes())
        if on_bad == "skip":
            (root / "二番" / "b" / "bad.png").write_bytes(b"text")
        listing = read_folder(root)
        with monkeypatch.context() as patch:
            if on_bad == "error":
                patch.setattr("medic.data.store.decode", None)
            known = look(listing, 16, on_bad, str, unique)
        assert not (tmp_path / "cache").exists()
        store, _ = self.open(root, on_bad=on_bad, unique=unique)
        self.open(root, on_bad=on_bad, unique=not unique)
        assert (store.kept, store.hash) == known
        monkeypatch.setattr("medic.data.store.read_file", None)
        assert look(listing, 24, on_bad, str, unique) == known
        if on_bad == "skip":
            with pytest.raises(MedicError, match=r"bad\.png is not an image"):
                look(listing, 16, "error", str, unique)

    def test_a_look_at_files_that_are_not_there(self, root, tmp_path):
        (root / "二番" / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        with pytest.raises(MedicError, match=r"gone\.png cannot be read"):
            look(read_folder(root), 16, "error", str)

    @pytest.mark.parametrize("where", ["ram", "map"])
    def test_damage_on_disk_is_noticed(self, root, where, tmp_path):
        self.open(root)
        (path,) = (tmp_path / "cache" / "stores").glob("*.bin")
        data = bytearray(path.read_bytes())
        data[1000] ^= 255
        path.write_bytes(data)
        with pytest.raises(MedicError, match=r"the store .*\.bin is damaged: delete it"):
            self.open(root, where)[0].images.gather(torch.arange(12), torch.device("cpu"))

    def test_frames_are_those_of_the_files(self, root):
        picture(size=(60, 20)).save(root / "二番" / "b" / "1.png")
        for where in ("ram", "stream"):
            store, _ = self.open(root, where)
            row = [read_folder(root).names[row] for row in store.kept].index("二番/b/1.png")
            assert store.frames[row].tolist() == [20, 60]
            assert store.frames[0].tolist() == [30, 40]

    def test_two_processes_at_once(self, root):
        """Both get whole images, and only one decodes them."""
        code = (
            "import sys, torch; from pathlib import Path; from medic.data.readers import read_folder\n"
            "from medic.data.store import look, open_store, read_file\n"
            "store = open_store(read_folder(Path(sys.argv[1])), 16, 'ram', torch.device('cpu'), 'error', print)\n"
            "print(int(store.images.pixels.long().sum()))"
        )
        command = [sys.executable, "-c", code, str(root)]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [process.communicate()[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert sum("decoding 12 images" in text for text in said) == 1
        assert said[0].split()[-1] == said[1].split()[-1]

    def test_a_full_disk_is_an_error_and_leaves_nothing(self, root, tmp_path, monkeypatch):
        monkeypatch.setattr("os.pwrite", lambda *_: 0)
        with pytest.raises(DiskFullError, match="stores is full: make room"):
            self.open(root)
        assert not list((tmp_path / "cache" / "stores").glob("*.tmp"))
        assert not list((tmp_path / "cache" / "stores").glob("*.bin"))

    @pytest.mark.parametrize("where", ["ram", "stream"])
    def test_files_that_are_not_there_are_bad_images(self, root, where, tmp_path):
        (root / "二番" / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        (root / "二番" / "b" / "circle.png").symlink_to(root / "二番" / "b" / "circle.png")
        with pytest.raises(MedicError, match=r"circle\.png cannot be read: Too many levels.*and 1 more"):
            self.open(root, where)
        assert len(self.open(root, where, on_bad="skip")[0].kept) == 12

    def test_a_list_that_names_missing_files(self, root):
        lines = [f"{file.relative_to(root)} 1" for file in sorted((root / "二番").rglob("*.png"))]
        (root / "二番.txt").write_text("\n".join([*lines, "gone/one.png 2", "gone/two.png 2"]))
        with pytest.raises(MedicError, match=r"one\.png cannot be read: No such file or directory, and 1 more"):
            open_store(read_lists(root), 16, "ram", torch.device("cpu"), "error", lambda line: None)
        said = []
        store = open_store(read_lists(root), 16, "ram", torch.device("cpu"), "skip", said.append)
        assert len(store.kept) == len(lines)
        assert any("2 images left out" in line for line in said)

    @pytest.mark.parametrize("where", ["ram", "stream"])
    def test_nothing_can_be_read(self, root, where):
        for file in root.rglob("*.*"):
            file.write_bytes(b"")
        with pytest.raises(MedicError, match="none of the 12 images of folder can be read"):
            self.open(root, where, on_bad="skip")

    def test_the_same_names_elsewhere_are_other_images(self, root, tmp_path):
        first, _ = self.open(root)
        shutil.copytree(root, tmp_path / "copy")
        changed = tmp_path / "copy" / "二番" / "b" / "1.png"
        status, size = changed.stat(), changed.stat().st_size
        changed.write_bytes(encoded(picture(77), "PNG").ljust(size, b"\0")[:size])
        os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert self.open(tmp_path / "copy", on_bad="skip")[0].hash != first.hash

    def test_a_cache_that_cannot_be_written(self, root, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(MedicError, match="cannot be written: Not a directory"):
            self.open(root)

    def test_what_a_killed_process_left_is_removed(self, root, tmp_path):
        """Its own: another store may be in the making on another machine, which sees the same folder."""
        folder = tmp_path / "cache" / "stores"
        self.open(root)
        (store,) = folder.glob("*.bin")
        store.unlink()
        for name in (store.stem, "abc-64"):
            (folder / f"{name}.999999999.tmp").touch()
        self.open(root)
        assert store.exists()
        assert [path.name for path in folder.glob("*.tmp")] == ["abc-64.999999999.tmp"]

    def test_the_same_store_from_another_working_directory(self, root, tmp_path, monkeypatch):
        self.open(root)
        monkeypatch.chdir(tmp_path)
        self.open(root)
        assert len(list((tmp_path / "cache" / "stores").glob("*.bin"))) == 1

    def test_names_that_are_not_utf8(self, root):
        (root / "二番").rename(os.fsdecode(os.fsencode(root) + b"/\xff\xfe"))
        assert len(self.open(root)[0].kept) == 12


class TestMapped:
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

        return Streamed(decode_row, (100, 3, 2, 2), workers=2), decoded

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
        store = open_store(read_folder(root), 16, "stream", torch.device("cpu"), "error", lambda line: None)
        (root / "二番" / "b" / "1.png").write_bytes(b"")
        with pytest.raises(MedicError, match=r"1\.png is empty"):
            store.images.gather(torch.arange(12), torch.device("cpu"))
