"""Suggest what to ask people next: the pairs and groups from which the next training is expected to learn most."""

from sqlalchemy.orm import Session

from app.labels.cluster_schemas import ClusterFace, SuggestedCluster
from app.labels.question_faces import QuestionFaces, read_question_faces
from app.labels.schemas import SuggestedPair, SuggestIn, SuggestionsOut
from app.publishing.pointers import get_deployment
from app.resources import Resources
from ml.active_learning import ClusterQuestion, PairSuggestions, choose_clusters, choose_pairs
from ml.calibration import Calibration


def suggest_labels(session: Session, resources: Resources, request: SuggestIn) -> SuggestionsOut:
    """Suggest pairs or clusters from a random sample of the gallery, spread over faces and people.

    Raises NotFound if the collection has no model for the task.
    """
    champion = resources.models.get(get_deployment(session, request.collection, request.task).champion)
    faces = read_question_faces(session, champion, request.collection, request.task)
    if request.kind == "clusters":
        questions = choose_clusters(faces.rows, faces.subjects, champion.metric, faces.answers, request.limit)
        return SuggestionsOut(model=champion.id, pairs=[], clusters=[_describe_cluster(faces, q) for q in questions])
    suggestions = choose_pairs(faces.rows, faces.subjects, champion.metric, faces.answers, request.limit)
    pairs = _describe_pairs(faces, suggestions, champion.calibrations.get(request.task))
    return SuggestionsOut(model=champion.id, pairs=pairs)


def _describe_pairs(
    faces: QuestionFaces, suggestions: PairSuggestions, calibration: Calibration | None
) -> list[SuggestedPair]:
    similarities = [None] * len(suggestions.pairs)
    if calibration is not None:
        similarities = calibration.similarity(suggestions.distances).tolist()
    return [
        SuggestedPair(
            face_a=faces.face_ids[first],
            face_b=faces.face_ids[second],
            subject_a=faces.subject_ids[first],
            subject_b=faces.subject_ids[second],
            distance=distance,
            similarity=similarity,
            same_probability=probability,
        )
        for (first, second), distance, similarity, probability in zip(
            suggestions.pairs.tolist(),
            suggestions.distances.tolist(),
            similarities,
            suggestions.probabilities.tolist(),
            strict=True,
        )
    ]


def _describe_cluster(faces: QuestionFaces, question: ClusterQuestion) -> SuggestedCluster:
    members = [
        ClusterFace(face_id=faces.face_ids[at], subject_id=faces.subject_ids[at]) for at in question.faces.tolist()
    ]
    return SuggestedCluster(faces=members, same_probability=question.probability)
