"""The collection and task in the path of a request, and the version that the caller expects."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Path

from app.db.field_types import CollectionName, TaskName
from app.errors import Invalid


@dataclass(frozen=True)
class DeploymentPath:
    """The collection and task in the path of a request."""

    collection: Annotated[CollectionName, Path()]
    task: Annotated[TaskName, Path()]


@dataclass(frozen=True)
class VersionedPath(DeploymentPath):
    """A path with the version that the caller expects."""

    if_match: Annotated[
        str | None,
        Header(description="the ETag that the deployment must still have; without it, any", examples=['"3"']),
    ] = None

    @property
    def version(self) -> int | None:
        """The expected version, None meaning any. Raises Invalid if If-Match is not an ETag of a deployment."""
        tag = ("*" if self.if_match is None else self.if_match).strip().removeprefix("W/").strip('"')
        if tag == "*":
            return None
        if not tag.isdigit():
            raise Invalid('If-Match must be the ETag of the deployment, such as "3"')
        return int(tag)
