"""List the methods and descriptors that a training can name, with the options that it can set."""

from fastapi import APIRouter

from app.deps import ResourcesDep
from app.deps.roles import READER
from app.deps.scopes import NOTHING
from app.methods import service
from app.methods.schemas import MethodsOut

router = APIRouter(prefix="/v1/methods", tags=["methods"])


@router.get("", summary="List methods and descriptors", openapi_extra=READER | NOTHING)
def list_methods(resources: ResourcesDep) -> MethodsOut:
    """The methods and descriptors that trainings and evaluations can name, with the types, defaults, ranges and meaning
    of their options. Options that name a device or a file of the server are not listed and cannot be set."""
    return service.list_methods_and_descriptors(resources.settings)
