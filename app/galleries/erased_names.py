"""How stored texts may name what is erased, and what replaces the names."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from app.db.tables import Erasure
from app.galleries.erasures import BEGUN_AT, ERASED, EXTERNAL_ID, IS_ENROLLED, MERGED, is_called, read_until
from app.storage.text_encodings import list_normal_forms, list_text_encodings, unify_forms

UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNSPACED = (
    "\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u318f\u31a0-\u31ff\u3400-\ua4cf\ua960-\ua97f\ua9e0-\ua9ff"
    "\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Scripts without spaces around each word, for a class of characters: Thai, Lao, Tibetan, Burmese, Khmer, Chinese,
Japanese, Yi, and Korean, whose endings follow a name without one."""
SPACED_CHARACTER = rf"[^\W_{UNSPACED}]"
UNSPACED_CHARACTER = re.compile(rf"(?![\W_])[{UNSPACED}]")
WORD = re.compile(rf"{SPACED_CHARACTER}+|{UNSPACED_CHARACTER.pattern}")
"""A word, or one character of a script without spaces: where a word of it ends cannot be seen."""
RUN_OF_CHARACTERS = re.compile(r"[^\W_]+")
MIN_LETTERS, MIN_DIGITS, MIN_UNSPACED = 3, 5, 2
MIN_SURNAME = 4
"""Characters of a subject's id, and of one of its words, that is looked for in texts; shorter ones mean much else."""
PHOTO_FIELD = "external_image_id"
PERSON_FIELDS = frozenset({"subject", "subjects", "subject_id", "external_id", PHOTO_FIELD})
"""Fields whose strings are each the name of one person or photo."""
NAME_FIELDS = PERSON_FIELDS | {"name", "file"}
"""Fields of a report whose strings are names."""
TEXT_FIELDS = frozenset({"name", "file", "reason", "detail", "problem", "path", "missing_queries"})
"""Fields whose strings a person's name may be a part of, as it may of every text that can be of several words."""

FORM_START = re.compile(rf"(?<!{SPACED_CHARACTER})|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{{4}})|(?<=%[0-9A-Fa-f]{{2}})")
FORM_END = re.compile(rf"(?!{SPACED_CHARACTER})")
"""Where an encoding of a name is no part of another word: after a sign or an escaped one, and before a sign."""

KEPT_NAMES = 16_384
"""Of which the starts of the encodings are kept, by which nearly all texts without the name are passed over. A batch of
erasures can have 2,000, each with those who were merged into it."""
KEPT_CHARACTERS = 40
"""Of each encoding and word. All encodings of a name can have 130 KB, and those of a batch 1.5 GB."""
KEPT_WORDS = 8
KEPT_WHOLE_NAMES = 64
"""Of which all encodings are kept whole."""
MERGE_COMMIT_SECONDS = 60
"""How long after the moment that it records a merge may be committed. On PostgreSQL, others read meanwhile, and name,
who is merged."""


@dataclass(frozen=True)
class ErasedNames:
    """How answers, items and reports may name what one erasure removes.

    until: rows that were stored later belong to another subject or collection of the same name
    begun_at: a moment after which nobody has read the rows
    faces: ids; subject: the subject's id; names: texts by which faces and subject are called, in every normal form
    other_ids: by which the subject is called in texts too: its external id, and other ids that it had in a snapshot
    named_until: what was begun later names another subject of the same name, as after a merge; infinite: the erased one
    subject_created_at: when the subject was created, of one that was merged into the erased one
    is_enrolled: whether there was a subject of its id again at the erasure, to whom faces may have been given back
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
    is_enrolled: bool = False
    other_ids: frozenset[str] = frozenset()

    @cached_property
    def called(self) -> tuple[str, ...]:
        """The ids by which texts call the subject. Of the other ids, those that mean little else."""
        others = sorted(name for name in self.other_ids if name != self.subject and _is_distinctive(name))
        return (*others,) if self.subject is None else (self.subject, *others)

    @cached_property
    def _distinctive_ids(self) -> tuple[str, ...]:
        return tuple(filter(_is_distinctive, self.called))

    @cached_property
    def _folder_names(self) -> frozenset[str]:
        return frozenset(unify_forms(name).strip() for name in self.called)

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
            other_ids=frozenset(filter(None, [targets.get(EXTERNAL_ID)])),
        ).add_names(targets["names"])

    @classmethod
    def list_of(cls, erasure: Erasure) -> list["ErasedNames"]:
        """Read the targets of an erasure: what is erased, then each subject that was merged into the erased one before.

        Whoever was enrolled under the id of such a subject after its merge is somebody else. What names either of them
        and was begun while the merge may not have been committed counts for the one who was merged.
        """
        names = [cls.of(erasure)]
        for merged in erasure.targets.get(MERGED, ()):
            committed_at = merged["merged_at"] + MERGE_COMMIT_SECONDS
            one = cls(
                erasure.id,
                erasure.collection_id,
                is_whole=False,
                until=merged["merged_at"],
                faces=frozenset(),
                subject=merged["id"],
                names=frozenset(),
                begun_at=committed_at,
                named_until=committed_at,
                subject_created_at=merged["created_at"],
                is_enrolled=merged.get(IS_ENROLLED, True),
                other_ids=frozenset(filter(None, [merged["external_id"]])),
            )
            names.append(one.add_names(filter(None, (merged["id"], merged["external_id"]))))
        return names

    def add_names(self, names: Iterable[str]) -> "ErasedNames":
        """Return the same with more names."""
        forms = (form for name in names for form in list_normal_forms(name))
        return replace(self, names=self.names.union(forms))

    def add_ids(self, ids: Iterable[str]) -> "ErasedNames":
        """Return the same with more ids of the subject."""
        return replace(self, other_ids=self.other_ids.union(ids))

    def is_merged(self, merged: Mapping[str, Any]) -> bool:
        """Whether an entry of `Subject.merged_subjects` is the subject, or somebody who had its names before it."""
        if self.subject is None:
            return False
        if self.subject_created_at is not None:
            return (merged["id"], merged["created_at"]) == (self.subject, self.subject_created_at)
        return merged["created_at"] <= self.until and is_called(merged, (self.subject, *self.other_ids))

    def has_subject(self, text: str, folded: str | None = None) -> bool:
        """Whether an id of the subject is a word, or some words, of a text, in any encoding. Short ids never are.

        folded: the text as `fold` returns it, of one that is searched for several subjects
        """
        return any(has_form(text, name) or has_words(text, name, folded) for name in self._distinctive_ids)

    def shares_word(self, name: str) -> bool:
        """Whether the name of a file has an id of the subject, or only a word of the subject's own: a surname."""
        words = RUN_OF_CHARACTERS.findall(fold(self.subject or ""))
        return self.has_subject(name) or any(has_words(name, word) for word in words if _may_be_surname(word))

    def is_in_folder(self, path: str) -> bool:
        """Whether an id of the subject is a folder of a path, in any normal form, with or without blanks around it."""
        folders = path.split("/")[:-1]
        return any(unify_forms(folder).strip() in self._folder_names for folder in folders)

    def is_quoted(self, text: str) -> bool:
        """Whether a text has an id of the subject between quotes, as messages write it."""
        return any(_has_quoted(text, name) for name in self.called)


def _is_distinctive(name: str) -> bool:
    """Whether a word is likely to be the subject if it looks like it: two letters or four digits are not."""
    size = len(unify_forms(name))
    if has_unspaced(name):
        return size >= MIN_UNSPACED
    return size >= (MIN_DIGITS if name.isdigit() else MIN_LETTERS)


def _may_be_surname(word: str) -> bool:
    return not word.isdigit() and len(word) >= (MIN_UNSPACED if has_unspaced(word) else MIN_SURNAME)


def has_unspaced(text: str) -> bool:
    """Whether a text has characters of a script that puts no spaces around words."""
    return not text.isascii() and UNSPACED_CHARACTER.search(text) is not None


def has_words(text: str, name: str, folded: str | None = None) -> bool:
    """Whether a text has the words of a name in a row, whatever signs part them: Ada_Example-01, ada.example"""
    folded, first_words = fold(text) if folded is None else folded, _list_first_words(name)
    if not first_words or not all(word in folded for word in first_words):  # faster by far
        return False
    words = _list_words(name)
    return all(word in folded for word in words) and f" {' '.join(words)} " in f" {' '.join(WORD.findall(folded))} "


@lru_cache(KEPT_NAMES)
def _list_first_words(name: str) -> list[str]:
    return [word[:KEPT_CHARACTERS] for word in _list_words(name)[:KEPT_WORDS]]


@lru_cache(KEPT_WHOLE_NAMES)
def _list_words(name: str) -> list[str]:
    return WORD.findall(fold(name))


def fold(text: str) -> str:
    """Return what all spellings of a text have in common, in whatever normal form and case."""
    return unify_forms(text).casefold()


def has_form(text: str, name: str) -> bool:
    """Whether a text has a name in any encoding between signs, or after an escaped one such as `\\n` or `%2F`.

    Of a script without spaces, it may stand between other letters too.
    """
    if not any(start in text for start in _list_form_starts(name)):
        return False
    may_start, may_end = has_unspaced(name[:1]), has_unspaced(name[-1:])
    return any(
        (may_start or FORM_START.match(text, at)) and (may_end or FORM_END.match(text, at + len(form)))
        for form in _list_forms(name)
        for at in _iterate_places(text, form)
    )


def _iterate_places(text: str, form: str) -> Iterator[int]:
    """Yield the positions at which a text has an encoding."""
    at = text.find(form)
    while at >= 0:
        yield at
        at = text.find(form, at + 1)


@lru_cache(KEPT_NAMES)
def _list_form_starts(name: str) -> list[str]:
    return _list_starts(_list_forms(name))


@lru_cache(KEPT_WHOLE_NAMES)
def _list_forms(name: str) -> list[str]:
    """Return the encodings of a name."""
    return sorted(form.decode(errors="replace") for form in list_text_encodings(name))


def _has_quoted(text: str, name: str) -> bool:
    may_have = any(start in text for start in _list_quoted_starts(name))
    return may_have and any(quoted in text for quoted in _list_quoted(name))


@lru_cache(KEPT_NAMES)
def _list_quoted_starts(name: str) -> list[str]:
    return _list_starts(_list_quoted(name))


@lru_cache(KEPT_WHOLE_NAMES)
def _list_quoted(name: str) -> list[str]:
    return [repr(form) for form in list_normal_forms(name)]


def _list_starts(forms: Iterable[str]) -> list[str]:
    return sorted({form[:KEPT_CHARACTERS] for form in forms})


def may_be_sentence(text: str) -> bool:
    """Whether a text can be of several words."""
    return " " in text or has_unspaced(text)


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
    if erased.is_quoted(text) or (field == PHOTO_FIELD and erased.is_in_folder(text)):
        return True
    is_text = field in TEXT_FIELDS or (may_be_sentence(text) and field not in PERSON_FIELDS)
    if is_text and (erased.has_subject(text) or erased.is_in_folder(text)):
        return True
    return any(match.decode() in erased.faces for match in UUID.findall(text.encode()))
