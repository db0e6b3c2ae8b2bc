"""Suggest what to ask people next: the pairs and groups from which the next training is expected to learn most."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy.orm import Session

from app.db.statement_limits import wait_for_turn
from app.labels.cluster_schemas import ClusterFace, SuggestedCluster
from app.labels.label_outlook import read_outlook
from app.labels.question_faces import CurrentNames, QuestionFaces, read_current_names, read_question_faces
from app.labels.schemas import OutlookOut, SuggestedPair, SuggestIn, SuggestionsOut
from app.publishing.pointers import get_deployment
from app.resources import Resources
from app.storage.audit_log.notes import note_audited
from ml.active_learning import ClusterQuestion, PairSuggestions, choose_clusters, choose_pairs
from ml.active_learning.expected_gain import LabelOutlook
from ml.calibration import Calibration

REFERENCE_PAIRS = 20
"""The first suggestions, of which each is worth a label on average."""


def suggest_labels(session: Session, resources: Resources, request: SuggestIn) -> SuggestionsOut:
    """Suggest pairs or clusters from a random sample of the gallery, spread over faces and people.

    Raises NotFound if the collection has no model for the task, Busy.
    """
    note_audited(session, [request.collection])
    with wait_for_turn(session):
        return _suggest_labels(session, resources, request)


def _suggest_labels(session: Session, resources: Resources, request: SuggestIn) -> SuggestionsOut:
    champion = resources.models.get(get_deployment(session, request.collection, request.task).champion)
    faces = read_question_faces(session, champion, request.collection, request.task)
    outlook = read_outlook(session, request.collection, request.task, faces.label_count)
    count = max(request.limit, REFERENCE_PAIRS)
    suggestions = choose_pairs(faces.rows, faces.subjects, champion.metric, faces.answers, count)
    points = _find_points_per_value(outlook, suggestions)
    answer = SuggestionsOut(model=champion.id, pairs=[], clusters=[], outlook=_describe_outlook(outlook))
    if request.kind == "clusters":
        questions = choose_clusters(faces.rows, faces.subjects, champion.metric, faces.answers, request.limit)
        numbers = [number for question in questions for number in question.faces.tolist()]
        names = read_current_names(session, request.collection, faces.pks[numbers].tolist())
        answer.clusters = _describe_clusters(faces, names, questions, points)
    else:
        names = read_current_names(session, request.collection, faces.pks[suggestions.pairs.ravel()].tolist())
        calibration = champion.calibrations.get(request.task)
        answer.pairs = _describe_pairs(faces, names, suggestions, calibration, points)[: request.limit]
    return answer


def _find_points_per_value(outlook: LabelOutlook | None, suggestions: PairSuggestions) -> float | None:
    """Return the points of mAP that a unit of value is worth, if the first REFERENCE_PAIRS pairs are mean labels."""
    value = float(suggestions.values[:REFERENCE_PAIRS].mean()) if len(suggestions.values) else 0.0
    return outlook.expected_per_label / value if outlook is not None and value > 0 else None


def _describe_outlook(outlook: LabelOutlook | None) -> OutlookOut | None:
    return None if outlook is None else OutlookOut(**asdict(outlook))


def _describe_pairs(
    faces: QuestionFaces,
    names: CurrentNames,
    suggestions: PairSuggestions,
    calibration: Calibration | None,
    points: float | None,
) -> list[SuggestedPair]:
    """Describe the pairs of which both faces may be used."""
    similarities = [None] * len(suggestions.pairs)
    if calibration is not None:
        similarities = calibration.similarity(suggestions.distances).tolist()
    return [
        SuggestedPair(
            face_a=faces.face_ids[first],
            face_b=faces.face_ids[second],
            subject_a=names[faces.pks[first]],
            subject_b=names[faces.pks[second]],
            distance=float(suggestions.distances[k]),
            similarity=similarities[k],
            same_probability=float(suggestions.probabilities[k]),
            expected_gain=None if points is None else points * float(suggestions.values[k]),
        )
        for k, (first, second) in enumerate(suggestions.pairs.tolist())
        if faces.pks[first] in names and faces.pks[second] in names
    ]


def _describe_clusters(
    faces: QuestionFaces, names: CurrentNames, questions: Sequence[ClusterQuestion], points: float | None
) -> list[SuggestedCluster]:
    """Describe the groups of which every face may be used."""
    return [
        SuggestedCluster(
            faces=[
                ClusterFace(face_id=faces.face_ids[k], subject_id=names[faces.pks[k]]) for k in question.faces.tolist()
            ],
            same_probability=question.probability,
            expected_gain=None if points is None else points * question.value,
        )
        for question in questions
        if names.keys() >= set(faces.pks[question.faces].tolist())
    ]
