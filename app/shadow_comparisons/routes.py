"""Read how the challenger of a deployment compares with its champion."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from app.deps import ReadDep
from app.deps.deployment_path import DeploymentPath
from app.deps.headers import describe_headers
from app.deps.roles import READER
from app.deps.scopes import COLLECTION
from app.shadow_comparisons import service
from app.shadow_comparisons.schemas import ShadowComparisonOut

router = APIRouter(prefix="/v1/collections/{collection}/deployments/{task}/shadow", tags=["deployments"])
SHOWN: dict[int | str, dict[str, Any]] = {200: describe_headers("ETag")}


@router.get("", summary="Compare the challenger's answers", openapi_extra=READER | COLLECTION, responses=SHOWN)
def get_shadow_comparison(
    path: Annotated[DeploymentPath, Depends()], session: ReadDep, response: Response
) -> ShadowComparisonOut:
    """How often champion and challenger agree on the searches of `shadow_share`, since either pointer last moved. Only
    sums are kept: no photo, vector, face or person of a search. The ETag is that of the deployment."""
    return service.describe_comparison(session, path, response)
