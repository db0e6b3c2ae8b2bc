"""Metadata is left out before a picture is opened, without changing its pixels or its turn, whatever it contains."""

import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image as Pillow
from PIL.PngImagePlugin import PngInfo

from ml.errors import Unreadable
from ml.image_headers import MAX_SEGMENTS, read_orientation, strip_metadata
from ml.images import ImageLimits, OpenedPhoto, read
from tests.fuzz.hostile_images import (
    encode,
    encode_bomb,
    encode_progressive,
    make_chunk,
    make_exif_bomb,
    make_run_length_bmp,
    make_segment,
)

NOISE = np.random.default_rng(0).integers(0, 256, (90, 60, 3), np.uint8)
PICTURE = Pillow.fromarray(NOISE)
JPEG, PNG = encode(PICTURE, "JPEG", quality=90), encode(PICTURE, "PNG")
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def make_exif(turn: int, order: str = "II") -> bytes:
    exif = Pillow.Exif()
    exif.endian = "<" if order == "II" else ">"
    exif[0x0112] = turn
    return exif.tobytes()


def insert(data: bytes, metadata: bytes) -> bytes:
    """Insert chunks or segments at the start of a picture."""
    start = 2 if data[:2] == b"\xff\xd8" else 33
    return data[:start] + metadata + data[start:]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"icc_profile": b"x" * 200_000}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_has_the_same_pixels_without_its_metadata(mode: str, options: dict[str, Any]) -> None:
    data = encode(PICTURE.convert(mode), "JPEG", exif=make_exif(1), comment=b"hello", **options)
    stripped = strip_metadata(data).data
    assert b"hello" not in stripped
    assert len(stripped) < len(data)
    with Pillow.open(io.BytesIO(data)) as whole, Pillow.open(io.BytesIO(stripped)) as bare:
        assert bare.mode == whole.mode
        assert (np.asarray(bare) == np.asarray(whole)).all()


@pytest.mark.parametrize("mode", ["RGB", "P", "LA", "1"])
def test_a_png_has_the_same_pixels_without_its_metadata(mode: str) -> None:
    options = {"transparency": 3} if mode == "P" else {}
    data = encode(PICTURE.convert(mode), "PNG", exif=make_exif(1), dpi=(72, 72), icc_profile=b"x" * 9_000, **options)
    stripped = strip_metadata(data + b"more").data
    assert stripped.endswith(make_chunk(b"IEND", b""))
    assert b"iCCP" not in stripped
    with Pillow.open(io.BytesIO(data)) as whole, Pillow.open(io.BytesIO(stripped)) as bare:
        assert (np.asarray(bare.convert("RGBA")) == np.asarray(whole.convert("RGBA"))).all()


def add_raw_profile(exif: bytes) -> dict[str, Any]:
    info = PngInfo()
    info.add_text("Raw profile type exif", f"\nexif\n{len(exif)}\n{exif.hex()}", zip=True)
    return {"pnginfo": info}


def add_xmp_text(_: bytes) -> dict[str, Any]:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", XMP.decode())
    return {"pnginfo": info}


@pytest.mark.parametrize(("kind", "make_options"), [
    ("JPEG", lambda exif: {"exif": exif}),
    ("PNG", lambda exif: {"exif": exif}),
    ("WEBP", lambda exif: {"exif": exif, "lossless": True}),
    ("JPEG", lambda exif: {"xmp": XMP}),
    ("WEBP", lambda exif: {"xmp": XMP, "lossless": True}),
    ("PNG", add_raw_profile),
    ("PNG", add_xmp_text),
])  # fmt: skip
@pytest.mark.parametrize("order", ["II", "MM"])
def test_the_turn_is_read_wherever_a_program_writes_it(
    kind: str, make_options: Callable[[bytes], dict[str, Any]], order: str
) -> None:
    turned = read(encode(PICTURE, kind, **make_options(make_exif(6, order))))
    plain = read(encode(PICTURE, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert (turned == np.rot90(plain, -1)).all()


@pytest.mark.parametrize(
    "exif", [b"", b"II*\0", b"MM\0*\xff\xff\xff\xff", make_exif(9), make_exif(0), make_exif(6)[:24]]
)
def test_an_orientation_that_cannot_be_read_is_upright(exif: bytes) -> None:
    assert read_orientation(exif, b"") == 1


@pytest.mark.parametrize(
    "data",
    [
        insert(JPEG, make_segment(0xE1, b"Exif\0\0" + make_exif_bomb(5_000, 65_000))),
        insert(PNG, make_chunk(b"eXIf", make_exif_bomb(60_000, 10_000_000))),
        insert(JPEG, make_segment(0xE1, b"Exif\0\0" + bytes(500)) * 15_000),
        insert(PNG, make_chunk(b"abCd", bytes(500)) * 15_000),
        insert(PNG, make_chunk(b"tEXt", b"a\0" + bytes(500)) * 15_000),
    ],
    ids=["EXIF of a JPEG", "EXIF of a PNG", "parts of EXIF", "chunks", "texts"],
)
def test_hostile_metadata_costs_neither_memory_nor_time(data: bytes) -> None:
    before, started = psutil.Process().memory_info().rss, time.process_time()
    image = read(data)
    assert time.process_time() - started < 0.5
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    assert (image == read(JPEG if data[:2] == b"\xff\xd8" else PNG)).all()


@pytest.mark.parametrize("data", [
    insert(JPEG, make_segment(0xFE, b"") * MAX_SEGMENTS),
    insert(JPEG, b"\xff\xe1\0\0" * MAX_SEGMENTS),
    insert(PNG, make_chunk(b"IDAT", b"") * MAX_SEGMENTS),
])  # fmt: skip
def test_more_segments_than_any_camera_writes_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="20,000 segments"):
        read(data)


def repeat_last_scan(side: int, times: int) -> bytes:
    data = encode_progressive(side, 0)
    start = data.rfind(b"\xff\xda")
    return data[:-2] + data[start:-2] * times + data[-2:]


def test_many_scans_of_many_pixels_are_refused() -> None:
    assert read(repeat_last_scan(256, 500)).shape == (256, 256, 3)
    with pytest.raises(Unreadable, match="more than 200 scans of 4,000,000 pixels") as refused:
        read(repeat_last_scan(2_000, 500))
    assert refused.value.code == "ImageTooLarge"


def test_a_run_length_encoded_bmp_is_read_if_it_is_small() -> None:
    image = read(make_run_length_bmp(300, 200, (b"\xff\x55\x2d\x55\0\0") * 200 + b"\0\1"))
    assert image.shape == (200, 300, 3)
    assert (image == 0x55).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("body", [b"\1\x55", b"\0\0", b"\0\2\1\0"])
@pytest.mark.parametrize(("side", "count"), [(1_500, 10), (100, 1_100_000)])
def test_a_large_run_length_encoded_bmp_is_refused(bits: int, body: bytes, side: int, count: int) -> None:
    with pytest.raises(Unreadable, match="run-length encoded") as refused:
        read(make_run_length_bmp(side, side, body * count, bits))
    assert refused.value.code == "ImageTooLarge"


def test_bytes_behind_a_photo_are_no_scans() -> None:
    data = encode_progressive(2_000, 0) + b"\xff\xda" * 1_000
    assert read(data).shape == (2_000, 2_000, 3)


@pytest.mark.parametrize(("data", "pixels"), [
    (JPEG, 5_400), (PNG, 5_400), (encode(PICTURE, "BMP"), 5_400), (encode_bomb("WEBP", "RGB", 300, 200), 60_000),
    (encode_bomb("WEBP", "RGB", 300, 200, animated=True), 240_000),
])  # fmt: skip
def test_pixels_are_counted_by_the_header(data: bytes, pixels: int) -> None:
    assert OpenedPhoto(data).pixels == pixels
    with pytest.raises(Unreadable, match=f"at most {pixels - 1:,} pixels") as refused:
        OpenedPhoto(data, ImageLimits(max_pixels=pixels - 1))
    assert refused.value.code == "ImageTooLarge"
