"""Create, list, read and delete collections."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.collections import service
from app.collections.schemas import CollectionIn, CollectionOut, CollectionsOut
from app.db import lookups
from app.db.field_types import CollectionName, NewCollectionName
from app.db.tables import Collection
from app.deps import Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.headers import describe_headers
from app.deps.paging import read_page
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, OPERATOR, READER
from app.deps.scopes import COLLECTION, NEW_COLLECTION, ROWS

router = APIRouter(prefix="/v1/collections", tags=["collections"])
CollectionId = Annotated[CollectionName, Path(alias="collection")]
NewCollectionId = Annotated[NewCollectionName, Path(alias="collection")]


@router.put(
    "/{collection}",
    status_code=201,
    summary="Make a collection",
    openapi_extra={
        **OPERATOR,
        **NEW_COLLECTION,
        **declare_problems((409, "ResourceInUse"), (409, "NotInstalled"), (422, "UnknownComponent")),
    }
    | audit_as("collection.create"),
    responses={200: {"model": CollectionOut, "description": "the collection existed already"}},
)
def put_collection(
    collection: NewCollectionId,
    session: WriteDep,
    resources: ResourcesDep,
    response: Response,
    body: CollectionIn | None = None,
) -> CollectionOut:
    """201 if the collection is new, 200 if it existed already. A new collection is served by the recogniser in the
    body, or by the default recogniser (`GET /info`)."""
    row, new = service.put_collection(session, resources, collection, body or CollectionIn())
    response.status_code = 201 if new else 200
    return service.describe_collections(session, [row])[0]


@router.get("", summary="List collections", openapi_extra=READER | ROWS)
def list_collections(session: ReadDep, limit: Limit = 100, next_token: NextToken = None) -> CollectionsOut:
    """Collections in the order of their ids."""
    rows, token = read_page(session, Collection, Collection.id, limit, next_token, ~Collection.is_deleted)
    return CollectionsOut(collections=service.describe_collections(session, rows), next_token=token)


@router.get("/{collection}", summary="Look at a collection", openapi_extra=READER | COLLECTION)
def get_collection(collection: CollectionId, session: ReadDep) -> CollectionOut:
    """The collection, with the numbers of its faces and subjects."""
    return service.describe_collections(session, [lookups.get_collection(session, collection)])[0]


@router.delete(
    "/{collection}",
    status_code=204,
    summary="Delete a collection",
    openapi_extra=ADMIN | COLLECTION | audit_as("collection.delete"),
    responses={204: describe_headers("X-Erasure")},
)
def delete_collection(collection: CollectionId, session: WriteDep, response: Response) -> None:
    """Deletes the collection, its faces, subjects, labels, embeddings and index entries. A job erases its files and all
    other traces.

    Nobody finds the collection from now on. The job also deletes the rows of a collection of more than 2,000 faces:
    until they are gone, `PUT` on the same id answers 409."""
    response.headers["X-Erasure"] = f"/v1/erasures/{service.delete_collection(session, collection)}"
