"""Complete erasures, those that wait together: scrub the tables, compact the database, and sign the receipts."""

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.compaction import compact_deleted
from app.db.session import reading, writing
from app.db.tables import Erasure, Follower, now
from app.galleries.answer_scrubbing import scrub_answers
from app.galleries.erased_names import ErasedNames
from app.galleries.erasure_receipts import MAX_LISTED_IDS, hash_photo, hash_subject, sign_receipt
from app.galleries.erasures import FINAL, MAX_FINGERPRINTED_CHARACTERS, PENDING, SCRUBBED
from app.galleries.protocol_files import scrub_queued_evaluations
from app.galleries.scrubbing import scrub_job_items, scrub_reports
from app.learning.refit import list_models_that_read
from app.resources import Resources
from app.serving.index_snapshots import SnapshotStore
from app.storage.fingerprints import MAX_BYTES, Fingerprinter
from app.storage.installation_key import InstallationKey
from app.storage.text_encodings import list_text_encodings
from workers.cleanup.stored_files import remove_late_files, remove_photo_files, remove_unfinished_photos
from workers.cleanup.uploads import remove_uploads_of
from workers.context import JobContext
from workers.erasing.blockers import find_blocker
from workers.erasing.kept_snapshots import erase_from_kept_snapshots
from workers.erasing.unfinished_restores import remove_unfinished_restores

MAX_TEXT_FINGERPRINTS = 50_000
"""Of one erasure: 5 MB in a row that is read and written whole. A text has up to 60, most have two."""
MAX_ERASURES = 20
"""How many are completed together; other jobs have their turns between."""


def complete_erasures(context: JobContext) -> None:
    """Bring some erasures whose files are gone as far as they get, the oldest of each collection first.

    Safe to repeat. Raises Interrupted, Busy.
    """
    resources = context.resources
    scrub_queued_evaluations(resources.database)
    erased, ready = _choose(resources)
    if erased:
        remove_uploads_of(resources, (one.collection for one in erased))
        counts = _scrub(context, erased)
        snapshots = erase_from_kept_snapshots(context, [one for one in erased if one.erasure_id in ready])
        if ready and not remove_unfinished_restores(context):
            ready = set()
        if ready:  # a restore that has ended by now may have written files again
            remove_unfinished_photos(context)
            _remove_late_files(context, ready)
            if not resources.blobs.empty_trash():  # nobody can tell whose files are left
                ready = set()
        counts = {name: count | snapshots.get(name, {}) for name, count in counts.items()}
        for name in sorted(counts):
            _note_scrubbed(resources, name, counts[name], _prepare_seal(resources, name) if name in ready else None)
    with writing(resources.database) as session:
        scrubbed = list(session.scalars(select(Erasure.id).where(Erasure.state == SCRUBBED)))
    if (erased or scrubbed) and compact_deleted(resources.database):
        _finish(resources, scrubbed)


def _choose(resources: Resources) -> tuple[list[ErasedNames], set[str]]:
    """Return what is to be scrubbed, and the ids of those that wait for nothing more.

    What waits is scrubbed once at the beginning, and again at its end.
    """
    chosen, ready, unserved = dict[str, list[ErasedNames]](), set[str](), dict[str, float]()
    with reading(resources.database) as session:
        for erasure in _iterate_pending(session):
            targets = erasure.targets
            if "removed_files" not in targets:
                continue
            blocker = find_blocker(session, erasure, resources.audit)
            if blocker.unserved_at is not None and "unserved_at" not in targets:
                unserved[erasure.id] = blocker.unserved_at
            if blocker.name is None:
                ready.add(erasure.id)
            if blocker.name is None or "counts" not in targets:
                chosen[erasure.id] = ErasedNames.list_of(erasure)
            if len(chosen) == MAX_ERASURES:
                break
    if unserved:
        _store_unserved(resources, unserved)
    return list(chain.from_iterable(chosen.values())), ready


def _iterate_pending(session: Session) -> Iterator[Erasure]:
    """Yield the oldest erasure of each collection, then the second of each, and so on."""
    pending = select(Erasure.id, Erasure.collection_id).where(Erasure.state == PENDING).order_by(Erasure.id)
    turns = Counter[str]()
    ranked = []
    for erasure_id, collection in session.execute(pending):
        ranked.append((turns[collection], erasure_id))
        turns[collection] += 1
    for _, erasure_id in sorted(ranked):
        yield session.get_one(Erasure, erasure_id)


def _store_unserved(resources: Resources, unserved: dict[str, float]) -> None:
    """Store since when no index holds the faces. unserved: erasure id -> seconds since 1970"""
    with writing(resources.database) as session:
        for row in session.scalars(select(Erasure).where(Erasure.id.in_(unserved)).with_for_update()):
            row.targets = row.targets | {"unserved_at": unserved[row.id]}


def _scrub(context: JobContext, erased: Sequence[ErasedNames]) -> dict[str, dict[str, int]]:
    """Return erasure id -> how many answers, items and reports were scrubbed."""
    database = context.resources.database
    counts = {
        "answers": scrub_answers(database, erased, context.check),
        "job_items": scrub_job_items(database, erased, context.check),
        "reports": scrub_reports(database, erased),
    }
    return {one.erasure_id: {name: of_all[one.erasure_id] for name, of_all in counts.items()} for one in erased}


def _remove_late_files(context: JobContext, ready: set[str]) -> None:
    """Remove the files that jobs have written since the erasures removed theirs. Raises Interrupted."""
    with reading(context.resources.database) as session:
        chosen = session.scalars(select(Erasure).where(Erasure.id.in_(ready), Erasure.state == PENDING)).all()
    for erasure in chosen:
        if erasure.target == "collection":
            remove_late_files(context, erasure.collection_id)
        else:
            remove_photo_files(context, erasure.collection_id, erasure.targets["images"])


class _Seal(NamedTuple):
    """What a receipt says that takes long to find: so it is found before the transaction that keeps others waiting.

    models: those that have read what is erased; fingerprints: of its texts and vectors, as values for JSON
    """

    models: list[str]
    fingerprints: list[dict[str, Any]]


def _prepare_seal(resources: Resources, name: str) -> _Seal | None:
    """Return the seal of an erasure that is pending. No training that has read what is erased runs any more."""
    key = resources.installation_key
    with reading(resources.database) as session:
        erasure = session.get(Erasure, name)
        if erasure is None or erasure.state != PENDING:
            return None
        models, targets = list_models_that_read(session, key, erasure), erasure.targets
    return _Seal(models, _make_fingerprints(key, targets))


def _note_scrubbed(resources: Resources, name: str, counts: dict[str, int], seal: _Seal | None) -> None:
    """Delete the snapshots of what was scrubbed. With a seal, it loses its targets, and keeps what the receipt says."""
    snapshots = SnapshotStore(resources.indexes)
    with writing(resources.database) as session:
        chosen = select(Erasure).where(Erasure.id == name, Erasure.state == PENDING)
        erasure = session.scalar(chosen.with_for_update())
        if erasure is None:
            return
        deleted = snapshots.delete_erased(erasure.collection_id, erasure.collection_created_at, erasure.change)
        total = _add(erasure.targets.get("counts", {}), counts | {"snapshots": deleted})
        erasure.targets = erasure.targets | {"counts": total}
        if seal is not None:
            _seal(session, resources, erasure, seal)


def _add(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return first | {name: first.get(name, 0) + count for name, count in second.items()}


def _seal(session: Session, resources: Resources, erasure: Erasure, seal: _Seal) -> None:
    """Write down what the receipt says, and forget the names."""
    key, targets, collection = resources.installation_key, erasure.targets, erasure.collection_id
    removed = erasure.contents["removed"]
    followers = select(func.count()).where(Follower.collection_id == collection)
    removed |= targets["removed_files"] | targets["counts"]
    removed["index_entries"] = removed["faces"] * (session.scalar(followers) or 0)
    subject = targets["subject"]
    erasure.contents = {
        "removed": dict(sorted(removed.items())),
        "subject": None if subject is None else hash_subject(key, collection, subject),
        "faces": targets["faces"][:MAX_LISTED_IDS],
        "photos": sorted(hash_photo(key, image) for image in targets["images"][:MAX_LISTED_IDS]),
        "models": seal.models,
    }
    erasure.fingerprints = seal.fingerprints + list(targets["fingerprints"].values())
    erasure.targets = {}
    erasure.state = SCRUBBED


def _make_fingerprints(key: InstallationKey, targets: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the fingerprints of the texts and vectors. The start of a long text is enough: see `Fingerprinter.make`."""
    fingerprinter = Fingerprinter(key)
    starts = (text[:MAX_FINGERPRINTED_CHARACTERS] for text in targets["texts"])  # an earlier version kept whole texts
    encodings = (encoding[:MAX_BYTES] for start in starts for encoding in list_text_encodings(start))
    made = fingerprinter.make_all("text", sorted(set(islice(encodings, MAX_TEXT_FINGERPRINTS))))
    made += fingerprinter.make_all("vector", map(base64.b64decode, targets["vectors"]))
    return [fingerprint.to_dict() for fingerprint in made]


def _finish(resources: Resources, erasures: Sequence[str]) -> None:
    """Sign the receipts of erasures that were scrubbed before the database was compacted."""
    for name in sorted(erasures):
        with writing(resources.database) as session:
            chosen = select(Erasure).where(Erasure.id == name, Erasure.state == SCRUBBED)
            erasure = session.scalar(chosen.with_for_update())
            if erasure is not None:
                erasure.state, erasure.finished_at = FINAL, now()
                erasure.signature = sign_receipt(resources.installation_key, erasure)
