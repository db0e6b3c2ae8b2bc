"""Jobs go on without faces whose stored crops are damaged, and name these faces in their results."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from app.db.session import reading
from app.db.tables import Evaluation, Training, now
from app.galleries.damaged_faces import describe_damaged_faces, mark_damaged_faces, were_marked_before
from app.learning.evaluation_request import EvaluationRequest
from app.learning.plan import Plan
from app.queue.messages import Compare, Evaluate, FitFirst, Message, Publish, Train
from app.resources import Resources
from app.storage.stored_faces import CropsDamaged
from workers.context import JobContext, Later

RESTART_SECONDS = 0.1

Handle = Callable[[Any, JobContext], dict[str, Any]]


def leave_out_damaged_faces(handle: Handle) -> Handle:
    """Make a handler that runs the job again without the faces whose crops it could not read.

    Its result has `damaged_faces`, {"count", "face_ids"}, if faces of its collections were left out. It raises Later
    once faces are newly marked as damaged, and AppError (TooManyDamaged) if they are too many.
    """

    @wraps(handle)
    def handle_intact(message: Message, context: JobContext) -> dict[str, Any]:
        started_at = now()
        try:
            result = handle(message, context)
        except CropsDamaged as damage:
            mark_or_raise(context.resources, damage, started_at)
            raise Later(RESTART_SECONDS) from damage
        return result | describe_damaged_faces(context.resources, _list_collections(context.resources, message))

    return handle_intact


def mark_or_raise(resources: Resources, damage: CropsDamaged, read_at: float) -> None:
    """Mark the faces of these crops, so that the next reading leaves them out; erased faces are left out anyway.

    read_at: when the faces were read
    Raises the error itself if all were marked by then, so that the next reading would have them again.
    """
    if not mark_damaged_faces(resources, damage.crops):
        with reading(resources.database) as session:
            if were_marked_before(session, [crop.face for crop in damage.crops], read_at):
                raise damage


def _list_collections(resources: Resources, message: Message) -> Sequence[str]:
    """List the collections whose faces a job reads."""
    with reading(resources.database) as session:
        if isinstance(message, Train):
            training = session.get(Training, message.training)
            return () if training is None else Plan.model_validate(training.request).collections
        if isinstance(message, Evaluate):
            request = session.get_one(Evaluation, message.evaluation).request
            return (EvaluationRequest.model_validate(request).collection,)
    assert isinstance(message, Publish | FitFirst | Compare)
    return (message.collection,)
