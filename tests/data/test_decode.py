"""One file at a time: what can be read, and what is said of what cannot."""

import numpy as np
import pytest
from PIL import Image

from medic.data.decode import BadImage, decode
from tests.data.pictures import encoded, picture


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
        (b"hello, this is text", "pic is not an image"),
        (encoded(picture(size=(300, 300)), "PNG")[:2000], "pic is damaged"),
        (encoded(picture(size=(300, 300)), "JPEG")[:2000], "pic is damaged"),
    ])  # fmt: skip
    def test_bad_files_are_named(self, data, message):
        with pytest.raises(BadImage, match=message):
            decode(data, 16, "pic")
