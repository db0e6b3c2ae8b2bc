"""Find the file of a form that has arrived whole and holds nothing else, without a parser of streams."""

import re

CONTENT_TYPE = re.compile(r"multipart/form-data; boundary=([0-9A-Za-z_-]{1,70})")
FILE_HEADERS = re.compile(
    rb'Content-Disposition: form-data; name="file"; filename="[^"\\\r\n]*"\r\n(?:Content-Type: [^\r\n]*\r\n)?\r\n'
)
ENDS = (b"--\r\n", b"--")


def find_single_file(content_type: str, body: bytes) -> bytes | None:
    """Return the bytes of the part `file`, as a parser of forms would.

    Returns None for a form that has another part, or is written in an unusual way or wrongly: a parser decides on it.
    """
    named = CONTENT_TYPE.fullmatch(content_type)
    if named is None:
        return None
    delimiter = f"\r\n--{named[1]}".encode()
    start = len(delimiter)
    headers = FILE_HEADERS.match(body, start) if body.startswith(delimiter[2:] + b"\r\n") else None
    if headers is None:
        return None
    end = body.find(delimiter, headers.end())
    return body[headers.end() : end] if end >= 0 and body[end + len(delimiter) :] in ENDS else None
