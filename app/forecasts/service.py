"""Start a forecast of a collection's growth, and read the report of the last one."""

from fastapi import Response
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK
from app.deps.job_response import JobOut, point_to_job
from app.errors import NotFound
from app.forecasts.schemas import ForecastIn, ForecastOut
from app.publishing import pointers
from app.queue.messages import ForecastGrowth
from app.queue.reports import enqueue_report, find_last_report


def start_forecast(session: Session, collection: str, body: ForecastIn, response: Response) -> JobOut:
    """Enqueue a forecast. Raises NotFound."""
    row = get_collection(session, collection)
    pointers.get_deployment(session, collection, BUILT_IN_TASK)
    job = enqueue_report(session, row, ForecastGrowth(collection=collection, fpir=body.fpir))
    point_to_job(response, job)
    return JobOut.of(job)


def read_report(session: Session, collection: str) -> ForecastOut:
    """Return the report of the last forecast that succeeded. Raises NotFound if there is none."""
    result = find_last_report(session, get_collection(session, collection), ForecastGrowth.kind)
    if result is None:
        raise NotFound(f"there is no forecast of collection {collection!r}, or it is too old")
    return ForecastOut.model_validate(result)
