"""Judge the settled labels of a query face by two models."""

from sqlalchemy.orm import Session

from app.search.enrolled_faces import read_embeddings
from app.serving.deployments import ServedModel
from app.serving.shadow.totals import Sums

MAX_JUDGED_LABELS = 100
"""How many labels of one query face are judged."""


def judge_labels(session: Session, champion: ServedModel, challenger: ServedModel, query_face: int) -> Sums:
    """Return how many settled labels of a face both models have judged, and which of them got them right alone.

    A pair passes if its distance is within the collection's default threshold under that model, as in the gate.
    query_face: its pk
    """
    labels = champion.deployment.constraints.labels.get(query_face, ())[:MAX_JUDGED_LABELS]
    if not labels:
        return {}
    answers = {(label.face_b if label.face_a == query_face else label.face_a): label.same for label in labels}
    by_champion = _list_passing(session, champion, query_face, list(answers))
    by_challenger = _list_passing(session, challenger, query_face, list(answers))
    judged = [
        (by_champion[face] == same, by_challenger[face] == same)
        for face, same in answers.items()
        if face in by_champion and face in by_challenger
    ]
    return {
        "labels": len(judged),
        "broken_labels": sum(champion_right and not right for champion_right, right in judged),
        "mended_labels": sum(right and not champion_right for champion_right, right in judged),
    }


def _list_passing(session: Session, served: ServedModel, query_face: int, faces: list[int]) -> dict[int, bool]:
    """Return face -> whether its pair with the query face passes; empty if the model is not calibrated."""
    threshold = served.scores.threshold()
    embeddings = read_embeddings(session, served, [query_face, *faces])
    query = embeddings.get(query_face)
    if threshold is None or query is None:
        return {}
    metric = served.index.metric
    return {
        face: bool(metric.distances(query[None], embeddings[face][None])[0, 0] <= threshold.distance)
        for face in faces
        if face in embeddings
    }
