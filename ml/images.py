"""Decode untrusted pictures within limits; encode crops without loss and decode them."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import cv2
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from ml.errors import Corrupt, Unreadable
from ml.image_headers import PNG_SIGNATURE, StrippedPicture, check_decoding_time, read_orientation, strip_metadata
from ml.types import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
SIGNATURE, GREY, RGB, UP = PNG_SIGNATURE, 0, 2, 2
"""PNG (W3C, third edition): its first bytes, two colour types, and the filter that subtracts the row above."""
ANIMATION_FACTOR = 4
"""Decoding an animated WebP takes about four times the memory of a photo."""
BAND_PIXELS = 2**20
"""Large pictures are converted to RGB in bands of this many pixels."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits that are checked before a picture is decoded.

    max_bytes: size of the file; max_pixels: width times height; max_side: pixels of the longer side
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 50_000_000
    max_side: int = 16_384


def read(data: bytes, limits: ImageLimits = ImageLimits()) -> Image:
    """Decode the first frame of a JPEG, PNG, WebP or BMP of any colour mode to (H, W, 3) uint8 RGB.

    The picture is rotated upright by its EXIF data; 16 bits are reduced to 8, and transparent pixels become white.
    Decoding takes 7 to 8 bytes per pixel at its peak, and 26 for an animated WebP.

    Raises Unreadable: ImageTooLarge, InvalidImageFormat.
    """
    return OpenedPhoto(data, limits).decode()


class OpenedPhoto:
    """A picture whose header was read, and whose size is within the limits. Nothing of it is decoded yet.

    pixels: by the header; those of an animated WebP count ANIMATION_FACTOR times
    """

    def __init__(self, data: bytes, limits: ImageLimits = ImageLimits()) -> None:
        """Open a picture, without its metadata. Raises Unreadable: ImageTooLarge, InvalidImageFormat."""
        if len(data) > limits.max_bytes:
            raise Unreadable(
                "ImageTooLarge", f"the photo has {len(data):,} bytes; at most {limits.max_bytes:,} are allowed"
            )
        self._limits = limits
        with _report_unreadable(limits):
            self._stripped = strip_metadata(data)
            self._picture = Pillow.open(io.BytesIO(self._stripped.data), formats=FORMATS)
            width, height = self._picture.size
            factor = _count_factor(data)
            _check(width, height, factor, limits)
        self.pixels = width * height * factor

    def decode(self) -> Image:
        """Decode the picture, once, to (H, W, 3) uint8 RGB: see `read`."""
        with _report_unreadable(self._limits), self._picture as picture:
            check_decoding_time(self._stripped.data, picture.width * picture.height)
            return _decode(picture, self._stripped)


@contextmanager
def _report_unreadable(limits: ImageLimits) -> Iterator[None]:
    """Raise all errors of the block as Unreadable."""
    try:
        yield
    except Unreadable:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable("InvalidImageFormat", "the file is not a JPEG, PNG, WebP or BMP image") from error
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise Unreadable("ImageTooLarge", f"the photo has more than {limits.max_pixels:,} pixels") from error
    except Exception as error:  # a damaged file can make a decoder raise any exception
        raise Unreadable("InvalidImageFormat", f"the picture is damaged or truncated: {error}") from error


def _count_factor(data: bytes) -> int:
    """Return how often each pixel counts. Bit 1 of the flags of a WebP's first chunk VP8X says that it is animated."""
    is_animation = len(data) > 20 and data[8:16] == b"WEBPVP8X" and data[20] & 2
    return ANIMATION_FACTOR if is_animation else 1


def _check(width: int, height: int, factor: int, limits: ImageLimits) -> None:
    size = f"the photo is {width} x {height} pixels" + (f", counted {factor} times for an animation" * (factor > 1))
    if width * height * factor > limits.max_pixels:
        raise Unreadable("ImageTooLarge", f"{size}; at most {limits.max_pixels:,} pixels in total are allowed")
    if max(width, height) > limits.max_side:
        raise Unreadable("ImageTooLarge", f"{size}; at most {limits.max_side:,} pixels per side are allowed")


def _decode(picture: Pillow.Image, stripped: StrippedPicture) -> Image:
    """Decode a picture to upright (H, W, 3) RGB, a band of rows at a time, so that no second copy is in memory."""
    width, height = picture.size
    pixels = _decode_still_webp(picture, stripped.data)
    if pixels is None:
        picture.load()
    turn = read_orientation(*_read_metadata(picture, stripped))
    upright = np.empty((width, height, 3) if turn > 4 else (height, width, 3), np.uint8)
    rgb = _view_as_stored(upright, turn)
    rows = max(1, BAND_PIXELS // width)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        if pixels is None:
            band = picture if rows >= height else picture.crop((0, top, width, bottom))
        else:
            order = cv2.COLOR_BGR2RGB if pixels.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
            band = Pillow.fromarray(cv2.cvtColor(pixels[top:bottom], order))
        rgb[top:bottom] = _convert_to_rgb(band)
    return upright


def _decode_still_webp(picture: Pillow.Image, data: bytes) -> NDArray[np.uint8] | None:
    """Decode a WebP without animation to (H, W, 3) BGR or (H, W, 4) BGRA; None if it is something else.

    Pillow decodes every WebP as an animation, which takes 26 bytes per pixel; the pixels are the same.
    """
    if picture.format != "WEBP" or _count_factor(data) > 1:
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise ValueError("its pixels cannot be decoded")
    channels = 4 if picture.mode == "RGBA" else 3
    is_expected = pixels.shape == (picture.height, picture.width, channels) and pixels.dtype == np.uint8
    return np.asarray(pixels, np.uint8) if is_expected else None


def _convert_to_rgb(picture: Pillow.Image) -> Image:
    if picture.mode.startswith("I"):
        grey = (np.clip(np.asarray(picture, np.int64), 0, 65535) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        picture = Pillow.alpha_composite(Pillow.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    return np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))


def _read_metadata(picture: Pillow.Image, stripped: StrippedPicture) -> tuple[bytes, bytes]:
    """Return the EXIF and XMP data of a loaded picture. PNG may hold them as texts, EXIF in hexadecimal digits."""
    exif, xmp = stripped.exif or picture.info.get("exif", b""), stripped.xmp or picture.info.get("xmp", b"")
    text, profile = picture.info.get("XML:com.adobe.xmp", ""), picture.info.get("Raw profile type exif", "")
    if not exif and profile:
        with suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    return exif, text.encode() or xmp


def _view_as_stored(upright: Image, turn: int) -> Image:
    """Return a view of upright (H, W, 3) pixels in the order of the file. The turns 5 to 8 exchange the sides."""
    view = upright[:: -1 if turn in (3, 4, 7, 8) else 1, :: -1 if turn in (2, 3, 6, 7) else 1]
    return view.transpose(1, 0, 2) if turn > 4 else view


def encode_png(crop: NDArray[np.uint8]) -> bytes:
    """Encode a grey (H, W) or RGB (H, W, 3) uint8 crop as PNG, optimised for speed.

    Intel's ISA-L at level 1 compresses a crop as well as zlib does, in a third of the time.
    """
    rows = crop.reshape(len(crop), -1)
    lines = np.empty((len(rows), rows.shape[1] + 1), np.uint8)
    lines[:, 0], lines[0, 1:] = UP, rows[0]
    np.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    header = struct.pack(">2I5B", crop.shape[1], len(crop), 8, GREY if crop.ndim == 2 else RGB, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", isal_zlib.compress(lines, 1)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = isal_zlib.crc32(data, isal_zlib.crc32(kind))
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def check_png(data: bytes) -> None:
    """Check that a PNG is whole and unaltered: each chunk has a CRC-32, and the last one is IEND. Raises Corrupt."""
    end, kind = len(SIGNATURE), b""
    if not data.startswith(SIGNATURE):
        raise Corrupt("a stored crop is not a PNG picture")
    while kind != b"IEND":
        start, header = end + 4, data[end : end + 8]
        if len(header) < 8:
            raise Corrupt("a stored crop is cut short")
        length, kind = struct.unpack(">I4s", header)
        end = start + 8 + length
        if isal_zlib.crc32(data[start : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise Corrupt("a stored crop was altered or is cut short")
    if end != len(data):
        raise Corrupt("a stored crop goes on after its end")


def decode_png(data: bytes) -> NDArray[np.uint8]:
    """Decode what `encode_png` wrote. Returns (H, W) grey or (H, W, 3) RGB. Raises Corrupt if one bit is wrong."""
    check_png(data)
    crop = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if crop is None or crop.dtype != np.uint8:
        raise Corrupt("a stored crop is not the PNG picture that was written")
    return np.asarray(crop if crop.ndim == 2 else cv2.cvtColor(crop, cv2.COLOR_BGR2RGB), np.uint8)
