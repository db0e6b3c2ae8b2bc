"""The forms in which a store may hold a text: a search for a name looks for all of them."""

import json
import unicodedata
from typing import Literal
from urllib.parse import quote

NORMAL_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
MAX_DEPTH = 3
"""How often JSON may escape a text: a column of JSON that holds a JSON text that holds another."""


def list_normal_forms(text: str) -> set[str]:
    """Return a text as it is, with its accents composed and decomposed, and with plain letters for ligatures."""
    return {text, *(unicodedata.normalize(form, text) for form in NORMAL_FORMS)}


def unify_forms(text: str) -> str:
    """Return what all normal forms of a text have in common."""
    return unicodedata.normalize("NFKC", text)


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
