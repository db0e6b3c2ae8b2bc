"""Untrusted bytes: every colour mode and turn is read, everything else is refused with a sentence."""

import io
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

from ml import images
from ml.errors import Corrupt, Unreadable
from ml.images import ImageLimits, check_png, decode_png, encode_png, read
from ml.synthetic_faces import draw, person

RAMP = np.add.outer(np.arange(40) * 3, np.arange(60) * 2).astype(np.uint8)
COLOUR = np.stack([RAMP, RAMP[::-1], RAMP[:, ::-1]], axis=2)


def packed(picture: Pillow.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(("kind", "options", "off"), [
    ("PNG", {}, 0), ("BMP", {}, 0), ("JPEG", {"quality": 95}, 12),
    ("WEBP", {"lossless": True}, 0), ("WEBP", {"quality": 95}, 20),
])  # fmt: skip
def test_each_format_is_read_as_rgb(kind: str, options: dict[str, object], off: int) -> None:
    image = read(packed(Pillow.fromarray(COLOUR), kind, **options))
    assert image.shape == (40, 60, 3)
    assert image.dtype == np.uint8
    assert np.abs(image.astype(int) - COLOUR).max() <= off


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_each_mode_of_png_is_read(mode: str) -> None:
    picture = Pillow.fromarray(RAMP.astype(np.uint16) * 257) if mode == "I;16" else Pillow.fromarray(RAMP).convert(mode)
    image = read(packed(picture, "PNG"))
    wanted = np.where(RAMP > 127, 255, 0) if mode == "1" else RAMP
    if mode == "1":
        assert set(np.unique(image)) == {0, 255}
    else:
        assert np.abs(image.astype(int) - wanted[:, :, None]).max() <= 1


@pytest.mark.parametrize("mode", ["L", "CMYK", "YCbCr"])
def test_each_mode_of_jpeg_is_read(mode: str) -> None:
    image = read(packed(Pillow.fromarray(COLOUR).convert(mode), "JPEG", quality=95))
    wanted = COLOUR if mode != "L" else np.asarray(Pillow.fromarray(COLOUR).convert("L"))[:, :, None]
    assert np.abs(image.astype(int) - wanted).mean() < 4


def read_at_once(data: bytes) -> NDArray[np.uint8]:
    """Decode a picture by Pillow alone: turn all of it, lay it on white, convert it to RGB."""
    with Pillow.open(io.BytesIO(data)) as picture:
        upright = ImageOps.exif_transpose(picture)
        if upright.mode.startswith("I"):
            return np.repeat((np.asarray(upright, np.int64) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
        if upright.mode in ("LA", "RGBA") or "transparency" in upright.info:
            white = Pillow.new("RGBA", upright.size, "white")
            upright = Pillow.alpha_composite(white, upright.convert("RGBA"))
        return np.asarray(upright.convert("RGB"))


MODES = {
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("RGB", "L", "P", "1"),
}


@pytest.mark.parametrize("turn", [1, 6, 7])
@pytest.mark.parametrize("band", [images.BAND_PIXELS, 2_000])
@pytest.mark.parametrize("kind", MODES)
def test_decoding_in_bands_changes_no_pixel(kind: str, band: int, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BAND_PIXELS", band)
    face, rng, exif = draw(person(0), 0, 150)[:, :101], np.random.default_rng(0), Pillow.Exif()
    exif[0x0112] = turn
    for mode in MODES[kind]:
        grey = face[:, :, 0].astype(np.uint16) * 257
        picture = Pillow.fromarray(grey) if mode == "I;16" else Pillow.fromarray(face).convert(mode)
        if mode in ("RGBA", "LA"):
            picture.putalpha(Pillow.fromarray(rng.integers(0, 256, face.shape[:2], np.uint8)))
        for quality in (60, 95) if kind in ("JPEG", "WEBP") else (None,):
            options = {} if kind == "BMP" else {"exif": exif.tobytes()}
            data = packed(picture, kind, **options, **({"quality": quality} if quality else {}))
            assert (read(data) == read_at_once(data)).all(), (mode, quality)


MEASURE_MEMORY = """
import sys, pathlib
from ml import images
images.read(pathlib.Path(sys.argv[2]).read_bytes())
data = pathlib.Path(sys.argv[1]).read_bytes()
pathlib.Path("/proc/self/clear_refs").write_text("5")
read_kilobytes = lambda name: int(pathlib.Path("/proc/self/status").read_text().split(name)[1].split()[0])
before = read_kilobytes("VmRSS:")
image = images.read(data)
print((read_kilobytes("VmHWM:") - before) * 1024 / (image.size / 3))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("kind", "mode"), [
    ("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "I;16"), ("WEBP", "RGB"), ("WEBP", "RGBA"),
])  # fmt: skip
def test_decoding_takes_at_most_nine_bytes_per_pixel(kind: str, mode: str, tmp_path: Path) -> None:
    for name, side in (("large", 5_000), ("small", 100)):
        options = {"lossless": True, "method": 0} if kind == "WEBP" else {}
        (tmp_path / name).write_bytes(packed(Pillow.new(mode, (side, side)), kind, **options))
    command = [sys.executable, "-c", MEASURE_MEMORY, str(tmp_path / "large"), str(tmp_path / "small")]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert float(result.stdout) < 9


def test_transparent_pixels_lie_on_white() -> None:
    clear = np.dstack([COLOUR, np.zeros((40, 60), np.uint8)])
    assert (read(packed(Pillow.fromarray(clear), "PNG")) == 255).all()
    palette = Pillow.fromarray(np.zeros((4, 4), np.uint8)).convert("P")
    assert (read(packed(palette, "PNG", transparency=0)) == 255).all()


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_photo_is_turned_as_its_exif_says(turn: int) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = Pillow.fromarray(COLOUR)
    if turn in undo:
        stored = stored.transpose(Pillow.Transpose(undo[turn]))
    exif = Pillow.Exif()
    exif[0x0112] = turn
    assert (read(packed(stored, "PNG", exif=exif.tobytes())) == COLOUR).all()


def test_broken_exif_turns_nothing() -> None:
    data = packed(Pillow.fromarray(COLOUR), "PNG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff\x01")
    assert (read(data) == COLOUR).all()


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Pillow.fromarray(COLOUR), Pillow.fromarray(COLOUR[::-1].copy())]
    for kind in ("PNG", "WEBP"):
        data = packed(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
        assert (read(data) == COLOUR).all()


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff\xd8\xff", b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WEBPVP8 ", b"BM" + b"\xff" * 60]
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable) as refused:
        read(data)
    assert refused.value.code in ("InvalidImageFormat", "ImageTooLarge")


def test_formats_that_are_not_taken_are_refused_by_name() -> None:
    for kind in ("GIF", "TIFF"):
        with pytest.raises(Unreadable, match="not a JPEG, PNG, WebP or BMP") as refused:
            read(packed(Pillow.fromarray(COLOUR), kind))
        assert refused.value.code == "InvalidImageFormat"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_truncated_picture_is_refused(kind: str, part: float) -> None:
    rng = np.random.default_rng(0)
    data = packed(Pillow.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)), kind)
    with pytest.raises(Unreadable) as refused:
        read(data[: int(len(data) * part)])
    assert refused.value.code == "InvalidImageFormat"


def test_no_mangled_byte_gets_anything_but_a_picture_or_a_refusal() -> None:
    rng = np.random.default_rng(1)
    for kind in ("PNG", "JPEG", "WEBP", "BMP"):
        whole = packed(Pillow.fromarray(COLOUR), kind)
        for _ in range(100):
            data = bytearray(whole)
            for at in rng.integers(0, len(data), 3):
                data[at] = rng.integers(256)
            with suppress(Unreadable):
                assert read(bytes(data)).shape[2] == 3


def bomb(width: int, height: int) -> bytes:
    """A PNG that says that it is large and is a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("size", "limit"), [
    ((9_000, 9_000), "50,000,000"), ((10_000, 10_000), "50,000,000"), ((60_000, 60_000), "50,000,000"),
    ((20_000, 100), "16,384"),
])  # fmt: skip
def test_a_bomb_is_refused_by_its_header(size: tuple[int, int], limit: str) -> None:
    with pytest.raises(Unreadable, match=limit) as refused:
        read(bomb(*size))
    assert refused.value.code == "ImageTooLarge"


def test_too_many_bytes_are_refused_naming_the_limit() -> None:
    with pytest.raises(Unreadable, match="at most 10 are allowed") as refused:
        read(b"x" * 11, ImageLimits(max_bytes=10))
    assert refused.value.code == "ImageTooLarge"


NOISE = np.random.default_rng(3).integers(0, 256, (170, 100, 3), np.uint8)


@pytest.mark.parametrize(
    "crop", [RAMP, COLOUR, NOISE, NOISE[:, :, 0], NOISE[::-1, ::2], NOISE[:1, :1], NOISE[:1, :, 1], NOISE[:, :1]]
)
def test_crops_are_packed_without_loss(crop: NDArray[np.uint8]) -> None:
    data = encode_png(crop)
    assert (decode_png(data) == crop).all()
    with Pillow.open(io.BytesIO(data)) as picture:  # which checks the sums of all chunks, and the end
        assert picture.mode == ("L" if crop.ndim == 2 else "RGB")
        picture.load()
        assert (np.asarray(picture) == crop).all()


def test_a_crop_takes_little_more_than_zlib_makes_of_it() -> None:
    face = draw(person(0), 0)
    best = packed(Pillow.fromarray(face), "PNG", compress_level=9)
    assert len(encode_png(face)) < 1.05 * len(best)


def test_a_crop_that_was_altered_is_corrupt() -> None:
    for data in (b"", b"nothing", encode_png(RAMP)[:40]):
        with pytest.raises(Corrupt):
            decode_png(data)


@pytest.mark.parametrize("side", [12_000, 16_383])
def test_an_animation_that_says_it_is_large_is_refused_before_its_canvas_is_made(side: int) -> None:
    frames = [Pillow.fromarray(np.full((20, 20, 3), shade, np.uint8)) for shade in (0, 90)]
    data = bytearray(packed(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    at = data.index(b"VP8X") + 12
    data[at : at + 6] = (side - 1).to_bytes(3, "little") * 2
    with pytest.raises(Unreadable, match="50,000,000") as refused:
        read(bytes(data))
    assert refused.value.code == "ImageTooLarge"


@pytest.mark.parametrize("colour", [(), (3,)])
def test_every_wrong_bit_and_every_cut_of_a_stored_crop_is_noticed(colour: tuple[int, ...]) -> None:
    crop = np.random.default_rng(0).integers(0, 256, (12, 8, *colour), np.uint8)
    data = encode_png(crop)
    check_png(data)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            decode_png(bytes(altered))
        with pytest.raises(Corrupt):
            decode_png(data[:at])
    with pytest.raises(Corrupt, match="goes on"):
        decode_png(data + b"x")
