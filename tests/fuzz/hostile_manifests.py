"""Draw hostile manifests: deep, huge, wrongly encoded, with zero bytes, or with a million columns."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = ("manifest.csv", "manifest.jsonl")
DEPTHS = (63, 64, 65, 900, 50_000)
LENGTHS = (1_000, 4_300, 131_072, 1_100_000)
ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7")
VALUES = (
    "", "..", ".", "\0", "a\0b", "\ud800", "\u202e", "\ufeff", "NaN", "Infinity", "1e999", "[", "[]", "null", "{}",
    '{"a": NaN}', '{"a": "\\u0000"}', '{"\\ud800": 1}', "../../etc/passwd", "x" * 256, "ü" * 200, "\r", "\n", '"',
    "a/b", "hero", "distractor",
)  # fmt: skip
COLUMNS = ("file", "subject", "external_id", "external_image_id", "role", "source", "metadata", "", "x", "\0")


class HostileManifests:
    """Draws manifests for an archive that holds the photos `files`."""

    def __init__(self, rng: np.random.Generator, files: tuple[str, ...]) -> None:
        self.rng, self.files = rng, files
        self._csv_kinds: tuple[Callable[[], bytes], ...] = (
            self._draw_csv_rows,
            lambda: self._draw_noise(b'file,\r\n"'),
            lambda: b"file" + b",c" * self._choose((998, 999, 1_000, 400_000, 1_000_000)) + b"\np0/0.png" + b",1" * 900,
            lambda: b"file,x\n" + b'p0/0.png,"' + b"line\n" * self._choose(LENGTHS) + b'"\n',
            lambda: b"file" + b"".join(b",c%d" % n for n in range(600)) + b"\n" + self._draw_long_row(),
            lambda: b"file\n" + b"p0/0.png" + b"," * self._choose(LENGTHS) + b"\n",
            lambda: b"\n" * self._choose(LENGTHS) + b"file\n",
            lambda: b"file\n" + b"".join(b"%d.png\n" % n for n in range(self._choose(LENGTHS[:3]))),
        )
        self._json_kinds: tuple[Callable[[], bytes], ...] = (
            self._draw_json_rows,
            lambda: self._draw_noise(b'{"file": [],}\n'),
            lambda: self._nest(b'{"file": "p0/0.png", "x": ', b"[", b"]"),
            lambda: self._nest(b'{"file": "p0/0.png", "metadata": ', b'{"a": ', b"}"),
            lambda: self._nest(b"", b"[", b"]"),
            lambda: b'{"file": "p0/0.png", "metadata": "' + b"[" * self._choose(DEPTHS) + b'"}',
            lambda: b'{"file": "p0/0.png", "x": ' + b"9" * self._choose(LENGTHS) + b"}",
            lambda: b'{"file": "p0/0.png", "x": -0.' + b"9" * self._choose(LENGTHS) + b"e-999999999}",
            lambda: b'{"file": "p0/0.png", "x": "' + "😀".encode() * self._choose(LENGTHS) + b'"}',
            lambda: b'{"file": "p0/0.png"' + b', "x": 1' * self._choose(LENGTHS[:3]) + b"}",
            lambda: b"{" + b",".join(b'"%d": 1' % n for n in range(self._choose((1_000, 60_000, 150_000)))) + b"}",
            lambda: b" " * self._choose(LENGTHS) + b'{"file": "p0/0.png"}',
        )

    def draw(self) -> tuple[str, bytes]:
        """Draw one manifest. Returns the name under which it is to be packed, and its bytes."""
        name = self._choose(NAMES)
        data: bytes = self._choose(self._csv_kinds if name.endswith(".csv") else self._json_kinds)()
        if self.rng.random() < 0.1:
            data = data[:200_000].decode("utf-8", "replace").encode(self._choose(ENCODINGS), "replace")
        if self.rng.random() < 0.1:
            at = int(self.rng.integers(len(data) + 1))
            data = data[:at] + self._choose((b"\0", b"\xff", b"\xed\xa0\x80", b"\r", b'"', b"\x1a")) + data[at:]
        return name, data

    def _choose(self, options: tuple[Any, ...]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def _draw_value(self) -> str:
        return self._choose(self.files) if self.rng.random() < 0.3 else self._choose(VALUES)

    def _draw_csv_rows(self) -> bytes:
        count = int(self.rng.integers(1, 9))
        header = ["file"] * (self.rng.random() < 0.8) + [self._choose(COLUMNS) for _ in range(count)]
        rows = [[self._choose(self.files), *(self._draw_value() for _ in header[1:])] for _ in range(count)]
        return "\n".join(",".join(row) for row in [header, *rows]).encode("utf-8", "surrogatepass")

    def _draw_json_rows(self) -> bytes:
        rows = []
        for _ in range(int(self.rng.integers(1, 9))):
            row: dict[str, Any] = {self._choose(COLUMNS): self._draw_value() for _ in range(3)}
            row["file"] = self._choose((*self.files, 5, None, [], {}, True, 1.5, 10**400, float("inf")))
            row["metadata"] = self._choose(({}, [], None, "x", {"": None}, {"x": {"y": [1, "\0"]}}, "{}", "5", 7))
            rows.append(json.dumps(row))
        return "\n".join(rows).encode()

    def _draw_long_row(self) -> bytes:
        """Draw the row of 600 columns that goes over many lines, each of an allowed length."""
        field = b',"' + (b"x" * 1_000 + b"\n") * self._choose((1, 120)) + b'"'
        return b"p0/0.png" + field * 600 + b"\n"

    def _nest(self, start: bytes, opening: bytes, closing: bytes) -> bytes:
        depth = self._choose(DEPTHS)
        return start + opening * depth + b"1" * bool(start) + closing * depth + b"}" * bool(start)

    def _draw_noise(self, alphabet: bytes) -> bytes:
        letters = np.frombuffer(alphabet + b"\0\xff", np.uint8)
        return self.rng.choice(letters, int(10 ** self.rng.uniform(0, 5))).tobytes()
