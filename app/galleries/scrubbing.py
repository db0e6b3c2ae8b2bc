"""Remove what answers, job items and reports say of erased faces and people."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import Engine, exists, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.db.id_lists import select_ids
from app.db.session import reading, writing
from app.db.tables import (
    ERASED_STATUS,
    Deployment,
    Evaluation,
    Face,
    Job,
    JobItem,
    StoredResponse,
    Training,
)
from app.galleries.erased_names import TEXT_FIELDS, UUID, ErasedNames, scrub
from app.galleries.erasures import ERASED
from app.galleries.protocol_files import scrub_ended_evaluations
from app.queue.jobs import IS_LIVE, LIVE_STATES
from app.queue.messages import Erase, ImportArchive, ImportEmbeddings, Sweep
from app.storage.text_encodings import list_normal_forms

ROWS_PER_STEP = 500
Check = Callable[[], None]
"""Is called between two steps, and raises an error if the work must stop."""
BETWEEN_STRINGS = "\n0x0\n"
"""A word that no name has, so that none is found across two strings."""
JSON_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"')


def scrub_answers(database: Engine, erased: Sequence[ErasedNames], check: Check) -> dict[str, int]:
    """Erase the stored answers that name a face or a person, and return erasure id -> their number."""
    counts = {one.erasure_id: 0 for one in erased}
    last: tuple[str, str] = ("", "")
    while rows := _read_answers(database, last):
        check()
        last = rows[-1].key_id, rows[-1].idempotency_key
        with writing(database) as session:
            for row in rows:
                owner = next((one for one in erased if _is_answer_about(session, row, one)), None)
                if owner is not None:
                    _erase_answer(session, row)
                    counts[owner.erasure_id] += 1
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


def _is_answer_about(session: Session, row: StoredResponse, erased: ErasedNames) -> bool:
    if erased.is_whole and row.created_at <= erased.until and _may_name_lost_faces(session, row, erased):
        return True
    strings = _read_strings(row.body) | _read_header_strings(row.headers)
    if not (strings.isdisjoint(erased.faces) and strings.isdisjoint(erased.names)):
        return True
    return erased.has_subject(BETWEEN_STRINGS.join(text for text in strings if " " in text or '"' in text))


def _read_strings(body: bytes) -> set[str]:
    """Return the strings of a JSON text. Of what is no JSON, those between quotes."""
    strings = set[str]()
    for match in JSON_STRING.findall(body):
        text = match.decode(errors="replace")
        try:
            strings.add(json.loads(f'"{text}"', strict=False))
        except json.JSONDecodeError:
            strings.add(text)
    return strings


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


def _erase_answer(session: Session, row: StoredResponse) -> None:
    is_row = (StoredResponse.key_id == row.key_id, StoredResponse.idempotency_key == row.idempotency_key)
    session.execute(update(StoredResponse).where(*is_row).values(status=ERASED_STATUS, headers={}, body=b""))


def scrub_job_items(
    database: Engine, erased: Sequence[ErasedNames], check: Check, *, is_snapshot: bool = False
) -> dict[str, int]:
    """Erase the items that name a face or a person, and return erasure id -> their number.

    A live import keeps the items that it has still to enrol. is_snapshot: its jobs never run again
    """
    counts = {one.erasure_id: 0 for one in erased}
    for group in _group_by_collection(erased):
        created_at, live = _list_jobs(database, group)
        for rows in _iterate_items(database, list(created_at), [] if is_snapshot else live):
            check()
            for job, items in groupby(rows, key=attrgetter("job_id")):
                earlier = [one for one in group if created_at[job] <= one.until]
                for owner in _scrub_items(database, job, items, earlier):
                    counts[owner] += 1
    return counts


def _scrub_items(database: Engine, job: str, rows: Iterable[JobItem], erased: Sequence[ErasedNames]) -> list[str]:
    """Erase those items of a job that name what is erased, and return the ids of their erasures."""
    owners = {row.number: _find_owner(row, erased) for row in rows}
    chosen = {number: owner for number, owner in owners.items() if owner is not None}
    if chosen:
        items = update(JobItem).where(JobItem.job_id == job, JobItem.number.in_(chosen))
        with writing(database) as session:
            session.execute(items.values(name=ERASED, detail={"reasons": [ERASED]}))
    return list(chosen.values())


def _group_by_collection(erased: Sequence[ErasedNames]) -> Iterable[list[ErasedNames]]:
    """Group what is erased together, since what names it is read once for all of a collection."""
    groups: dict[str, list[ErasedNames]] = {}
    for one in erased:
        groups.setdefault(one.collection, []).append(one)
    return groups.values()


def _list_jobs(database: Engine, group: Sequence[ErasedNames]) -> tuple[dict[str, float], list[str]]:
    """List the jobs of the collection that have items and may name what is erased, and those of them that are live.

    Returns id -> when the job was created, and the ids of live jobs.
    """
    jobs = select(Job.id, Job.created_at, IS_LIVE.label("is_live")).where(
        Job.body["collection"].as_string() == group[0].collection,
        Job.created_at <= max(one.until for one in group),
        Job.kind.not_in((Erase.kind, Sweep.kind)),
        exists().where(JobItem.job_id == Job.id),
    )
    with reading(database) as session:
        rows = session.execute(jobs.order_by(Job.id)).all()
    return {row.id: row.created_at for row in rows}, [row.id for row in rows if row.is_live]


def _find_owner(item: JobItem, erased: Sequence[ErasedNames]) -> str | None:
    """Return the id of the first erasure of what an item names."""
    return next((one.erasure_id for one in erased if one.is_whole or _is_item_about(item, one)), None)


def _iterate_items(database: Engine, jobs: Sequence[str], live: Sequence[str]) -> Iterator[Sequence[JobItem]]:
    """Yield the items of these jobs in steps: of many jobs together, since each may have only a few.

    jobs: in the order of the database; live: those of which queued items are left out
    """
    while jobs:
        rows = _read_items(database, jobs, live, -1)
        jobs = jobs[jobs.index(rows[-1].job_id) + 1 :] if len(rows) == ROWS_PER_STEP else []
        while rows:
            yield rows
            last = rows[-1]
            rows = _read_items(database, [last.job_id], live, last.number) if len(rows) == ROWS_PER_STEP else []


def _read_items(database: Engine, jobs: Sequence[str], live: Sequence[str], after: int) -> Sequence[JobItem]:
    with reading(database) as session:
        items = select(JobItem).where(JobItem.job_id.in_(select_ids(session, jobs)))
        items = items.where(JobItem.number > after, JobItem.name != ERASED)
        if live:
            items = items.where((JobItem.state != "queued") | JobItem.job_id.not_in(select_ids(session, live)))
        return session.scalars(items.order_by(JobItem.job_id, JobItem.number).limit(ROWS_PER_STEP)).all()


def _is_item_about(item: JobItem, erased: ErasedNames) -> bool:
    if not erased.faces.isdisjoint(item.detail.get("face_ids", ())) or item.name in erased.names:
        return True
    if item.state == "queued" and scrub(item.detail, erased) != item.detail:
        return True  # the manifest names the person
    return erased.is_in_folder(item.name)


def scrub_reports(database: Engine, erased: Sequence[ErasedNames], *, is_snapshot: bool = False) -> dict[str, int]:
    """Erase what results, problems, reports and histories say of faces and people.

    Of a deleted collection, all results and problems of its jobs are erased. Photos of faces that were given to others
    lose the name of the subject's folder. A live job keeps its message. is_snapshot: its jobs never run again
    Return erasure id -> the number of changed rows.
    """
    counts = {one.erasure_id: 0 for one in erased}
    for group in _group_by_collection([one for one in erased if one.is_whole or one.faces or one.subject]):
        for one in group:
            counts[one.erasure_id] += _scrub_folders(database, one)
        collection, latest = group[0].collection, max(one.until for one in group)
        trained = Training.request["collection"].as_string() == collection
        evaluated = Evaluation.request["collection"].as_string() == collection
        of_collection = or_(
            Job.body["collection"].as_string() == collection,
            Job.id.in_(select(Evaluation.job_id).where(evaluated)),
        )
        jobs = (of_collection, Job.created_at <= latest)
        naming = (*jobs, Job.kind.not_in((Erase.kind, Sweep.kind)))  # a day's erasures leave thousands of results
        columns: tuple[tuple[Any, tuple[Any, ...]], ...] = (
            (Job.body, naming if is_snapshot else (*naming, Job.state.not_in(LIVE_STATES))),
            (Job.result, naming),
            (Job.problem, jobs),
            (Training.report, (trained,)),
            (Training.curve, (trained,)),
            (Evaluation.report, (evaluated,)),
            (Deployment.history, (Deployment.collection_id == collection,)),
        )
        with writing(database) as session:
            for one in group:
                counts[one.erasure_id] += scrub_ended_evaluations(session, one)
            for column, where in columns:
                _scrub_column(session, column, where, group, counts)
    return counts


def _scrub_folders(database: Engine, erased: ErasedNames) -> int:
    """Erase where photos came from, if a folder had the subject's name, and return their number.

    An import names the subject by the folder, and the face may have been given to somebody else since.
    """
    if erased.is_whole or erased.subject is None:
        return 0
    forms = list_normal_forms(erased.subject.strip())
    names_folder = or_(*(Face.external_image_id.contains(form, autoescape=True) for form in forms))
    faces = select(Face.pk, Face.external_image_id).where(
        Face.collection_id == erased.collection, Face.created_at <= erased.until, names_folder
    )
    with reading(database) as session:
        pks = [pk for pk, name in session.execute(faces) if erased.is_in_folder(name or "")]
    for start in range(0, len(pks), ROWS_PER_STEP):
        with writing(database) as session:
            chosen = update(Face).where(Face.pk.in_(pks[start : start + ROWS_PER_STEP]))
            session.execute(chosen.values(external_image_id=ERASED))
    return len(pks)


def _scrub_column(
    session: Session,
    column: InstrumentedAttribute[Any],
    where: Iterable[Any],
    erased: Sequence[ErasedNames],
    counts: dict[str, int],
) -> None:
    """Scrub a column, and add the changed rows to the counts. Of a job, only erasures that came after it count."""
    is_job = column.class_ is Job
    rows = select(column.class_).where(*where, column.is_not(None))
    for row in session.scalars(rows.execution_options(yield_per=ROWS_PER_STEP)):
        value = getattr(row, column.key)
        for one in erased:
            if is_job and row.created_at > one.until:
                continue
            scrubbed = _scrub_whole(column, value) if one.is_whole and is_job else scrub(value, one)
            if is_job and column.key == Job.body.key and _has_upload(row):
                scrubbed["path"] = value["path"]
            if scrubbed != value:
                counts[one.erasure_id] += 1
                setattr(row, column.key, value := scrubbed)


def _has_upload(job: Job) -> bool:
    """Whether an import's upload is still there. Only by its path is it known whose upload it is."""
    is_archive = job.kind == ImportArchive.kind and job.body.get("remove_after", True)
    return (is_archive or job.kind == ImportEmbeddings.kind) and Path(job.body["path"]).exists()


def _scrub_whole(column: InstrumentedAttribute[Any], value: dict[str, Any]) -> dict[str, Any]:
    """Erase the result or problem of a job of a deleted collection; of its message, the texts that a client wrote."""
    if column.key != Job.body.key:
        return {"erased": True} if value else value
    return {name: ERASED if name in TEXT_FIELDS and text else text for name, text in value.items()}
