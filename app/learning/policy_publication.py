"""What happens to the candidate of a training that a policy started."""

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Job, Training, TrainingPolicy
from app.errors import AppError
from app.publishing.requests import PublishRequest, request_publication
from app.queue.messages import POLICY

log = logging.getLogger("likeness.policy")


def is_better(report: Mapping[str, Any], task: str) -> bool:
    """Whether the 95 % interval of the candidate's gain in mAP, on people held out, lies above 0."""
    gain = (report.get("tasks", {}).get(task, {}).get("difference") or {}).get("mAP")
    return gain is not None and float(gain["low"]) > 0


def publish_if_better(session: Session, training: Training) -> Job | None:
    """Ask for the publication of the candidate if the policy that started the training says so; return the job.

    The publication goes through the gate like any other. A candidate that cannot be published waits.
    """
    has_started = (
        TrainingPolicy.last_training == training.id,
        TrainingPolicy.collection_id == training.request["collection"],
    )
    policy = session.scalar(select(TrainingPolicy).where(*has_started))
    if policy is None or policy.publish != "if_better" or training.model is None:
        return None
    if not is_better(training.report, policy.task):
        log.info("policy.not_better collection=%s task=%s model=%s", policy.collection_id, policy.task, training.model)
        return None
    reason = f"the training policy found it better on people held out ({training.id})"
    request = PublishRequest(training.model, (policy.task,), reason=reason, by=POLICY)
    try:
        return request_publication(session, policy.collection_id, request)
    except AppError as error:
        log.warning("policy.cannot_publish model=%s error=%s", training.model, error)
        return None
