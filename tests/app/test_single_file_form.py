"""The file of a usual form is found as a parser of forms finds it; whatever else is sent is left to the parser."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.deps.uploads.single_file_form import find_single_file

CONTENT_TYPE = "multipart/form-data; boundary=one-b"
HEAD = b'--one-b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
END = b"\r\n--one-b--\r\n"
PIECES = [
    b"\r\n", b"--", b"--one-b", b"\r\n--one-b", END, HEAD, b"\r", b"\n", b"\0", b'"', b" ", b"file", b"name=",
    b"-", b"x",
]  # fmt: skip


def parse(body: bytes) -> list[tuple[str, bytes]]:
    """Return the names and contents of the parts as Starlette's parser finds them; fields are marked."""

    async def stream() -> AsyncIterator[bytes]:
        yield body

    async def read() -> list[tuple[str, bytes]]:
        form = await MultiPartParser(Headers({"content-type": CONTENT_TYPE}), stream()).parse()
        parts = [
            (name, await part.read()) if isinstance(part, UploadFile) else (f"field {name}", part.encode())
            for name, part in form.multi_items()
        ]
        await form.close()
        return parts

    return asyncio.run(read())


@pytest.mark.parametrize("photo", [b"photo", b"", b"\r\n", b"--one-b", b"\r\n--one-a", b"a\0b"])
def test_the_file_of_a_usual_form_is_found(photo: bytes) -> None:
    without_type = HEAD.replace(b"Content-Type: image/jpeg\r\n", b"")
    for body in (HEAD + photo + END, HEAD + photo + END[:-2], without_type + photo + END):
        assert find_single_file(CONTENT_TYPE, body) == photo
        assert parse(body) == [("file", photo)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD,
        HEAD + b"photo",
        HEAD + b"photo" + END[:-3],
        HEAD + b"photo" + END + b"more",
        HEAD + b"photo\r\n" + HEAD + b"second" + END,
        HEAD + b"photo\r\n--one-bx" + END,
        HEAD.replace(b'"file"', b'"other"') + b"photo" + END,
        HEAD.replace(b'"file"', b'"FILE"') + b"photo" + END,
        HEAD.replace(b'; filename="a.jpg"', b"") + b"photo" + END,
        HEAD.replace(b"Content-Type", b"Content-Transfer-Encoding") + b"photo" + END,
    ],
)
def test_other_forms_are_left_to_the_parser(body: bytes) -> None:
    assert find_single_file(CONTENT_TYPE, body) is None


@pytest.mark.parametrize(
    "content_type",
    [
        "", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=one-b",
        'multipart/form-data; boundary="one-b"', "multipart/form-data; boundary=one-b; charset=utf-8",
        "multipart/form-data; boundary=two-b", "multipart/form-data; boundary=one-b\n",
    ],
)  # fmt: skip
def test_other_content_types_are_left_to_the_parser(content_type: str) -> None:
    assert find_single_file(content_type, HEAD + b"photo" + END) is None


def test_drawn_forms_are_read_as_by_the_parser() -> None:
    draw, found = random.Random(3), 0
    for _ in range(3000):
        body = bytearray(HEAD + b"".join(draw.choices(PIECES, k=draw.randrange(6))) + END)
        for _ in range(draw.choice((0, 0, 1, 3))):
            place = draw.randrange(len(body))
            body[place : place + draw.randrange(3)] = draw.choice(PIECES)
        photo = find_single_file(CONTENT_TYPE, bytes(body))
        if photo is None:
            continue
        found += 1
        try:
            assert parse(bytes(body)) == [("file", photo)], body
        except MultiPartException as error:
            raise AssertionError(bytes(body)) from error
    assert 500 < found < 2900
