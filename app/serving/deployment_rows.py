"""Read the rows of all deployments, each with what the follower compares to know whether it is up to date."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Deployment
from app.serving.compensation.store import read_versions
from app.serving.deployments import DeploymentKey
from app.serving.faces.face_table_loader import CollectionKey
from app.serving.index_builder import IndexKey

DEPLOYMENTS_QUERY = select(
    Deployment.collection_id,
    Deployment.task,
    Collection.created_at,
    Collection.change,
    Collection.label_change,
    Collection.label_reread_change,
    Deployment.version,
    Deployment.updated_at,
    Deployment.champion,
    Deployment.challenger,
    Deployment.previous,
    Deployment.shadow_share,
).join(Collection, Collection.id == Deployment.collection_id)


class DeploymentRow(NamedTuple):
    """The row of a deployment, with the change number of its collection.

    compensations: model id -> version of its source compensation
    """

    collection: str
    task: str
    collection_created_at: float
    change: int
    label_change: int
    label_reread_change: int
    version: int
    updated_at: float
    champion: str
    challenger: str | None
    previous: str | None
    shadow_share: float
    compensations: Mapping[str, int]

    @property
    def key(self) -> DeploymentKey:
        return self.collection, self.task

    @property
    def pointers(self) -> Mapping[str, str | None]:
        return {"champion": self.champion, "challenger": self.challenger, "previous": self.previous}

    @property
    def collection_key(self) -> CollectionKey:
        return CollectionKey(self.collection, self.collection_created_at)

    def index_key(self, model_id: str) -> IndexKey:
        version = self.compensations.get(model_id, 0)
        return IndexKey(self.collection, self.task, model_id, self.collection_created_at, version)


def read_deployments(session: Session) -> list[DeploymentRow]:
    """Read the deployments of all collections."""
    versions = read_versions(session)
    return [DeploymentRow._make((*row, versions.get(row[:2], {}))) for row in session.execute(DEPLOYMENTS_QUERY)]
