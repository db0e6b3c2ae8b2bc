"""Add, list, withdraw and suggest labels, which are statements of people about pairs of faces."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.db import examples
from app.db.field_types import Word
from app.deps import CallerDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.problems import declare_problems
from app.deps.roles import LARGE_JSON, OPERATOR, READ
from app.deps.scopes import ROWS
from app.deps.server.request_structure import LINES, allow_values
from app.labels import bulk_labels, cluster_answers, label_suggestions, service
from app.labels.cluster_schemas import ClusterAnswerIn, ClusterAnswerOut
from app.labels.schemas import (
    MAX_LABELS,
    AddedOut,
    LabelIn,
    LabelsIn,
    LabelsOut,
    SuggestIn,
    SuggestionsOut,
    WithdrawnOut,
)
from app.labels.streaming import ReceivedDep
from app.labels.withdrawal import WithdrawalDep

router = APIRouter(prefix="/v1/labels", tags=["labels"], route_class=AnswerRoute)
CSV = f"face_a,face_b,same,by\n{examples.FACE},{examples.OTHER_FACE},true,{examples.LABELLER}\n"
JSONL = f'{{"face_a": "{examples.FACE}", "face_b": "{examples.OTHER_FACE}", "same": true}}\n'
FORM = {
    "type": "object",
    "properties": {"file": {"type": "string", "description": "CSV or JSON lines"}},
    "required": ["file"],
}
ADDS = {
    **OPERATOR,
    **ROWS,
    **declare_problems((422, "SameFace"), (422, "ResourceNotFound"), (422, "UnknownTask"), (422, "TaskDisabled")),
}
VALUES_PER_LABEL = 2 + len(LabelIn.model_fields)
BULK = {
    **ADDS,
    **LINES,
    "requestBody": {
        "required": True,
        "content": {
            "text/csv": {"schema": {"type": "string"}, "example": CSV},
            "application/x-ndjson": {"schema": {"type": "string"}, "example": JSONL},
            "multipart/form-data": {"schema": FORM, "example": {"file": CSV}},
        },
    },
}
ANSWERS = {
    **OPERATOR,
    **ROWS,
    **declare_problems(
        (422, "ContradictoryAnswer"), (422, "ResourceNotFound"), (422, "UnknownTask"), (422, "TaskDisabled")
    ),
}
Task = Annotated[Word | None, Query(description="only labels for this task", examples=["identity"])]
By = Annotated[Word | None, Query(description="only labels that this labeller gave", examples=[examples.LABELLER])]
OfFace = Annotated[Word | None, Query(description="only labels of this face", examples=[examples.FACE])]
Labeller = Annotated[Word, Query(description="the labeller whose labels are withdrawn", examples=[examples.LABELLER])]
SUGGESTS = {
    **OPERATOR,
    **READ,
    **ROWS,
    **declare_problems((404, "ResourceNotFound"), (409, "NotInstalled"), (503, "ModelUnavailable")),
}
Contradicting = Annotated[bool, Query(description="only pairs on which the latest labels of labellers disagree")]


@router.post(
    "",
    summary="Label pairs of faces",
    openapi_extra=ADDS | LARGE_JSON | allow_values(VALUES_PER_LABEL * MAX_LABELS) | audit_as("label.add"),
)
def add_labels(body: LabelsIn, session: WriteDep, caller: CallerDep) -> AddedOut:
    """Adds labels. A later label by the same person supersedes their earlier one. Among several people, the majority
    counts; a tie decides nothing. Labels that are not valid are listed in `refused`; 422 if none is valid."""
    return service.add_labels(session, caller, list(enumerate(body.iterate_labels())))


@router.post(":import", summary="Label pairs in bulk", openapi_extra=BULK | audit_as("label.import"))
def import_labels(received: ReceivedDep, session: WriteDep, caller: CallerDep) -> AddedOut:
    """CSV with a header, or one JSON object per line, as the body or as a file of a form. `index` is the number of the
    record, from 0. At most 100,000 records."""
    return service.add_labels(session, caller, *bulk_labels.parse_labels(received))


@router.get("", summary="List labels", openapi_extra=OPERATOR | ROWS)
def list_labels(
    session: ReadDep, task: Task = None, by: By = None, face: OfFace = None,
    contradicting: Contradicting = False, limit: Limit = 100, next_token: NextToken = None,
) -> LabelsOut:  # fmt: skip
    """All labels in the order in which they were given, also superseded and withdrawn ones."""
    label_filter = service.LabelFilter(task, by, face, contradicting)
    labels, token = service.list_labels(session, label_filter, limit, next_token)
    return LabelsOut(labels=labels, next_token=token)


@router.delete(
    "", summary="Take back all labels of one labeller", openapi_extra=OPERATOR | ROWS | audit_as("label.withdraw")
)
def withdraw_labels(withdrawal: WithdrawalDep, session: WriteDep, by: Labeller) -> WithdrawnOut:
    """The labels are kept, with `withdrawn_at`, but neither searches nor later trainings use them. `pairs` lists those
    of one collection that are decided otherwise from now on. Many labels are withdrawn in steps, the oldest first: if
    the request fails, repeat it to withdraw the rest."""
    return withdrawal.withdraw(session, by)


@router.post(
    ":answer-cluster",
    summary="Say which faces of a group are one person",
    openapi_extra=ANSWERS | audit_as("label.answer"),
)
def answer_cluster(
    body: ClusterAnswerIn, resources: ResourcesDep, session: WriteDep, caller: CallerDep
) -> ClusterAnswerOut:
    """Stores the pair labels that the answer means: each two members are the same, and no outlier is the same as a
    member. An answer that contradicts itself is refused. Where it differs from earlier labels of others, or from what
    follows from them, it is stored and the pairs are listed; the majority decides as for any label. `note` and the name
    of the labeller are stored with each label: together they may take 4 MiB."""
    return cluster_answers.add_cluster_answer(resources.database, session, caller, body)


@router.post(
    ":suggest",
    summary="Which pairs or groups of faces to label next",
    openapi_extra=SUGGESTS | audit_as("label.suggest"),
)
def suggest_labels(body: SuggestIn, session: ReadDep, resources: ResourcesDep) -> SuggestionsOut:
    """The pairs from which the next training is expected to learn most, most valuable first. No face occurs more than
    twice. Pairs that are labelled, or follow from labels, are left out. They come from a random sample of the gallery,
    so a second request returns others. With `kind=clusters`, groups of 3 to 12 faces that may be one person."""
    return label_suggestions.suggest_labels(session, resources, body)
