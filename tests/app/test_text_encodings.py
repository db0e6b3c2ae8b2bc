"""The forms in which a store may hold a text."""

import json
import time
import unicodedata
from urllib.parse import quote

import pytest

from app.storage.text_encodings import list_normal_forms, list_text_encodings, unify_forms

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


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0f73", "\uff9e", "\u0344"], ids=ascii)
def test_many_combining_marks_take_a_time_that_grows_as_their_number(marks: str) -> None:
    """64 KiB of them took five seconds."""
    text = "b a" + marks[0] * (16_000 // len(marks)) + marks[-1] * (16_000 // len(marks))
    start = time.process_time()
    forms = list_normal_forms(text)
    assert unify_forms(text) in forms
    assert time.process_time() - start < 1


def test_as_many_marks_as_any_script_has_are_normalised_as_unicode_says() -> None:
    text = "Zo" + "\u0308\u0316" * 15 + "e 李"
    assert unify_forms(text) == unicodedata.normalize("NFKC", text)
