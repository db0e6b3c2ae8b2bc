"""List the labellers of a collection with what their labels agree on."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.db.field_types import CollectionName, TaskName
from app.deps import Limit, NextToken, ReadDep
from app.deps.roles import ADMIN
from app.deps.scopes import COLLECTION
from app.labellers import service
from app.labellers.schemas import LabellersOut

router = APIRouter(prefix="/v1/collections/{collection}/labellers", tags=["labels"])

CollectionId = Annotated[CollectionName, Path(alias="collection")]
Task = Annotated[TaskName, Query(description="only labels for this task", examples=["identity"])]


@router.get("", summary="List labellers", openapi_extra=ADMIN | COLLECTION)
def list_labellers(
    collection: CollectionId,
    session: ReadDep,
    task: Task = "identity",
    limit: Limit = 100,
    next_token: NextToken = None,
) -> LabellersOut:
    """Everybody whose labels of this collection's faces count now: how often they agree with others, and what their
    votes weigh where `label_weights` of the deployment is `agreement`. The least weight comes first. Each page is
    computed anew, so a label that comes between two pages may move somebody from one to the other."""
    return service.list_labellers(session, collection, task, limit, next_token)
