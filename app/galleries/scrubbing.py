"""Remove what job items and reports say of erased faces and people. What is to be changed is found without a lock."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine, exists, inspect, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, load_only

from app.db.id_lists import select_ids
from app.db.session import reading, writing
from app.db.subject_ids import list_spellings
from app.db.tables import Deployment, Evaluation, Face, Job, JobItem, Subject, Training
from app.galleries.erased_names import TEXT_FIELDS, UUID, ErasedNames, fold, scrub
from app.galleries.erasures import ERASED
from app.galleries.protocol_files import scrub_ended_evaluations
from app.queue.jobs import IS_LIVE, LIVE_STATES
from app.queue.messages import Erase, ImportArchive, ImportEmbeddings, Sweep
from app.storage.text_encodings import list_normal_forms

ROWS_PER_STEP = 500
Check = Callable[[], None]
"""Is called between two steps, and raises an error if the work must stop."""
CHANGES_PER_WRITE = 50
"""On SQLite, other writers wait for as long."""
Value = TypeVar("Value")


def iterate_parts(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    """Yield the values in lists of this size; the last may be shorter."""
    rest = iter(values)
    while part := list(islice(rest, size)):
        yield part


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
                earlier = [one for one in group if created_at[job] <= one.jobs_until]
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
        Job.created_at <= max(one.jobs_until for one in group),
        Job.kind.not_in((Erase.kind, Sweep.kind)),
        exists().where(JobItem.job_id == Job.id),
    )
    with reading(database) as session:
        rows = session.execute(jobs.order_by(Job.id)).all()
    return {row.id: row.created_at for row in rows}, [row.id for row in rows if row.is_live]


@dataclass(frozen=True)
class ItemTexts:
    """What an item says, read once for however many erasures.

    faces: the ids of those that it names; entry: that of a queued item in the manifest, else None
    folded: the name of an item that is not done, as `fold` returns it. One that is done is about its faces, else None
    """

    name: str
    faces: frozenset[str]
    entry: dict[str, Any] | None
    folded: str | None

    @classmethod
    def of(cls, item: JobItem) -> "ItemTexts":
        """Read an item."""
        entry = item.detail if item.state == "queued" else None
        folded = None if item.state == "done" else fold(item.name)
        return cls(item.name, frozenset(item.detail.get("face_ids", ())), entry, folded)

    def name_any(self, erased: ErasedNames) -> bool:
        """Whether they name a face or a person that is erased."""
        if self.name in erased.names or not erased.faces.isdisjoint(self.faces):
            return True
        if self.entry is not None and scrub(self.entry, erased) != self.entry:
            return True  # the manifest names the person
        if self.folded is not None and erased.has_subject(self.name, self.folded):
            return True
        return erased.is_in_folder(self.name)


def _find_owner(item: JobItem, erased: Sequence[ErasedNames]) -> str | None:
    """Return the id of the first erasure of what an item names."""
    texts = ItemTexts.of(item)
    return next((one.erasure_id for one in erased if one.is_whole or texts.name_any(one)), None)


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


def scrub_reports(database: Engine, erased: Sequence[ErasedNames], *, is_snapshot: bool = False) -> dict[str, int]:
    """Erase what results, problems, reports and histories say of faces and people.

    Of a deleted collection, all results and problems of its jobs are erased, and from those of others that have read it
    the ids of its faces. Photos of faces that were given to others lose the name of the subject's folder. A live job
    keeps its message. is_snapshot: its jobs never run again
    Return erasure id -> the number of changed rows.
    """
    counts = {one.erasure_id: 0 for one in erased}
    for group in _group_by_collection([one for one in erased if one.is_whole or one.faces or one.subject]):
        for one in group:
            counts[one.erasure_id] += _scrub_folders(database, one)
        for owner in (*scrub_ended_evaluations(database, group), *_scrub_columns(database, group, is_snapshot)):
            counts[owner] += 1
    return counts


def _scrub_columns(database: Engine, group: Sequence[ErasedNames], is_snapshot: bool) -> Iterator[str]:
    """Scrub all columns with results, problems, reports and histories; yield the erasure of each change.

    group: of one collection
    """
    collection, latest = group[0].collection, max(one.jobs_until for one in group)
    trained = Training.request["collection"].as_string() == collection
    evaluated = Evaluation.request["collection"].as_string() == collection
    of_collection = or_(
        Job.body["collection"].as_string() == collection,
        Job.body["bound_to"][collection].as_float().is_not(None),
        Job.id.in_(select(Evaluation.job_id).where(evaluated)),
    )
    jobs = (of_collection, Job.created_at <= latest)
    naming = (*jobs, Job.kind.not_in((Erase.kind, Sweep.kind)))  # a day's erasures leave thousands of results
    has_ended = () if is_snapshot else (Job.state.not_in(LIVE_STATES),)
    for column in (
        ScrubbedColumn(Job.body, naming, has_ended),
        ScrubbedColumn(Job.result, naming),
        ScrubbedColumn(Job.problem, jobs),
        ScrubbedColumn(Training.report, (trained,)),
        ScrubbedColumn(Training.curve, (trained,)),
        ScrubbedColumn(Evaluation.report, (evaluated,)),
        ScrubbedColumn(Deployment.history, (Deployment.collection_id == collection,)),
    ):
        yield from column.scrub(database, group)


def _scrub_folders(database: Engine, erased: ErasedNames) -> int:
    """Erase where photos came from, if a folder had the subject's name, and return their number.

    An import names the subject by the folder, and the face may have been given to somebody else since: not to one of
    the same name.
    """
    if erased.is_whole or not erased.called:
        return 0
    forms = {form for name in erased.called for form in list_normal_forms(name.strip())}
    ids = {spelling for name in erased.called for spelling in list_spellings(name)}
    has_name = exists().where(Subject.pk == Face.subject_pk, Subject.id.in_(ids))
    names_folder = or_(*(Face.external_image_id.contains(form, autoescape=True) for form in forms))
    faces = select(Face.pk, Face.external_image_id).where(
        Face.collection_id == erased.collection, Face.created_at <= erased.until, names_folder, ~has_name
    )
    with reading(database) as session:
        pks = [pk for pk, name in session.execute(faces) if erased.is_in_folder(name or "")]
    for start in range(0, len(pks), ROWS_PER_STEP):
        with writing(database) as session:
            chosen = update(Face).where(Face.pk.in_(pks[start : start + ROWS_PER_STEP]))
            session.execute(chosen.values(external_image_id=ERASED))
    return len(pks)


@dataclass(frozen=True)
class ScrubbedColumn:
    """A column that may name somebody.

    chosen: conditions on its rows; lasting: those that must still hold when a row is changed
    """

    column: InstrumentedAttribute[Any]
    chosen: tuple[ColumnElement[bool], ...]
    lasting: tuple[ColumnElement[bool], ...] = ()

    def scrub(self, database: Engine, erased: Sequence[ErasedNames]) -> Iterator[str]:
        """Scrub the rows that name what is erased, and yield the id of the erasure of each change.

        The rows are read and looked through without a lock. One that is written meanwhile is looked through again.
        """
        for rows in self._iterate_rows(database):
            scrubbed = ((row, *self._scrub_value(database, row, erased)) for row in rows)
            for changes in iterate_parts(
                [(row, value, owners) for row, value, owners in scrubbed if owners], CHANGES_PER_WRITE
            ):
                yield from self._write(database, changes, erased)

    def _iterate_rows(self, database: Engine) -> Iterator[Sequence[Any]]:
        key = inspect(self.column.class_).primary_key[0]
        chosen = select(key).where(*self.chosen, *self.lasting, self.column.is_not(None)).order_by(key)
        with reading(database) as session:
            keys = list(dict.fromkeys(session.scalars(chosen)))
        for some in iterate_parts(keys, ROWS_PER_STEP):
            with reading(database) as session:
                rows = select(self.column.class_).where(key.in_(select_ids(session, some)), self.column.is_not(None))
                yield session.scalars(rows.options(self._load())).all()

    def _load(self) -> Any:
        """Load only what is needed: the snapshot of a training can hold 100,000 labels."""
        if self.column.class_ is Job:
            return load_only(Job.kind, Job.body, Job.collection_id, Job.created_at, self.column)
        if self.column.class_ is Deployment:
            return load_only(self.column)
        return load_only(self.column.class_.created_at, self.column)

    def _scrub_value(self, database: Engine, row: Any, erased: Sequence[ErasedNames]) -> tuple[Any, list[str]]:
        """Return the scrubbed value, and the ids of the erasures that changed it. Of a job, only those after it do."""
        value, owners = getattr(row, self.column.key), dict[str, None]()
        for one in erased:
            if not _may_name(row, one):
                continue
            if self.column is Deployment.history:
                scrubbed: Any = [move if _is_later(move, one.named_until) else scrub(move, one) for move in value]
            elif one.is_whole and isinstance(row, Job):
                scrubbed = _scrub_deleted(self.column, database, row, value, one)
            else:
                scrubbed = scrub(value, one)
            if isinstance(row, Job) and self.column.key == Job.body.key and _has_upload(row):
                scrubbed["path"] = value["path"]
            if scrubbed != value:
                owners[one.erasure_id] = None
                value = scrubbed
        return value, list(owners)

    def _write(
        self, database: Engine, changes: Iterable[tuple[Any, Any, list[str]]], erased: Sequence[ErasedNames]
    ) -> list[str]:
        """Store the scrubbed values of rows, and return the ids of the erasures that changed them."""
        written = list[str]()
        with writing(database) as session:
            for row, value, owners in changes:
                keys = zip(inspect(self.column.class_).primary_key, inspect(row).identity, strict=True)
                same = select(self.column.class_).where(*(key == part for key, part in keys), *self.lasting)
                current = session.scalar(same.options(self._load()).with_for_update())
                if current is None or getattr(current, self.column.key) is None:
                    continue
                if getattr(current, self.column.key) != getattr(row, self.column.key):
                    value, owners = self._scrub_value(database, current, erased)
                if owners:
                    setattr(current, self.column.key, value)
                    written += owners
        return written


def _may_name(row: Any, erased: ErasedNames) -> bool:
    """Whether a row is old enough to name what is erased. A deployment has moves of all times."""
    if isinstance(row, Deployment):
        return True
    return bool(row.created_at <= (erased.jobs_until if isinstance(row, Job) else erased.named_until))


def _is_later(move: Any, moment: float) -> bool:
    """Whether a move in the history of a deployment says that it is later."""
    at = move.get("at") if isinstance(move, dict) else None
    return isinstance(at, (int, float)) and at > moment


def _has_upload(job: Job) -> bool:
    """Whether an import's upload is still there. Only by its path is it known whose upload it is."""
    is_archive = job.kind == ImportArchive.kind and job.body.get("remove_after", True)
    return (is_archive or job.kind == ImportEmbeddings.kind) and Path(job.body["path"]).exists()


def _scrub_deleted(
    column: InstrumentedAttribute[Any], database: Engine, job: Job, value: dict[str, Any], erased: ErasedNames
) -> Any:
    """Erase the value of a column of a deleted collection's job: see `_scrub_whole`.

    Of another collection's job that has read it, only what names somebody, and the ids of faces that are not stored.
    """
    if job.collection_id in (None, erased.collection) or job.body.get("collection") == erased.collection:
        return _scrub_whole(column, value)
    return scrub(value, replace(erased, faces=_find_lost_faces(database, value)))


def _find_lost_faces(database: Engine, value: Any) -> frozenset[str]:
    """Return the ids of faces in a JSON value that are not stored."""
    ids = {match.decode() for match in UUID.findall(json.dumps(value).encode())}
    with reading(database) as session:
        return frozenset(ids.difference(session.scalars(select(Face.face_id).where(Face.face_id.in_(ids)))))


def _scrub_whole(column: InstrumentedAttribute[Any], value: dict[str, Any]) -> dict[str, Any]:
    """Erase the result or problem of a job of a deleted collection; of its message, the texts that a client wrote."""
    if column.key != Job.body.key:
        return {"erased": True} if value else value
    return {name: ERASED if name in TEXT_FIELDS and text else text for name, text in value.items()}
