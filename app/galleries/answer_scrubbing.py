"""Erase the stored answers that name erased faces and people. They are looked through without a lock."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import ERASED_STATUS, Face, StoredResponse
from app.galleries.erased_names import UUID, ErasedNames, fold, may_be_sentence
from app.galleries.scrubbing import CHANGES_PER_WRITE, Check, iterate_parts

ROWS_PER_STEP = 100
BETWEEN_STRINGS = "\n0x0\n"
"""A word that no name has, so that none is found across two strings."""
JSON_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class AnswerTexts:
    """What an answer says.

    strings: those of its body and headers; sentences: those that can be of several words
    folded: the sentences, as `fold` returns them; paths: strings that may be those of photos in folders
    """

    strings: frozenset[str]
    sentences: str
    folded: str
    paths: frozenset[str]

    @classmethod
    def of(cls, row: StoredResponse) -> "AnswerTexts":
        """Read an answer once, for however many erasures."""
        strings = _read_strings(row.body) | _read_header_strings(row.headers)
        sentences = BETWEEN_STRINGS.join(text for text in strings if may_be_sentence(text) or '"' in text)
        return cls(strings, sentences, fold(sentences), frozenset(text for text in strings if "/" in text))

    def name_any(self, erased: ErasedNames) -> bool:
        """Whether they name a face or a person that is erased."""
        if not (self.strings.isdisjoint(erased.faces) and self.strings.isdisjoint(erased.names)):
            return True
        return erased.has_subject(self.sentences, self.folded) or any(map(erased.is_in_folder, self.paths))


def scrub_answers(database: Engine, erased: Sequence[ErasedNames], check: Check) -> dict[str, int]:
    """Erase the stored answers that name a face or a person, and return erasure id -> their number."""
    counts = {one.erasure_id: 0 for one in erased}
    last: tuple[str, str] = ("", "")
    while rows := _read_answers(database, last):
        last = rows[-1].key_id, rows[-1].idempotency_key
        for changes in iterate_parts(_iterate_owned(database, rows, erased, check), CHANGES_PER_WRITE):
            for owner in _erase_answers(database, changes, erased):
                counts[owner] += 1
    return counts


def _read_answers(database: Engine, after: tuple[str, str]) -> list[StoredResponse]:
    key, name = after
    is_later = (StoredResponse.key_id > key) | (
        (StoredResponse.key_id == key) & (StoredResponse.idempotency_key > name)
    )
    stored = select(StoredResponse).where(
        is_later, StoredResponse.status.is_not(None), StoredResponse.status != ERASED_STATUS
    )
    in_order = stored.order_by(StoredResponse.key_id, StoredResponse.idempotency_key)
    with reading(database) as session:
        return list(session.scalars(in_order.limit(ROWS_PER_STEP)))


def _iterate_owned(
    database: Engine, rows: Sequence[StoredResponse], erased: Sequence[ErasedNames], check: Check
) -> Iterator[tuple[StoredResponse, str]]:
    """Yield the answers that name what is erased, each with the id of its erasure."""
    for row in rows:
        check()
        with reading(database) as session:
            owner = _find_owner(session, row, erased)
        if owner is not None:
            yield row, owner


def _find_owner(session: Session, row: StoredResponse, erased: Sequence[ErasedNames]) -> str | None:
    """Return the id of the first erasure that an answer is about."""
    texts = AnswerTexts.of(row) if erased else None
    for one in erased:
        if one.is_whole and row.created_at <= one.jobs_until and _may_name_lost_faces(session, row, one):
            return one.erasure_id
        if texts is not None and row.created_at <= one.named_until and texts.name_any(one):
            return one.erasure_id
    return None


def _read_strings(body: bytes) -> frozenset[str]:
    """Return the strings of a JSON text. Of what is no JSON, those between quotes."""
    return frozenset(_decode(text) for text in set(JSON_STRING.findall(body.decode(errors="replace"))))


def _decode(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        return str(DECODER.decode(f'"{text}"'))
    except json.JSONDecodeError:
        return text


def _read_header_strings(headers: Mapping[str, str]) -> set[str]:
    """Return the parts of paths in headers, such as that of a new row."""
    return {unquote(part) for value in headers.values() for part in re.split(r"[/?=&]", value)}


def _may_name_lost_faces(session: Session, row: StoredResponse, erased: ErasedNames) -> bool:
    """Whether the answer is of the deleted collection, or of no collection and names a face that is not stored."""
    if row.collection is not None:
        return row.collection == erased.collection
    ids = {match.decode() for match in UUID.findall(row.body)}
    stored = session.scalars(select(Face.face_id).where(Face.face_id.in_(ids))) if ids else ()
    return bool(ids - set(stored))


def _erase_answers(
    database: Engine, changes: Sequence[tuple[StoredResponse, str]], erased: Sequence[ErasedNames]
) -> list[str]:
    """Erase answers, and return the ids of their erasures. One that was written meanwhile is looked through again."""
    owners = list[str | None]()
    with writing(database) as session:
        for row, owner in changes:
            key = (row.key_id, row.idempotency_key)
            current = session.get(StoredResponse, key, with_for_update=True)
            if current is None or current.status in (None, ERASED_STATUS):
                continue
            is_same = (current.created_at, current.body, current.headers) == (row.created_at, row.body, row.headers)
            owners.append(owner if is_same else _find_owner(session, current, erased))
            if owners[-1] is not None:
                current.status, current.headers, current.body = ERASED_STATUS, {}, b""
    return [owner for owner in owners if owner is not None]
