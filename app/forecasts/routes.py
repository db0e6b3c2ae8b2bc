"""Forecast how a collection's searches change as it grows."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName
from app.deps import ReadDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.roles import OPERATOR
from app.deps.scopes import COLLECTION
from app.forecasts import service
from app.forecasts.schemas import ForecastIn, ForecastOut

router = APIRouter(prefix="/v1/collections", tags=["forecasts"], route_class=AnswerRoute)

CollectionId = Annotated[CollectionName, Path(alias="collection")]


@router.post(
    "/{collection}:forecast",
    status_code=202,
    summary="Forecast a collection's growth",
    openapi_extra=OPERATOR | COLLECTION | audit_as("collection.forecast"),
)
def forecast(collection: CollectionId, session: WriteDep, response: Response, body: ForecastIn | None = None) -> JobOut:
    """Starts a job that measures strangers named and people found in parts of the collection, and predicts both for
    galleries of up to 100 times its size.

    Its result is the report that `GET /v1/collections/{collection}/forecast` returns. It changes nothing. If there is
    no threshold yet, the job fails with `NotCalibrated`.
    """
    return service.start_forecast(session, collection, body or ForecastIn(), response)


@router.get("/{collection}/forecast", summary="The last forecast", openapi_extra=OPERATOR | COLLECTION)
def get_forecast(collection: CollectionId, session: ReadDep) -> ForecastOut:
    """The report of the last forecast. 404 if there is none, or if its job was deleted as too old."""
    return service.read_report(session, collection)
