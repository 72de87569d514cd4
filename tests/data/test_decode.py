"""One file at a time: what can be read, and what is said of what cannot."""

import os
import struct

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageOps

from medic.data.decode import MAX_BYTES, MAX_PIXELS, MAX_SIDE, BadImage, decode, read_file
from tests.data.pictures import encoded, picture, tiff
from tests.messages import naming


class TestDecode:
    def plain(self, size: int = 16) -> np.ndarray:
        return np.asarray(picture().resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)

    def test_rgb_is_squashed_as_pil_does(self):
        assert np.array_equal(decode(encoded(picture(), "PNG"), 16, "x")[0], self.plain())

    @pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK"])
    def test_other_modes_become_rgb(self, mode):
        image = picture().convert(mode)
        kind = "TIFF" if mode == "CMYK" else "PNG"
        expected = image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
        assert np.array_equal(decode(encoded(image, kind), 16, "x")[0], np.asarray(expected).transpose(2, 0, 1))

    def test_sixteen_bits_keep_their_upper_eight(self):
        values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
        decoded = decode(encoded(Image.fromarray(values), "PNG"), 16, "x")[0]
        assert np.array_equal(decoded[0], (values >> 8).astype(np.uint8))
        assert np.array_equal(decoded[0], decoded[2])

    @pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
    def test_one_bright_pixel_does_not_change_the_others(self, kind):
        values = np.full((16, 16), 25_700, np.uint16)
        dim = values // 128
        for grey, level in ((values, 100), (dim, 0)):
            for brightest in (grey[0, 0], 300, 65535):
                grey[0, 0] = brightest
                decoded = decode(encoded(Image.fromarray(grey), kind), 16, "x")[0]
                assert (decoded[:, 1:] == level).all()
                assert (decoded[:, 0, 0] == brightest >> 8).all()

    def test_twelve_bits_keep_their_upper_eight(self):
        # The values 0x123, 0xfff, 0x010 and 0xabc.
        assert decode(tiff(4, 1, 12, bytes.fromhex("123fff010abc")), 4, "x")[0][0, 0].tolist() == [0x12, 255, 1, 0xAB]

    def test_floats_from_zero_to_one(self):
        values = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
        decoded = decode(encoded(Image.fromarray(values), "TIFF"), 16, "x")[0]
        assert np.array_equal(decoded[0].ravel(), np.arange(256))
        assert (decode(encoded(Image.fromarray(values / 4), "TIFF"), 16, "x")[0] <= 64).all()

    @pytest.mark.parametrize("value", [1.01, -0.01, 200, np.nan, np.inf])
    def test_other_floats_are_refused(self, value):
        values = np.full((16, 16), 0.5, np.float32)
        values[3, 4] = value
        with pytest.raises(BadImage, match=r"pic .*\[0, 1\]"):
            decode(encoded(Image.fromarray(values), "TIFF"), 16, "pic")

    def test_integers_without_a_range_are_refused(self):
        with pytest.raises(BadImage, match=naming("pic 32-bit 16 bits")):
            decode(encoded(Image.fromarray(np.full((16, 16), 200, np.int32)), "TIFF"), 16, "pic")

    def test_exif_turns_the_picture_upright(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera was turned by a quarter
        turned, frame = decode(encoded(picture(), "PNG", exif=exif), 16, "x")
        assert frame == (40, 30)
        upright = picture().transpose(Image.Transpose.ROTATE_270).resize((16, 16), Image.Resampling.BILINEAR)
        assert np.array_equal(turned, np.asarray(upright).transpose(2, 0, 1))

    def test_a_very_wide_picture(self):
        assert decode(encoded(picture(size=(30_000, 4)), "PNG"), 8, "x")[0].shape == (3, 8, 8)

    @pytest.mark.parametrize(("data", "message"), [
        (b"", "pic is empty"),
        (b"hello, this is text", "pic is not in a supported image format"),
        (struct.pack("<4s31I", b"DDS ", 124, 0x1007, 8, 8, *[0] * 14, 32, 4, *[0x41414141] * 9, 0, 0)[:128], "pic"),
        (encoded(picture(size=(300, 300)), "PNG")[:2000], "pic is damaged"),
        (encoded(picture(size=(300, 300)), "JPEG")[:2000], "pic is damaged"),
    ])  # fmt: skip
    def test_bad_files_are_named(self, data, message):
        with pytest.raises(BadImage, match=message):
            decode(data, 16, "pic")

    @pytest.mark.parametrize("kind", [struct.error, RuntimeError, NotImplementedError, KeyError, RecursionError])
    def test_every_exception_is_a_bad_image(self, monkeypatch, kind):
        def damaged(*_, **__):
            raise kind("first\nsecond")

        monkeypatch.setattr(ImageOps, "exif_transpose", damaged)
        with pytest.raises(BadImage, match=r"^pic is damaged: .*$"):
            decode(encoded(picture(), "PNG"), 16, "pic")

    def test_postscript_starts_nothing(self, monkeypatch):
        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
        page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) show\n"
        with pytest.raises(BadImage, match=naming("x.png PNG JPEG")):
            decode(page, 16, "x.png")

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_large_images_are_refused_before_they_are_decoded(self, monkeypatch):
        side = int(MAX_PIXELS**0.5) + 1
        monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("the image was decoded"))
        for bits in (1, 8, 16, 32):
            for shape in ((side, side), (1, MAX_SIDE + 1), (MAX_SIDE + 1, 1)):
                with pytest.raises(BadImage, match=naming(f"pic {MAX_PIXELS // 10**6} pixels {MAX_SIDE}")):
                    decode(tiff(*shape, bits, b""), 16, "pic")


def test_a_lack_of_memory_is_no_bad_image(monkeypatch):
    def fail(image, name):
        raise MemoryError

    monkeypatch.setattr("medic.data.decode._to_rgb", fail)
    with pytest.raises(MemoryError):
        decode(encoded(picture(), "PNG"), 16, "pic")


class TestReadFile:
    def test_only_regular_files(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.png")
        (tmp_path / "zero.png").symlink_to("/dev/zero")
        (tmp_path / "folder.png").mkdir()
        for name, what in (("pipe.png", "regular"), ("zero.png", "regular"), ("folder.png", "folder")):
            with pytest.raises(BadImage, match=naming(f"{tmp_path}/{name} {what}")):
                read_file(str(tmp_path / name))

    def test_a_file_beyond_the_limit(self, tmp_path):
        with (tmp_path / "x.png").open("wb") as file:
            file.truncate(MAX_BYTES + 1)
        with pytest.raises(BadImage, match=naming(f"{tmp_path}/x.png {MAX_BYTES >> 20} MiB")):
            read_file(str(tmp_path / "x.png"))

    def test_a_path_with_a_nul(self):
        with pytest.raises(BadImage, match=r"a\0b\.png cannot be read"):
            read_file("a\0b.png")
