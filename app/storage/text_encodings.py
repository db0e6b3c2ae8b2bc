"""The forms in which a store may hold a text: a search for a name looks for all of them."""

import json
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal
from urllib.parse import quote

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
NORMAL_FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
MAX_MARKS = 30
"""Combining marks in a row that are normalised together, as many as the Stream-Safe Text Format of Unicode has."""
MAX_KEPT_CHARACTERS = 4096
MAX_DEPTH = 3
"""How often JSON may escape a text: a column of JSON that holds a JSON text that holds another."""


def list_normal_forms(text: str) -> set[str]:
    """Return a text as it is, with its accents composed and decomposed, and with plain letters for ligatures."""
    return {text, *(_normalise(form, text) for form in NORMAL_FORMS)}


def unify_forms(text: str) -> str:
    """Return what all normal forms of a text have in common."""
    return _normalise("NFKC", text)


def _normalise(form: Form, text: str) -> str:
    """Return a normal form of a text, in which more than MAX_MARKS in a row are put in order by parts.

    Python orders them in a time that grows as the square of their number: 64 KiB of them would take seconds.
    """
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, part) for part in _part_marks(text))


def _part_marks(text: str) -> Iterator[str]:
    """Yield a text in parts, none of which has more than MAX_MARKS in a row."""
    start, marks = 0, 0
    for at, character in enumerate(text):
        marks = marks + 1 if _is_mark(character) else 0
        if marks > MAX_MARKS:
            yield text[start:at]
            start, marks = at, 1
    yield text[start:]


@lru_cache(MAX_KEPT_CHARACTERS)
def _is_mark(character: str) -> bool:
    """Whether it combines with the character before, or is replaced by one that does."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) != 0


def list_text_encodings(text: str) -> set[bytes]:
    """Return the bytes of a text in UTF-8: as it is, in every normal form of Unicode, and escaped.

    Escaped is as in JSON, with UTF-8 or in ASCII, also up to MAX_DEPTH times, as a JSON text within another is; as
    `repr` quotes it in messages; and as in a URL.
    """
    return {
        encoding.encode("utf-8", "surrogatepass")
        for form in list_normal_forms(text)
        for encoding in (form, *_escape_repeatedly(form), repr(form)[1:-1], *_quote(form))
    }


def _escape_repeatedly(text: str) -> set[str]:
    forms, last = set[str](), {text}
    for _ in range(MAX_DEPTH):
        last = set[str]().union(*map(_escape, last))
        forms |= last
    return forms


def _escape(text: str) -> set[str]:
    return {json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)}


def _quote(text: str) -> set[str]:
    return {quote(text, safe, errors="surrogatepass") for safe in ("", "/")}
