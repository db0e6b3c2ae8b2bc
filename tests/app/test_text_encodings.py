"""The forms in which a store may hold a text."""

import json
import unicodedata
from urllib.parse import quote

import pytest

from app.storage.text_encodings import list_text_encodings

QUOTED = 'Zoë "Quux" O\'Erasmus-😀'
TEXTS = [
    "ann",
    "Zoë",
    'Anna "Nan"',
    "李😀",
    "ﬁlip",
    'O\'Brüen "Q"',
    "İpek",
    r"back\slash",
    "a/b c",
    QUOTED,
    unicodedata.normalize("NFD", QUOTED),
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_found_in_every_form_that_is_stored(text: str) -> None:
    encodings = list_text_encodings(text)
    for form in (text, *(unicodedata.normalize(name, text) for name in ("NFC", "NFD", "NFKC", "NFKD"))):
        stored = {f"so {form} it is", repr(["so", form]), quote(form), quote(form, safe="")}
        for is_ascii in (True, False):
            once = json.dumps({"name": f"so {form} it is"}, ensure_ascii=is_ascii)
            stored |= {once, json.dumps({"text": once}), json.dumps({"text": once}, ensure_ascii=False)}
        for document in stored:
            assert any(encoding in document.encode() for encoding in encodings), document


def test_a_plain_text_has_one_form_and_the_worst_has_few() -> None:
    assert list_text_encodings("ann") == {b"ann"}
    assert len(list_text_encodings(QUOTED)) < 40
    assert list_text_encodings("\ud800") >= {b"\xed\xa0\x80", b"\\ud800"}
