"""Keep ids of subjects apart: no two of them look the same.

An id is stored composed (NFC), and has no invisible character. Earlier versions stored ids as they were sent.
"""

import re
import unicodedata
from typing import Literal

NORMAL_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
INVISIBLE_CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Zs")
INVISIBLE_SYMBOLS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U0001d159\U000e0000-\U000e0fff]"
)
"""Characters of other categories that are drawn as nothing: variation selectors, fillers, a joiner, a blank of Braille,
a note without a head, and what Unicode reserves for such characters."""
NON_JOINER, JOINER, VIRAMA = "\u200c", "\u200d", 9
"""Persian and Indic spellings have joiners. VIRAMA: the combining class of the sign that suppresses a vowel"""
NEVER_JOINED = re.compile(
    "[\u0621-\u0625\u0627\u0629\u062f-\u0632\u0648\u0671-\u0677\u0688-\u0699\u06c0\u06c3-\u06cb\u06cd\u06cf\u06d2\u06d3\u06d5]"
)
"""Arabic letters that do not join the next one, so that nobody sees a non-joiner after them."""


def compose(subject_id: str) -> str:
    """Return the form in which a new id is stored."""
    return unicodedata.normalize("NFC", subject_id)


def list_spellings(subject_id: str) -> list[str]:
    """List the forms in which an id may be stored: as it was sent, composed and decomposed."""
    return list(dict.fromkeys([subject_id, *(unicodedata.normalize(form, subject_id) for form in NORMAL_FORMS)]))


def check_visible(name: str) -> str:
    """Refuse blanks and characters by which two names differ and look the same. Raises ValueError."""
    if name != name.strip(" "):
        raise ValueError("may not begin or end with a blank (U+0020 SPACE)")
    if name.isascii() and name.isprintable():
        return name
    for before, character, after in zip(f" {name}", name, f"{name[1:]} ", strict=False):
        if _is_invisible(character) and not _is_spelling(before, character, after):
            called = unicodedata.name(character, "a control character")
            raise ValueError(f"may not contain the invisible character U+{ord(character):04X} {called}")
    return name


def _is_invisible(character: str) -> bool:
    is_symbol = INVISIBLE_SYMBOLS.match(character) is not None
    return character != " " and (is_symbol or unicodedata.category(character) in INVISIBLE_CATEGORIES)


def _is_spelling(before: str, character: str, after: str) -> bool:
    """Whether a character is a joiner that changes how its neighbours look: see RFC 5892, appendix A."""
    if character not in (NON_JOINER, JOINER) or not after.isalpha():
        return False
    if unicodedata.combining(before) == VIRAMA:
        return True
    is_between_arabic = unicodedata.bidirectional(before) == "AL" == unicodedata.bidirectional(after)
    return character == NON_JOINER and is_between_arabic and NEVER_JOINED.match(before) is None
