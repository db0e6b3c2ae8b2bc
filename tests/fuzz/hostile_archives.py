"""Draw hostile archives: damaged, lying, deep, chained, overlapping, or small ones that unpack to much."""

import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ml.images import encode_png
from tests.fuzz.archive_bytes import (
    make_directory_end,
    make_extended_header,
    make_gzip,
    make_tar,
    make_zip,
    mend_checksum,
)
from tests.fuzz.hostile_manifests import HostileManifests

PHOTOS = {
    f"p{n}/{n}.png": encode_png(np.random.default_rng(n).integers(40, 215, (170, 100, 3), np.uint8)) for n in range(3)
}
NAMES = (
    "../evil.png", "/etc/evil.png", "a/../../x.png", "C:\\x.png", "a\0b.png", "a/\0", "", ".", "/", "a//b.png", "\n",
    "x" * 5_000, "a/" * 500 + "x.png", "a/" * 600, "\udcff.png", "\udcff/x.png", "\u202egnp.x", "a\x01/x.png", "CON",
    "manifest.csv/x", "..\\x.png", "./../x", "p0/0.png/../x", "x" * 256 + "/x.png", "'; drop table faces --/x.png",
    "\x7f.png", "~/x.png", "%2e%2e/x.png", "a/./b.png", "p0/0.PNG", "\ufeff/x.png",
)  # fmt: skip
HEADER_FIELDS = ((0, 100), (100, 108), (124, 136), (156, 157), (257, 265), (345, 500), (148, 156))
FIELD_BYTES = (b"\xff", b"\x80", b"7", b"\0", b"9", b"-", b" ", b"S", b"M", b"V", b"L", b"x", b"g", b"5")
MEMBER_TYPES = (b"1", b"2", b"3", b"4", b"6", b"7", b"S", b"M", b"Z", b"D", b"V")
NUMBERS = (0, 1, 2**16 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
REPEATED_BYTES = 60_000


class HostileArchives:
    """Draws archives from a seed. The same seed draws the same archives."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.manifests = HostileManifests(self.rng, tuple(PHOTOS))
        self._kinds: dict[str, Callable[[], bytes]] = {
            "pax digits": lambda: make_extended_header(b"1" * self._draw_size()) + make_tar(PHOTOS),
            "pax lengths": self._draw_pax_lengths,
            "chained headers": self._draw_chain,
            "noise as a header": lambda: self._draw_header(self.rng.bytes(self._draw_size())) + make_tar(PHOTOS),
            "changed tar header": self._draw_changed_header,
            "odd names in a tar": lambda: make_tar({self._choose(NAMES): self._draw_content(), **PHOTOS}),
            "odd names in a zip": lambda: make_zip({self._choose(NAMES): self._draw_content(), **PHOTOS}),
            "links and devices": self._draw_special_members,
            "manifest": self._draw_manifest,
            "two manifests": lambda: self._pack({**dict(self.manifests.draw() for _ in range(2)), **PHOTOS}),
            "gzip bomb": lambda: make_gzip(bytes(10 * self._draw_size())),
            "gzip in gzip": lambda: make_gzip(make_gzip(make_tar(PHOTOS))),
            "gzip of noise": lambda: make_gzip(self.rng.bytes(self._draw_size())),
            "many gzip members": lambda: make_gzip(b"") * (self._draw_size() // 50) + make_gzip(make_tar(PHOTOS)),
            "long name in gzip": lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * self._draw_size(),
            "zip bomb": lambda: make_zip({"a.png": bytes(20 * self._draw_size())}),
            "ratio of the whole": self._draw_many_small_bombs,
            "overlapping entries": self._draw_overlap,
            "zip64 numbers": self._draw_zip64,
            "changed zip directory": self._draw_changed_directory,
            "empty deflate blocks": self._draw_empty_blocks,
            "magic and noise": self._draw_noise,
            "truncated": lambda: (data := self._draw_whole())[: int(self.rng.integers(1, len(data)))],
            "changed bytes": self._draw_changed_bytes,
            "two archives": lambda: self._draw_whole() + self._draw_whole(),
            "many entries": lambda: self._pack({f"{n}.png": b"" for n in range(self._draw_size() // 2_000)}),
            "whole": self._draw_whole,
        }

    def draw(self) -> tuple[str, bytes]:
        """Draw one archive. Returns its kind and its bytes."""
        kind = self._choose(tuple(self._kinds))
        return kind, self._kinds[kind]()

    def _choose(self, options: tuple[Any, ...]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def _draw_size(self) -> int:
        """Draw a size of 100 bytes to 1 MB, small ones as often as large ones."""
        return int(10 ** self.rng.uniform(2, 6))

    def _draw_content(self) -> bytes:
        return self._choose((b"x", b"", *PHOTOS.values()))

    def _pack(self, files: dict[str, bytes]) -> bytes:
        kind = self._choose(("tar", "tar.gz", "zip"))
        if kind == "zip":
            return make_zip(files)
        return make_gzip(make_tar(files)) if kind == "tar.gz" else make_tar(files)

    def _draw_whole(self) -> bytes:
        return self._pack(PHOTOS)

    def _draw_manifest(self) -> bytes:
        name, data = self.manifests.draw()
        return self._pack({name: data, **PHOTOS})

    def _draw_header(self, data: bytes) -> bytes:
        return make_extended_header(data, self._choose((b"x", b"g", b"X", b"L", b"K")))

    def _draw_pax_lengths(self) -> bytes:
        length = self._choose((b"0", b"-1", b"3", b"10", b"9" * 20, b"1e3", b"0x10", b"", b" "))
        key = self._choose((b"path", b"size", b"GNU.sparse.map", b"hdrcharset", b"", b"p\0th"))
        value = self._choose((b"", b"../x", b"-5", b"9" * 50, b"1" * 3_000, b"\xff" * 20, b"a=b"))
        if self.rng.random() < 0.5:  # the length that is right
            length = b"%d" % (len(key) + len(value) + 6 if len(value) < 90 else len(key) + len(value) + 7)
        record = length + b" " + key + b"=" + value + b"\n"
        return make_extended_header(record * int(self.rng.integers(1, 100))) + make_tar(PHOTOS)

    def _draw_chain(self) -> bytes:
        header = self._draw_header(self._choose((b"12 mtime=12\n", b"x\0", b"10 path=x\n", b"")))
        return header * int(self.rng.integers(1, 5_000)) + make_tar(PHOTOS)

    def _draw_changed_header(self) -> bytes:
        """Overwrite one field of a header, and make its checksum right again unless that is the field."""
        data = bytearray(make_tar(PHOTOS))
        start, end = self._choose(HEADER_FIELDS)
        is_repeated = self.rng.random() < 0.7
        data[start:end] = self._choose(FIELD_BYTES) * (end - start) if is_repeated else self.rng.bytes(end - start)
        if start != 148:
            mend_checksum(data)
        return bytes(data)

    def _draw_special_members(self) -> bytes:
        return make_tar({"x.png": b""}, self._choose(MEMBER_TYPES), self._choose(("/etc/passwd", "x.png", "../../x")))

    def _draw_many_small_bombs(self) -> bytes:
        return make_zip({f"{n}.png": bytes(REPEATED_BYTES) for n in range(self._draw_size() // 5_000)})

    def _draw_overlap(self) -> bytes:
        """Let all entries of a zip name the bytes of the first, or the bytes from a step after the one before."""
        count, step = int(10 ** self.rng.uniform(0.3, 4.3)), int(self._choose((0, 0, 1, 31)))
        body = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = body.compress(bytes(REPEATED_BYTES)) + body.flush()
        numbers = (0, 0, zlib.crc32(bytes(REPEATED_BYTES)), len(packed), REPEATED_BYTES, 1, 0)
        local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 8, *numbers) + b"a"
        entries = b"".join(
            struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 8, *numbers, 0, 0, 0, 0, step * n) + b"a"
            for n in range(count)
        )
        return local + packed + entries + make_directory_end(count, len(entries), len(local) + len(packed))

    def _draw_zip64(self) -> bytes:
        data = make_zip(PHOTOS)
        start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
        numbers = [int(self._choose(NUMBERS)) for _ in range(5)]
        if self.rng.random() < 0.5:  # in an entry
            entry = bytearray(data[start:end])
            name, extra = struct.unpack_from("<2H", entry, 28)
            entry[20:28], entry[42:46] = b"\xff" * 8, b"\xff" * 4
            entry[30:32] = struct.pack("<H", 28 + extra)
            entry[46 + name : 46 + name] = struct.pack("<2H3Q", 1, 24, *numbers[:3])
            return data[:start] + entry + make_directory_end(3, len(entry), start)
        end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, *numbers[:4])
        locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, self._choose((end, *numbers)), 1)
        return data[:end] + end64 + locator + make_directory_end(0xFFFF, 2**32 - 1, 2**32 - 1)

    def _draw_changed_directory(self) -> bytes:
        data = bytearray(make_zip(PHOTOS))
        start = data.index(b"PK\x01\x02")
        for _ in range(int(self.rng.integers(1, 4))):
            data[int(self.rng.integers(start, len(data)))] = int(self._choose((0, 1, 0x7F, 0x80, 0xFF)))
        return bytes(data)

    def _draw_empty_blocks(self) -> bytes:
        data = bytearray(make_zip({"a.png": b"\0\0\0\xff\xff" * (self._draw_size() // 5)}, zipfile.ZIP_STORED))
        start = data.index(b"PK\x01\x02")
        data[start + 10 : start + 12] = b"\x08\0"
        return bytes(data)

    def _draw_noise(self) -> bytes:
        ustar = bytes(257) + b"ustar\0" + b"00"
        magic = self._choose((b"\x1f\x8b\x08\0", b"PK\x03\x04", b"PK\x05\x06", ustar, bytes(512), b""))
        return magic + self.rng.bytes(self._draw_size())

    def _draw_changed_bytes(self) -> bytes:
        data = bytearray(self._draw_whole())
        for at in self.rng.integers(0, len(data), int(self.rng.integers(1, 20))):
            data[at] = int(self.rng.integers(256))
        return bytes(data)
