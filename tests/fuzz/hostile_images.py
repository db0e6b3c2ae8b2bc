"""Draw hostile images: damaged, lying about their size, decompression bombs, with hostile metadata, or no image at all.

`HostileImages(seed).draw()` returns the name of a kind and the bytes of an image; the same seed draws the same images.
"""

import io
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image as Pillow

from ml.synthetic_faces import draw, person

ACCEPTED = ("JPEG", "PNG", "WEBP", "BMP")
OTHERS = ("GIF", "TIFF", "ICO", "PPM", "PCX", "TGA", "DDS", "PDF", "JPEG2000")
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "I;16")
EXTREME_SIZES = ((16_384, 1), (1, 16_384), (1, 1), (2, 3), (16_384, 7), (3, 16_000))


def encode(picture: Pillow.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


@lru_cache(8)
def draw_face(number: int) -> Pillow.Image:
    """A photo of a synthetic person, 250 x 250."""
    return Pillow.fromarray(draw(person(number), number))


@lru_cache(64)
def encode_bomb(kind: str, mode: str, width: int, height: int, animated: bool = False) -> bytes:
    """An image of one colour, whose file is far smaller than its pixels."""
    picture = Pillow.new(mode, (width, height), 1 if mode in ("1", "P", "L", "I;16") else None)
    options: dict[str, Any] = {"lossless": True, "method": 0} if kind == "WEBP" else {}
    if animated:
        options |= {"save_all": True, "append_images": [Pillow.new(mode, (width, height), "white")]}
    return encode(picture, kind, **options)


def make_chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def make_segment(marker: int, body: bytes) -> bytes:
    """A segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def make_exif_bomb(entries: int, size: int) -> bytes:
    """EXIF whose entries all refer to nearly all of its bytes."""
    rows = b"".join(struct.pack("<HHII", tag, 7, size - 100, 0) for tag in range(1, entries + 1))
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", entries) + rows).ljust(size, b"\0")


def make_run_length_bmp(width: int, height: int, body: bytes, bits: int = 8) -> bytes:
    """A BMP of 4 or 8 bits per pixel with a palette of greys."""
    palette = b"".join(bytes((shade, shade, shade, 0)) for shade in range(2**bits))
    start, encoding = 54 + len(palette), 1 if bits == 8 else 2
    sizes = (start + len(body), 0, start, 40, width, height, 1, bits, encoding, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IIIIiiHHIIIIII", *sizes) + palette + body


class HostileImages:
    """Draws hostile images. max_pixels: of bombs"""

    def __init__(self, seed: int, max_pixels: int = 49_000_000) -> None:
        self.rng, self.side = np.random.default_rng(seed), int(max_pixels**0.5)
        self.kinds: tuple[Callable[[], bytes], ...] = (
            self.truncated, self.altered, self.altered, self.wrong_size, self.bomb, self.animated_bomb,
            self.over_limit, self.other_format, self.huge_metadata, self.exif_bomb, self.many_segments,
            self.many_scans, self.odd_mode, self.odd_turn, self.polyglot, self.extreme_shape, self.no_image,
            self.other_signature, self.run_lengths,
        )  # fmt: skip

    def draw(self) -> tuple[str, bytes]:
        """Return the name of a kind, and an image of it."""
        kind = self.kinds[self.rng.integers(len(self.kinds))]
        return kind.__name__, kind()

    def choose(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def valid(self, *kinds: str) -> bytes:
        """A photo that is not hostile."""
        kind = self.choose(*(kinds or ACCEPTED))
        options = {"progressive": bool(self.rng.integers(2))} if kind == "JPEG" else {}
        return encode(draw_face(int(self.rng.integers(4))), kind, **options)

    def truncated(self) -> bytes:
        data = self.valid()
        return data[: int(len(data) * self.rng.random())]

    def altered(self) -> bytes:
        data = bytearray(self.valid())
        end = self.choose(64, len(data))
        for position in self.rng.integers(0, end, self.rng.integers(1, 12)):
            data[position] = self.rng.integers(256)
        return bytes(data)

    def wrong_size(self) -> bytes:
        """A header that states another width or height."""
        kind = self.choose("PNG", "BMP", "JPEG", "WEBP")
        data = bytearray(self.valid(kind))
        width, height = (int(self.choose(0, 1, 255, 5_000, 7_000, 16_384, 65_535, 2**31 - 1)) for _ in range(2))
        if kind == "PNG":
            return bytes(data[:8]) + make_chunk(b"IHDR", struct.pack(">II", width, height) + data[24:29]) + data[33:]
        if kind == "BMP":
            data[18:26] = struct.pack("<II", width, height)
        elif kind == "JPEG":
            start = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
            data[start + 5 : start + 9] = struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
        else:
            data[26:30] = struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
        return bytes(data)

    def bomb(self) -> bytes:
        kind = self.choose(*ACCEPTED)
        mode = self.choose(*{"JPEG": ("RGB", "L", "CMYK"), "WEBP": ("RGB", "RGBA"), "BMP": ("1",)}.get(
            kind, ("RGB", "RGBA", "L", "P", "1", "I;16")
        ))  # fmt: skip
        width, height = self.choose((self.side, self.side), (min(16_384, self.side * 2), self.side // 2 - 400))
        return encode_bomb(kind, mode, width, max(1, height))

    def animated_bomb(self) -> bytes:
        side = self.choose(self.side // 2 - 1, self.side // 4)
        return encode_bomb(self.choose("WEBP", "PNG", "GIF"), "RGB", side, side, animated=True)

    def over_limit(self) -> bytes:
        """A header of far too many pixels, and little behind it."""
        side = int(self.choose(9_000, 20_000, 65_535, 2**31 - 1))
        header = struct.pack(">II5B", side, side, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + make_chunk(b"IDAT", zlib.compress(bytes(1_000)))
        bmp = b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
        size = (16_383).to_bytes(3, "little") * 2
        webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + size
        return bytes(self.choose(png + make_chunk(b"IEND", b""), bmp, webp))

    def other_format(self) -> bytes:
        return encode(draw_face(0).convert("RGB"), self.choose(*OTHERS))

    def huge_metadata(self) -> bytes:
        """Much data around a valid photo: comments, colour profiles, texts that are decompression bombs."""
        noise = self.rng.bytes(int(self.choose(1_000, 60_000)))
        count = int(self.choose(1, 50, 300))
        if self.rng.random() < 0.5:
            data = self.valid("JPEG")
            prefix = self.choose(b"", b"Exif\0\0", b"ICC_PROFILE\0\1\1", b"http://ns.adobe.com/xap/1.0/\0", b"MPF\0")
            return data[:2] + make_segment(int(self.choose(0xE1, 0xE2, 0xED, 0xFE)), prefix + noise) * count + data[2:]
        data, bomb = self.valid("PNG"), zlib.compress(bytes(5_000_000))
        chunk = make_chunk(self.choose(b"zTXt", b"iCCP"), b"a\0\0" + bomb)
        return data[:33] + chunk * min(count, 50) + make_chunk(b"tEXt", b"a\0" + noise) + data[33:]

    def exif_bomb(self) -> bytes:
        entries, size = self.choose((5_000, 65_000), (1_000, 300_000), (65_000, 900_000))
        exif = make_exif_bomb(entries, size)
        if size < 65_500 and self.rng.random() < 0.5:
            data = self.valid("JPEG")
            return data[:2] + make_segment(0xE1, b"Exif\0\0" + exif) + data[20:]
        data = self.valid("PNG")
        return data[:33] + make_chunk(b"eXIf", exif) + data[33:]

    def many_segments(self) -> bytes:
        count = int(self.choose(1_000, 30_000, 200_000))
        if self.rng.random() < 0.5:
            data = self.valid("JPEG")
            return data[:2] + self.choose(make_segment(0xFE, b""), b"\xff\xe1\0\2", b"\xff", b"\0") * count + data[2:]
        data, chunk = self.valid("PNG"), make_chunk(self.choose(b"IDAT", b"abCd", b"tEXt", b"fdAT"), b"")
        return data[:33] + chunk * count + data[33:]

    def many_scans(self) -> bytes:
        """A progressive JPEG whose last scan is repeated: each repetition costs a pass over the pixels."""
        data = encode_progressive(self.side, int(self.choose(0, 1)))
        start = data.rfind(b"\xff\xda")
        return data[:-2] + data[start:-2] * int(self.choose(2, 40, 2_000)) + data[-2:]

    def run_lengths(self) -> bytes:
        """A run-length encoded BMP of runs of one pixel, of ends of lines, or of steps."""
        side = int(self.choose(100, 1_000, self.side))
        body = self.choose(b"\1\x55", b"\0\0", b"\0\2\1\0", b"\xff\x55") * int(self.choose(5_000, 500_000, 5_000_000))
        return make_run_length_bmp(side, side, body, int(self.choose(4, 8)))

    def odd_mode(self) -> bytes:
        mode = self.choose(*MODES)
        face = draw_face(0)
        if mode == "I;16":
            return encode(Pillow.fromarray(np.asarray(face.convert("L"), np.uint16) * 257), "PNG")
        return encode(face.convert(mode), "JPEG" if mode in ("CMYK", "YCbCr") else "PNG")

    def odd_turn(self) -> bytes:
        """An EXIF orientation that is valid, unknown, of another type, cut short, or refers to itself."""
        exif = Pillow.Exif()
        exif[0x0112] = int(self.choose(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65_535))
        data = exif.tobytes()
        data = self.choose(data, data[: self.rng.integers(len(data))], data[:10] + b"\xff" * 20, data[:4] + b"\0" * 9)
        return encode(draw_face(1), self.choose("JPEG", "PNG", "WEBP"), exif=data)

    def polyglot(self) -> bytes:
        """A photo that is another file too."""
        photo = self.valid()
        others = (b"<script>alert(1)</script>", b"PK\x05\x06" + bytes(18), b"%PDF-1.7\n", b"GIF89a", self.valid())
        other = self.choose(*others)
        return bytes(self.choose(photo + other, other + photo, photo[:20] + other + photo[20:]))

    def extreme_shape(self) -> bytes:
        width, height = self.choose(*EXTREME_SIZES)
        return encode_bomb(self.choose("PNG", "JPEG", "BMP"), "RGB", width, height)

    def no_image(self) -> bytes:
        return bytes(self.choose(b"", b"\0", b"hello", self.rng.bytes(int(self.choose(10, 5_000)))))

    def other_signature(self) -> bytes:
        """The first bytes of one format, and the rest of another."""
        signature = self.choose(
            b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF\xff\xff\xff\x7fWEBPVP8 ", b"GIF89a"
        )
        return bytes(signature) + bytes(self.choose(b"", self.rng.bytes(500), self.valid()))


@lru_cache(4)
def encode_progressive(side: int, is_noisy: int) -> bytes:
    """A progressive JPEG."""
    side = side if not is_noisy else 256
    shade = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8) if is_noisy else None
    picture = Pillow.new("L", (side, side), 99) if shade is None else Pillow.fromarray(shade)
    return encode(picture, "JPEG", progressive=True)
