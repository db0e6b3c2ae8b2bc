"""Start a forecast of a collection's growth, and read the report of the last one."""

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK, Job
from app.deps.job_response import JobOut, point_to_job
from app.errors import NotFound
from app.forecasts.schemas import ForecastIn, ForecastOut
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import ForecastGrowth


def start_forecast(session: Session, collection: str, body: ForecastIn, response: Response) -> JobOut:
    """Enqueue a forecast. Raises NotFound."""
    get_collection(session, collection)
    pointers.get_deployment(session, collection, BUILT_IN_TASK)
    job = enqueue(session, ForecastGrowth(collection=collection, fpir=body.fpir))
    point_to_job(response, job)
    return JobOut.of(job)


def read_report(session: Session, collection: str) -> ForecastOut:
    """Return the report of the last forecast that succeeded. Raises NotFound if there is none."""
    created_at = get_collection(session, collection).created_at
    jobs = select(Job).where(Job.kind == ForecastGrowth.kind, Job.state == "succeeded", Job.created_at >= created_at)
    of_collection = Job.body["collection"].as_string() == collection
    job = session.scalar(jobs.where(of_collection).order_by(Job.finished_at.desc()).limit(1))
    if job is None:
        raise NotFound(f"there is no forecast of collection {collection!r}, or it is too old")
    return ForecastOut.model_validate(job.result)
