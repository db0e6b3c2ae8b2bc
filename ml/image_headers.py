"""Read what a picture needs from its metadata, and leave the rest out, before a decoder parses it.

Metadata of untrusted files is costly: 64 KB of EXIF can have Pillow allocate 300 MB, and a million empty segments keep
it busy for seconds. Formats: JPEG (ITU-T T.81, Annex B), PNG (W3C, third edition), EXIF (CIPA DC-008).
"""

import re
import struct
from typing import NamedTuple

from ml.errors import Unreadable

MAX_SEGMENTS = 20_000
"""Most segments of a JPEG, and most chunks of a PNG."""
MAX_TEXT_BYTES = 2**16
"""PNG: longer texts are left out, unread. Some programs write EXIF and XMP as texts."""
MAX_QUICK_SCANS = 16
"""A progressive JPEG has about ten scans. Each further one costs a pass over all pixels."""
MAX_SCANNED_PIXELS = 800_000_000
"""Most pixels times scans of a JPEG that has more than MAX_QUICK_SCANS."""
MAX_RUN_LENGTH_PIXELS = MAX_RUN_LENGTH_BYTES = 2_000_000
"""Of a run-length encoded BMP, which Pillow decodes in Python, holding the lock of the interpreter."""
RUN_LENGTH_ENCODINGS = (1, 2)
"""Values of the field `compression` of a BMP."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
SOS, EOI, APP0, APP1, APP14, APP15, COM = 0xDA, 0xD9, 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
EXIF_PREFIX, XMP_PREFIX = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
ORIENTATION_TAG = 0x0112
VALUE_FORMATS = {1: "B", 3: "H", 4: "I"}
"""The types of EXIF in which an orientation may be stored."""


class StrippedPicture(NamedTuple):
    """A file without its metadata, and its EXIF and XMP data, empty if there is none."""

    data: bytes
    exif: bytes = b""
    xmp: bytes = b""


def strip_metadata(data: bytes) -> StrippedPicture:
    """Return a JPEG or PNG without what does not change its pixels; other files as they are. Raises Unreadable."""
    if data.startswith(b"\xff\xd8\xff"):
        return _strip_jpeg(data)
    return _strip_png(data) if data.startswith(PNG_SIGNATURE) else StrippedPicture(data)


def _strip_jpeg(data: bytes) -> StrippedPicture:
    kept, exif, xmp = [data[:2]], b"", b""
    position, count = 2, 0
    while (position := data.find(b"\xff", position)) >= 0:
        marker, end = _read_segment(data, position)
        if marker in (SOS, EOI):
            break
        count = _count_segment(count)
        body = data[position + 4 : end]
        if marker == APP1 and not exif and body.startswith(EXIF_PREFIX):
            exif = body
        elif marker == APP1 and body.startswith(XMP_PREFIX):
            xmp = body
        if marker in (APP0, APP14) or not (APP0 <= marker <= APP15 or marker == COM):
            kept.append(data[position:end])
        position = end
    if position >= 0:
        kept.append(data[position:])
    return StrippedPicture(b"".join(kept), exif, xmp)


def _read_segment(data: bytes, position: int) -> tuple[int, int]:
    """Return the marker at `position`, and where its segment ends. Fill bytes and markers alone have no body."""
    marker = data[position + 1] if position + 1 < len(data) else 0
    if marker in (0x00, 0x01, 0xFF) or 0xD0 <= marker <= 0xD9:
        return marker, position + (1 if marker == 0xFF else 2)
    return marker, position + 2 + max(2, int.from_bytes(data[position + 2 : position + 4], "big"))


def _count_segment(count: int) -> int:
    if count == MAX_SEGMENTS:
        raise Unreadable("InvalidImageFormat", f"the picture has more than {MAX_SEGMENTS:,} segments")
    return count + 1


def check_decoding_time(data: bytes, pixels: int) -> None:
    """Check that a stripped picture of so many pixels is decoded in about a second. Raises Unreadable."""
    _check_scans(data, pixels)
    is_run_length_encoded = data.startswith(b"BM") and int.from_bytes(data[30:34], "little") in RUN_LENGTH_ENCODINGS
    if is_run_length_encoded and (pixels > MAX_RUN_LENGTH_PIXELS or len(data) > MAX_RUN_LENGTH_BYTES):
        limit = f"at most {MAX_RUN_LENGTH_PIXELS:,} pixels and {MAX_RUN_LENGTH_BYTES:,} bytes are allowed"
        raise Unreadable("ImageTooLarge", f"the photo is a run-length encoded BMP, of which {limit}")


def _check_scans(data: bytes, pixels: int) -> None:
    """Check that the passes over the pixels of a progressive JPEG are bounded."""
    if not data.startswith(b"\xff\xd8") or data.count(b"\xff\xda") <= MAX_QUICK_SCANS:
        return
    position, scans, count = 2, 0, 0
    while match := re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]").search(data, position):
        marker, position = _read_segment(data, match.start())
        if marker == EOI:
            return
        count, scans = _count_segment(count), scans + (marker == SOS)
        if scans > MAX_QUICK_SCANS and scans * pixels > MAX_SCANNED_PIXELS:
            raise Unreadable("ImageTooLarge", f"the photo has more than {scans - 1} scans of {pixels:,} pixels")


def _strip_png(data: bytes) -> StrippedPicture:
    kept, exif, text_bytes = [PNG_SIGNATURE], b"", 0
    position, count = len(PNG_SIGNATURE), 0
    while position + 12 <= len(data):
        count = _count_segment(count)
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        if kind == b"eXIf":
            exif = data[position + 8 : end - 4]
        if kind in TEXT_CHUNKS:
            text_bytes += end - position
        is_critical = kind[:1].isupper() or kind == b"tRNS"
        if is_critical or (kind in TEXT_CHUNKS and text_bytes <= MAX_TEXT_BYTES):
            kept.append(data[position:end])
        position = end
        if kind == b"IEND":
            break
    else:
        kept.append(data[position:])
    return StrippedPicture(b"".join(kept), exif)


def read_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation that EXIF states, else XMP: 1 (upright) to 8; 1 if neither can be read."""
    turn = _read_exif_orientation(exif.removeprefix(EXIF_PREFIX))
    if turn is None and (match := re.search(rb'tiff:Orientation(?:="|>)([0-9])', xmp)):
        turn = int(match[1])
    return turn if turn is not None and 1 <= turn <= 8 else 1


def _read_exif_orientation(exif: bytes) -> int | None:
    """Return the value of the tag in the first directory; None if there is none, or the data is cut short."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    [start] = struct.unpack_from(f"{order}I", exif, 4)
    [count] = struct.unpack_from(f"{order}H", exif, start) if start + 2 <= len(exif) else [0]
    for entry in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", exif, entry)
        if tag == ORIENTATION_TAG and kind in VALUE_FORMATS and length == 1:
            return int(struct.unpack_from(order + VALUE_FORMATS[kind], exif, entry + 8)[0])
    return None
