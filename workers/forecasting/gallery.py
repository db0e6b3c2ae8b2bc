"""Read what a forecast starts from: the index as it serves, the people, and the threshold of their searches."""

from dataclasses import dataclass

import numpy as np

from app.db.lookups import get_collection
from app.db.session import snapshot
from app.db.tables import BUILT_IN_TASK
from app.publishing.pointers import get_deployment
from app.serving import index_builder
from app.serving.calibration.gallery_faces import read_faces, read_refused_faces
from app.serving.calibration.learned_gallery import read_learned_gallery
from app.serving.calibration.seen_people import read_seen_share
from app.serving.compensation.store import read_compensation
from app.serving.index_builder import IndexKey
from app.serving.scores import Scores
from ml.identification.open_set import PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople
from ml.indexes.base import Index
from ml.model import Model
from workers.context import JobContext


@dataclass(frozen=True, eq=False)
class ForecastGallery:
    """The faces of a collection that have an embedding of the champion, and how its searches decide.

    fpir: the rate of strangers named; threshold: the threshold at this rate, None if nothing was measured yet
    is_trained_here: whether the model was trained on these people
    """

    model: Model
    index: Index
    people: GalleryPeople
    fpir: float
    threshold: PersonThreshold | None
    is_trained_here: bool

    @property
    def rule(self) -> DecisionRule:
        """How person distances are computed."""
        return self.threshold.rule if self.threshold else DecisionRule()


def read_gallery(context: JobContext, collection_id: str, fpir: float | None) -> ForecastGallery:
    """Read the gallery at one moment, without people who may not be found.

    fpir: None means the default rate of the collection
    Raises NotFound, ml.Corrupt, ml.Unavailable.
    """
    resources = context.resources
    with snapshot(resources.database) as session:
        collection = get_collection(session, collection_id)
        deployment = get_deployment(session, collection_id, BUILT_IN_TASK)
        model = resources.models.get(deployment.champion)
        compensation = read_compensation(session, collection_id, BUILT_IN_TASK, model.id)
        key = IndexKey(collection_id, BUILT_IN_TASK, model.id, collection.created_at, compensation.version)
        dim = index_builder.find_embedding_size(model, BUILT_IN_TASK)
        index = index_builder.build_index(
            session, key, dim, model.metric, resources.settings.index_device, compensation=compensation
        )
        usable = np.setdiff1d(index.ids(), read_refused_faces(session, collection_id))
        faces = read_faces(session, collection_id).restrict_to(usable)
        measured = deployment.measurements.get(model.id)
        learned = read_learned_gallery(session, resources.installation_key, model, key)
        is_trained_here = learned.with_seen(read_seen_share(measured)).is_trained_here
        scores = Scores.of(measured, model, BUILT_IN_TASK, deployment.default_fpir)
    people = GalleryPeople.from_rows(faces.ids, faces.subjects, faces.is_distractor)
    rate = fpir or scores.default_fpir
    threshold = scores.person_threshold(rate, len(faces.ids))
    return ForecastGallery(model, index, people, rate, threshold, is_trained_here)
