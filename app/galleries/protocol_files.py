"""Erase the texts of protocol files, which name people. No answer shows them; only a job reads them.

Once it has ended they are erased whole, whoever they name. An evaluation that waits loses those that name somebody who
is erased, and then fails. For one that runs, the erasure waits.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Engine, or_, select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Erasure, Evaluation, Job
from app.galleries.erased_names import ErasedNames
from app.galleries.erasures import ERASED, PENDING
from app.queue.jobs import LIVE_STATES

NOT_BEGUN = Job.started_at.is_(None)
File = dict[str, str]
"""A protocol file: {"name", "text"}."""
ERASED_NAME = "erased"
"""A name that a request for an evaluation may hold, unlike ERASED."""


def scrub_queued_evaluations(database: Engine) -> None:
    """Erase the files that name somebody whose erasure is pending, of evaluations that no job has begun.

    Where there is none, the erasures, of which thousands may be pending, are not read.
    """
    queued = select(Evaluation.id).join(Job, Job.id == Evaluation.job_id).where(Job.state.in_(LIVE_STATES), NOT_BEGUN)
    with reading(database) as session:
        if session.scalar(queued.limit(1)) is None:
            return
        pending = select(Erasure).where(Erasure.state == PENDING).order_by(Erasure.id)
        waiting = [ErasedNames.of(erasure) for erasure in session.scalars(pending)]
    for erased in waiting:
        with writing(database) as session:
            scrub_live_evaluations(session, erased, NOT_BEGUN)


def scrub_live_evaluations(session: Session, erased: ErasedNames, *conditions: ColumnElement[bool]) -> int:
    """Erase the files that name somebody, of evaluations that have not ended. Returns how many have changed."""
    count = 0
    for row in _iterate_evaluations(session, erased, Job.state.in_(LIVE_STATES), *conditions):
        files = [_scrub_live(file, erased) for file in row.request["files"]]
        if files != row.request["files"]:
            row.request = row.request | {"files": files}
            count += 1
    session.flush()
    return count


def scrub_ended_evaluations(session: Session, erased: ErasedNames) -> int:
    """Erase the files of ended evaluations, and in their reports the names of files that name somebody.

    Returns the number of evaluations that changed.
    """
    count = 0
    has_ended = or_(Job.id.is_(None), Job.state.not_in(LIVE_STATES))
    for row in _iterate_evaluations(session, erased, has_ended):
        files: list[File] = row.request["files"]
        names = {name for file in files for name in _list_names(file, erased)} - {row.request.get("protocol")}
        kept = [_erase_text(file, erased) for file in files]
        if kept != files:
            count += 1
            row.request = row.request | {"files": kept}
            row.report = _replace(_forget_missing(row.report) if erased.is_whole else row.report, names)
            job = session.get(Job, row.job_id) if row.job_id else None
            if job is not None:
                job.result, job.problem = _replace(job.result, names), _replace(job.problem, names)
    session.flush()
    return count


def _iterate_evaluations(
    session: Session, erased: ErasedNames, *conditions: ColumnElement[bool]
) -> Iterator[Evaluation]:
    """Yield the evaluations with files of the collection, of a deleted one those that are older than its deletion."""
    chosen = (
        select(Evaluation)
        .outerjoin(Job, Job.id == Evaluation.job_id)
        .where(Evaluation.request["collection"].as_string() == erased.collection, *conditions)
        .order_by(Evaluation.id)
    )
    if erased.is_whole:
        chosen = chosen.where(Evaluation.created_at <= erased.until)
    yield from (row for row in session.scalars(chosen) if row.request.get("files"))


def _scrub_live(file: File, erased: ErasedNames) -> File:
    if erased.is_whole or erased.has_subject(file["text"]) or any(name in file["text"] for name in erased.names):
        return _erase_text(file, erased)
    return file


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
