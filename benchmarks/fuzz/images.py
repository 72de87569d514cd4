"""Damaged images of every format that Pillow writes, and files that are no images, among those of a dataset."""

import functools
import io
import os
import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.fuzz.damage import damage
from benchmarks.fuzz.harness import Door, Fault, command

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n%%EOF\n"


@functools.cache
def originals() -> tuple[bytes, ...]:
    """Return small images of every format, mode and compression."""
    Image.init()
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 4), dtype=np.uint8)
    rgb, rgba, grey = Image.fromarray(noise[..., :3]), Image.fromarray(noise), Image.fromarray(noise[..., 0])
    deep = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    modes = [rgb, rgba, grey, rgb.convert("P"), rgb.convert("1"), rgb.convert("CMYK"), rgba.convert("LA"), deep,
             Image.fromarray(noise[..., 0] / np.float32(255)), rgb.convert("YCbCr"), grey.convert("I")]  # fmt: skip
    upright = rgb.getexif()
    upright[0x0112] = 6
    kinds: dict[str, list[dict[str, Any]]] = {
        "TIFF": [
            {"compression": name} for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4")
        ],
        "JPEG": [{"progressive": True}, {"exif": upright}, {"dpi": (9, 9), "optimize": True}],
        "WEBP": [{"lossless": True}, {"quality": 50}, {"save_all": True, "append_images": [grey]}],
        "GIF": [{"save_all": True, "append_images": [grey, rgba]}, {"interlace": 1}],
        "PNG": [{"exif": upright}, {"save_all": True, "append_images": [rgba]}],
    }
    encoded = {POSTSCRIPT}
    for kind in sorted(Image.SAVE):
        for image in modes:
            for settings in [{}, *kinds.get(kind, [])]:
                buffer = io.BytesIO()
                try:
                    image.save(buffer, kind, **settings)
                    Image.open(io.BytesIO(buffer.getvalue())).close()
                except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, SystemError):
                    continue  # this format has no such mode, or is written only
                encoded.add(buffer.getvalue())
    common = [
        data for data in encoded if data[:2] in (b"\x89P", b"\xff\xd8", b"II", b"MM", b"BM", b"RI", b"GI", b"P5", b"P6")
    ]
    return tuple(sorted([*encoded, *common, *common]))  # the formats of datasets are drawn three times as often


def with_checksums(data: bytes) -> bytes:
    """Return a PNG whose chunks have the right checksums, so that damage reaches the decoder."""
    repaired, place = data[:8], 8
    while data[:4] == b"\x89PNG" and place + 12 <= len(data):
        length = struct.unpack(">I", data[place : place + 4])[0]
        body = data[place + 4 : place + 8 + length]
        repaired += data[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    return repaired + data[place:]


def make_image(draw: random.Random) -> bytes:
    """Return a damaged image."""
    data = damage(draw.choice(originals()), draw, originals())
    return with_checksums(data) if draw.random() < 0.7 else data


def write_special(path: Path, draw: random.Random) -> None:
    """Make something else than an image file."""
    match draw.randrange(7):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(
                draw.choice(("/dev/zero", "/dev/full", "/proc/self/mem", "/dev/stdin", "missing", path.name))
            )
        case 2:
            with path.open("wb") as file:
                file.truncate(8 * 2**30)
        case 3:
            path.touch()
        case 4:
            path.mkdir()
        case 5:
            path.write_bytes(draw.randbytes(draw.randint(1, 4096)))
        case _:
            path.write_bytes(POSTSCRIPT)


def prepare(folder: Path) -> None:
    """Write the good image that is beside each damaged one."""
    from medic.data import BENCHMARKS, Storage

    good = folder / "images" / "art" / "dog" / "good.png"
    good.parent.mkdir(parents=True)
    Image.new("RGB", (16, 12), "red").save(good)
    originals()
    BENCHMARKS["folder"].open(folder / "images").load(Storage(32))  # what is imported late is imported here


def attempt(folder: Path, draw: random.Random) -> bool:
    """Read a dataset of a good image and a damaged one, as training or `medic data check` does."""
    from medic.data import BENCHMARKS, Storage
    from medic.errors import MedicError

    root, suffix = folder / "images", draw.choice((".png", ".jpg", ".tif", ".gif", ".bmp", ".webp", ".ppm"))
    path = root / "art" / "dog" / f"bad{suffix}"
    _clear(folder)
    if draw.random() < 0.01:
        write_special(path, draw)
    else:
        path.write_bytes(make_image(draw))
    if draw.random() < 0.2:
        return command("data", "check", "folder", "--root", str(root))[0] == 0
    on_bad, where = draw.choice(("error", "skip")), draw.choice(("ram", "map", "stream"))
    try:
        dataset = BENCHMARKS["folder"].open(root).load(Storage(32, where, on_bad=on_bad))
        dataset.images.gather(dataset.label.new_tensor(range(len(dataset.paths))), dataset.label.device)
    except MedicError as error:
        if on_bad == "skip":
            raise Fault("a bad image ends a run with --on-bad-image skip") from error
        return False
    return len(dataset.paths) == 2


def _clear(folder: Path) -> None:
    """Remove what the attempt before left, which may have been killed."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    for path in (folder / "images").rglob("bad.*"):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def decode_image(folder: Path, draw: random.Random) -> bool:
    """Decode the bytes of a damaged image, as a predictor and the service do; much faster than a dataset."""
    from medic.data.inputs import to_pixels
    from medic.errors import MedicError

    size = draw.choice((1, 16, 32, 33))
    try:
        pixels = to_pixels(make_image(draw), size, draw.choice((192, 10**6, 50_000_000)))
    except MedicError as error:
        if "\n" in str(error):
            raise Fault(f"an error of several lines: {str(error)[:80]!r}") from error
        return False
    if pixels.shape != (3, size, size) or pixels.dtype != np.uint8:
        raise Fault(f"pixels of shape {pixels.shape} and type {pixels.dtype}")
    return True


DOOR = Door("images", prepare, attempt, 20_000)
DECODER = Door("pixels", lambda folder: None, decode_image, 200_000, originals)
