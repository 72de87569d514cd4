"""Damaged and hostile archives for `medic data fetch --archive`."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import random
import shutil
import tarfile
import warnings
import zipfile
from pathlib import Path

from benchmarks.fuzz.damage import damage, replace_value
from benchmarks.fuzz.harness import Door, Fault, command

PACS = tuple(f"PACS/{domain}/dog/1.png" for domain in ("art_painting", "cartoon", "photo", "sketch"))
PICTURES = "eccv_18_all_images_sm"
COCO = {
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
    "images": [{"id": f"i{place}", "file_name": f"i{place}.jpg", "location": place} for place in (38, 43, 46, 100)],
    "annotations": [{"image_id": f"i{place}", "category_id": 1} for place in (38, 43, 46, 100)],
}
NAMES = (
    "../evil", "../../../../evil", "/tmp/evil", "PACS/../../evil", "..", ".", "", "/", "C:\\evil", "..\\..\\evil",
    "\\\\host\\share\\evil", "PACS/photo/dog/\0evil", "PACS/photo", "PACS", "PACS/photo/dog/1.png/x", "x" * 300,
    "x/" * 2000 + "x", "é\udcff", "con", "~/evil", "PACS/link/evil", "PACS/photo/dog/1.png",
)  # fmt: skip
LINKS = (
    "..",
    "../../..",
    "/",
    "/etc/passwd",
    "/dev/zero",
    ".",
    "PACS/link",
    "link",
    "1.png",
    "photo/dog/1.png",
    "../" * 40 + "etc/passwd",
)
TYPES = (
    tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
    tarfile.DIRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z",
)  # fmt: skip
PACKERS = (bytes, gzip.compress, bz2.compress, lzma.compress, lambda data: lzma.compress(data, lzma.FORMAT_ALONE))


def make_tar(files: dict[str, bytes], draw: random.Random, hostile: bool) -> bytes:
    """Return a tar file, if `hostile` with members that should not be there."""
    buffer = io.BytesIO()
    kind = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=kind, errors="surrogateescape") as archive:
        members = [(tarfile.TarInfo(name), content) for name, content in files.items()]
        for _ in range(draw.randint(1, 3) if hostile else 0):
            info, content = tarfile.TarInfo(draw.choice(NAMES)), b"evil"
            info.type, info.linkname, info.mode = (
                draw.choice(TYPES),
                draw.choice(LINKS),
                draw.choice((0o644, 0o6777, 0)),
            )
            info.uid, info.mtime = draw.choice((0, 1000, 2**40)), draw.choice((0, 1e9, 2**60))
            members.insert(draw.randrange(len(members) + 1), (info, content))
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            with contextlib.suppress(ValueError, UnicodeError):  # this format has no such member
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(files: dict[str, bytes], draw: random.Random, hostile: bool) -> bytes:
    """Return a zip file, if `hostile` with members that should not be there."""
    buffer, bomb = io.BytesIO(), draw.random() < 0.01
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", draw.choice((0, 8, 12, 14))) as archive:
        warnings.simplefilter("ignore")  # names that occur twice
        for name, content in files.items():
            archive.writestr(name, content)
        for _ in range(draw.randint(1, 3) if hostile else 0):
            info = zipfile.ZipInfo("x")
            info.filename = draw.choice(NAMES)
            info.external_attr = draw.choice((0o100644, 0o120777, 0o020666, 0o040755, 0)) << 16
            info.compress_type = 8
            with contextlib.suppress(UnicodeError):
                archive.writestr(info, bytes(2**26) if bomb else draw.choice(LINKS))
    return buffer.getvalue()


def make_archive(name: str, draw: random.Random) -> bytes:
    """Return an archive of a benchmark with a random fault, or rarely without one."""
    if name == "pacs":
        files = dict.fromkeys(PACS, b"image" * draw.randint(1, 200))
    else:
        notes = json.dumps(replace_value(COCO, draw) if draw.random() < 0.8 else COCO).encode()
        files = {f"{PICTURES}/{image['file_name']}": b"image" for image in COCO["images"]}
        files["eccv_18_annotation_files/a.json"] = damage(notes, draw) if draw.random() < 0.2 else notes
    hostile = draw.random() < 0.4
    if draw.random() < 0.4:
        data = make_zip(files, draw, hostile)
    else:
        data = make_tar(files, draw, hostile)
        if draw.random() < 0.3:  # damage that the compression does not notice
            data = damage(data, draw)
        data = draw.choice(PACKERS)(data)
    return damage(data, draw) if draw.random() < (0.3 if hostile else 0.9) else data


def prepare(folder: Path) -> None:
    """Import what is imported late."""
    (folder / "a.tar").write_bytes(make_tar(dict.fromkeys(PACS, b"image"), random.Random(0), hostile=False))
    assert command("data", "fetch", "pacs", "--root", str(folder / "first"), "--archive", str(folder / "a.tar"))[0] == 0


def attempt(folder: Path, draw: random.Random) -> bool:
    """Fetch a benchmark from an archive; nothing may be left of one that is refused."""
    name = draw.choice(("pacs", "pacs", "pacs", "terra-incognita"))
    archive, root = folder / f"a.{draw.choice(('zip', 'tar', 'tar.gz', 'tgz', 'tar.xz', 'gz'))}", folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    archive.write_bytes(make_archive(name, draw))
    code, _, _ = command("data", "fetch", name, "--root", str(root), "--archive", str(archive))
    left = {path.name for path in root.iterdir() if path.is_dir()}
    if left - {name} or (code and left):
        raise Fault(f"an archive that is {'refused' if code else 'accepted'} leaves {sorted(left)}")
    inside = os.path.realpath(root)
    for path in root.rglob("*"):
        if not os.path.realpath(path).startswith(inside):
            raise Fault("a link leads outside the folder")
        if not (path.is_file() or path.is_dir() or path.is_symlink()):
            raise Fault("something is neither a file nor a folder")
    return code == 0


DOOR = Door("archives", prepare, attempt, 10_000)
