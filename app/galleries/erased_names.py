"""How stored texts may name what is erased, and what replaces the names."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from app.db.tables import Erasure
from app.galleries.erasures import BEGUN_AT, ERASED, MERGED, read_until
from app.storage.text_encodings import list_normal_forms, list_text_encodings, unify_forms

UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WORD = re.compile(r"[^\W_]+")
MIN_LETTERS, MIN_DIGITS = 3, 5
MIN_SURNAME = 4
"""Characters of a subject's id, and of one of its words, that is looked for in texts; shorter ones mean much else."""
PERSON_FIELDS = frozenset({"subject", "subjects", "subject_id", "external_id", "external_image_id"})
"""Fields whose strings are each the name of one person or photo."""
NAME_FIELDS = PERSON_FIELDS | {"name", "file"}
"""Fields of a report whose strings are names."""
TEXT_FIELDS = frozenset({"name", "file", "reason", "detail", "problem", "path", "missing_queries"})
"""Fields whose strings a person's name may be a part of, as it may of every text with a space in it."""


@dataclass(frozen=True)
class ErasedNames:
    """How answers, items and reports may name what one erasure removes.

    until: rows that were stored later belong to another subject or collection of the same name
    begun_at: a moment after which nobody has read the rows
    faces: ids; subject: the subject's id; names: texts by which faces and subject are called, in every normal form
    named_until: what was begun later names another subject of the same name, as after a merge; infinite: the erased one
    subject_created_at: when the subject was created, of one that was merged into the erased one
    """

    erasure_id: str
    collection: str
    is_whole: bool
    until: float
    faces: frozenset[str]
    subject: str | None
    names: frozenset[str]
    begun_at: float = -math.inf
    named_until: float = math.inf
    subject_created_at: float | None = None

    @property
    def jobs_until(self) -> float:
        """Jobs that were created later have not read what is erased."""
        return max(self.until, self.begun_at)

    @classmethod
    def of(cls, erasure: Erasure) -> "ErasedNames":
        """Read the targets of an erasure."""
        targets = erasure.targets
        return cls(
            erasure.id,
            erasure.collection_id,
            erasure.target == "collection",
            read_until(erasure),
            frozenset(targets["faces"]),
            targets["subject"],
            frozenset(),
            targets.get(BEGUN_AT, -math.inf),
        ).add_names(targets["names"])

    @classmethod
    def list_of(cls, erasure: Erasure) -> list["ErasedNames"]:
        """Read the targets of an erasure: what is erased, then each subject that was merged into the erased one before.

        Whoever was enrolled under the id of such a subject after its merge is somebody else.
        """
        names = [cls.of(erasure)]
        for merged in erasure.targets.get(MERGED, ()):
            one = cls(
                erasure.id,
                erasure.collection_id,
                is_whole=False,
                until=merged["merged_at"],
                faces=frozenset(),
                subject=merged["id"],
                names=frozenset(),
                named_until=merged["merged_at"],
                subject_created_at=merged["created_at"],
            )
            names.append(one.add_names(filter(None, (merged["id"], merged["external_id"]))))
        return names

    def add_names(self, names: Iterable[str]) -> "ErasedNames":
        """Return the same with more names."""
        forms = (form for name in names for form in list_normal_forms(name))
        return replace(self, names=self.names.union(forms))

    def has_subject(self, text: str, folded: str | None = None) -> bool:
        """Whether the subject's id is a word, or some words, of a text, in any encoding. Short ids never are.

        folded: the text as `fold` returns it, of a long one that is searched for several subjects
        """
        if self.subject is None or not _is_distinctive(self.subject):
            return False
        return has_form(text, self.subject) or has_words(text, self.subject, folded)

    def shares_word(self, name: str) -> bool:
        """Whether the name of a file has the subject's id, or only a word of it: a surname."""
        if self.subject is None:
            return False
        words = {word for word in WORD.findall(fold(self.subject)) if len(word) >= MIN_SURNAME and not word.isdigit()}
        return self.has_subject(name) or not words.isdisjoint(WORD.findall(fold(name)))

    def is_in_folder(self, path: str) -> bool:
        """Whether the subject's id is a folder of a path, in any normal form, with or without blanks around it."""
        if self.subject is None:
            return False
        return unify_forms(self.subject).strip() in (unify_forms(folder).strip() for folder in path.split("/")[:-1])

    def is_quoted(self, text: str) -> bool:
        """Whether a text has the subject's id between quotes, as messages write it."""
        return self.subject is not None and any(repr(form) in text for form in list_normal_forms(self.subject))


def _is_distinctive(subject: str) -> bool:
    """Whether a word is likely to be the subject if it looks like it: two letters or four digits are not."""
    return len(subject) >= (MIN_DIGITS if subject.isdigit() else MIN_LETTERS)


def has_words(text: str, name: str, folded: str | None = None) -> bool:
    """Whether a text has the words of a name in a row, whatever signs part them: Ada_Example-01, ada.example"""
    words, folded = WORD.findall(fold(name)), fold(text) if folded is None else folded
    if not words or not all(word in folded for word in words):  # faster by far
        return False
    return f" {' '.join(words)} " in f" {' '.join(WORD.findall(folded))} "


def fold(text: str) -> str:
    """Return what all spellings of a text have in common, in whatever normal form and case."""
    return unify_forms(text).casefold()


def has_form(text: str, name: str) -> bool:
    """Whether a text has a name in any encoding between signs, or after an escaped one such as `\\n` or `%2F`."""
    forms, pattern = _list_forms(name)
    return any(form in text for form in forms) and pattern.search(text) is not None


@lru_cache(1024)
def _list_forms(name: str) -> tuple[list[str], re.Pattern[str]]:
    """Return the encodings of a name, and what matches them between signs."""
    forms = sorted((form.decode(errors="replace") for form in list_text_encodings(name)), key=len, reverse=True)
    start = r"(?:(?<![^\W_])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
    return forms, re.compile(rf"{start}(?:{'|'.join(map(re.escape, forms))})(?![^\W_])")


def scrub(value: Any, erased: ErasedNames, field: str = "") -> Any:
    """Return a JSON value in which each string that names an erased face or person is replaced. field: its name"""
    if isinstance(value, str):
        return ERASED if _names_erased(value, erased, field) else value
    if isinstance(value, dict):
        return {name: scrub(member, erased, name) for name, member in value.items()}
    if isinstance(value, list):
        return [scrub(item, erased, field) for item in value]
    return value


def _names_erased(text: str, erased: ErasedNames, field: str) -> bool:
    if field in NAME_FIELDS and text in erased.names:
        return True
    if erased.is_quoted(text):
        return True
    is_text = field in TEXT_FIELDS or (" " in text and field not in PERSON_FIELDS)
    if is_text and (erased.has_subject(text) or erased.is_in_folder(text)):
        return True
    return any(match.decode() in erased.faces for match in UUID.findall(text.encode()))
