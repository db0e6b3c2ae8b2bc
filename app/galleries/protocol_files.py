"""Erase the texts of protocol files, which name people. No answer shows them; only a job reads them.

Once it has ended they are erased whole, whoever they name. An evaluation that waits loses those that name somebody who
is erased, and then fails. For one that runs, the erasure waits.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, or_, select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Erasure, Evaluation, Job
from app.galleries.erased_names import ErasedNames
from app.galleries.erasures import ERASED, PENDING
from app.queue.jobs import LIVE_STATES

NOT_BEGUN = Job.started_at.is_(None)
File = dict[str, str]
"""A protocol file: {"name", "text"}."""
Scrub = Callable[[Session | None, Evaluation, ErasedNames], bool]
ERASED_NAME = "erased"
"""A name that a request for an evaluation may hold, unlike ERASED."""


def scrub_queued_evaluations(database: Engine) -> None:
    """Erase the files that name somebody whose erasure is pending, of evaluations that no job has begun.

    Where there is none, the erasures, of which thousands may be pending, are not read.
    """
    is_queued = (Job.state.in_(LIVE_STATES), NOT_BEGUN)
    with reading(database) as session:
        queued = session.scalars(_select_evaluations(Evaluation.id, *is_queued)).all()
        if not queued:
            return
        pending = select(Erasure).where(Erasure.state == PENDING).order_by(Erasure.id).execution_options(yield_per=1)
        waiting = [one for erasure in session.scalars(pending) for one in ErasedNames.list_of(erasure)]
    for _ in _scrub_each(database, queued, waiting, _scrub_live_files, *is_queued):
        pass


def scrub_live_evaluations(session: Session, erased: ErasedNames) -> int:
    """Erase the files that name somebody, of evaluations that have not ended. Returns how many have changed."""
    is_live = (Job.state.in_(LIVE_STATES), _is_of(erased.collection))
    rows = session.scalars(_select_evaluations(Evaluation, *is_live)).all()
    count = sum(_is_about(row, erased) and _scrub_live_files(session, row, erased) for row in rows)
    session.flush()
    return count


def scrub_ended_evaluations(database: Engine, erased: Sequence[ErasedNames]) -> Iterator[str]:
    """Erase the files of ended evaluations, and in their reports the names of files that name somebody.

    erased: of one collection. Yields the id of the erasure of each change
    """
    has_ended = or_(Job.id.is_(None), Job.state.not_in(LIVE_STATES))
    of_collection = _select_evaluations(Evaluation.id, has_ended, _is_of(erased[0].collection))
    with reading(database) as session:
        ended = session.scalars(of_collection).all()
    yield from _scrub_each(database, ended, erased, _scrub_ended_files, has_ended)


def _scrub_each(
    database: Engine,
    evaluations: Sequence[str],
    erased: Sequence[ErasedNames],
    scrub_files: Scrub,
    *conditions: ColumnElement[bool],
) -> Iterator[str]:
    """Scrub evaluations that still meet these conditions, and yield the id of the erasure of each change.

    They are looked through without a lock, and only one that names somebody once more with it.
    """
    for evaluation_id in evaluations:
        chosen = _select_evaluations(Evaluation, Evaluation.id == evaluation_id, *conditions)
        with reading(database) as session:
            row = session.scalar(chosen)
        owners = [] if row is None else [one for one in erased if _is_about(row, one) and scrub_files(None, row, one)]
        if not owners:
            continue
        with writing(database) as session:
            row = session.scalar(chosen.with_for_update(of=Evaluation))
            changed = set() if row is None else {one.erasure_id for one in owners if scrub_files(session, row, one)}
        yield from changed


def _select_evaluations(chosen: Any, *conditions: ColumnElement[bool]) -> Select[Any]:
    """Select from evaluations and their jobs, if they have one."""
    evaluations = select(chosen).select_from(Evaluation).outerjoin(Job, Job.id == Evaluation.job_id)
    return evaluations.where(*conditions).order_by(Evaluation.id)


def _is_of(collection: str) -> ColumnElement[bool]:
    is_same: ColumnElement[bool] = Evaluation.request["collection"].as_string() == collection
    return is_same


def _is_about(row: Evaluation, erased: ErasedNames) -> bool:
    """Whether an evaluation has files of the collection, and is old enough to name what is erased."""
    is_older = row.created_at <= (erased.jobs_until if erased.is_whole else erased.named_until)
    return bool(row.request.get("collection") == erased.collection and row.request.get("files") and is_older)


def _scrub_live_files(_: Session | None, row: Evaluation, erased: ErasedNames) -> bool:
    """Return whether files name somebody, which are erased then."""
    files = [_scrub_live(file, erased) for file in row.request["files"]]
    if files == row.request["files"]:
        return False
    row.request = row.request | {"files": files}
    return True


def _scrub_ended_files(session: Session | None, row: Evaluation, erased: ErasedNames) -> bool:
    """Return whether files were not erased yet, or are named after somebody. They are erased, and their names.

    session: also the names in the result and the problem of the job
    """
    files: list[File] = row.request["files"]
    kept = [_erase_text(file, erased) for file in files]
    if kept == files:
        return False
    names = {name for file in files for name in _list_names(file, erased)} - {row.request.get("protocol")}
    row.request = row.request | {"files": kept}
    row.report = _replace(_forget_missing(row.report) if erased.is_whole else row.report, names)
    job = session.get(Job, row.job_id) if session and row.job_id else None
    if job is not None:
        job.result, job.problem = _replace(job.result, names), _replace(job.problem, names)
    return True


def _scrub_live(file: File, erased: ErasedNames) -> File:
    stem = file["name"].removesuffix(".txt")
    is_named = erased.has_subject(file["text"]) or any(name in file["text"] for name in erased.names)
    is_named = is_named or erased.has_subject(stem) or not erased.names.isdisjoint((file["name"], stem))
    return _erase_text(file, erased) if erased.is_whole or is_named else file


def _erase_text(file: File, erased: ErasedNames) -> File:
    return {"name": ERASED_NAME if _list_names(file, erased) else file["name"], "text": ERASED}


def _list_names(file: File, erased: ErasedNames) -> list[str]:
    """List the name of a file, with and without its suffix, if it names somebody; else nothing."""
    name, stem = file["name"], file["name"].removesuffix(".txt")
    is_named = erased.is_whole or not erased.names.isdisjoint((name, stem)) or erased.shares_word(stem)
    return [name, stem] if is_named and name != ERASED_NAME else []


def _forget_missing(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the names of photos that the collection did not have."""
    draws = [
        draw | {"missing_queries": [ERASED] * len(draw["missing_queries"])} if "missing_queries" in draw else draw
        for draw in report.get("draws", ())
    ]
    return report | {"draws": draws} if draws else report


def _replace(value: Any, names: set[str], field: str = "") -> Any:
    """Return a JSON value without these names of files: as names in it, or as parts of sentences. field: its name"""
    if isinstance(value, str):
        is_named = (
            value in names if field in ("name", "protocol") else " " in value and any(name in value for name in names)
        )
        return ERASED if is_named else value
    if isinstance(value, dict):
        return {key: _replace(member, names, key) for key, member in value.items()}
    if isinstance(value, list):
        return [_replace(item, names, field) for item in value]
    return value
