"""Describe and change training policies."""

from fastapi import Response
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.lookups import get_collection, get_model
from app.db.tables import Collection, Job, ModelRecord, Task, Training, TrainingPolicy, now
from app.deps.deployment_path import DeploymentPath, VersionedPath
from app.errors import Forbidden, Invalid, NotFound, Stale
from app.learning import training_policy
from app.learning.plan_resolution import make_plan
from app.learning.policy_publication import is_better
from app.learning.training_clock import DAY_HOURS
from app.learning.warm_start import SERVING
from app.training_policies.schemas import LastTrainingOut, TrainingPolicyIn, TrainingPolicyOut


def describe_policy(session: Session, path: DeploymentPath, response: Response) -> TrainingPolicyOut:
    """Describe the policy, or what holds while nobody has set one. Raises NotFound."""
    _check_path(session, path)
    policy = session.get(TrainingPolicy, (path.collection, path.task)) or _make_default(path)
    return _describe(session, policy, response)


def change_policy(
    session: Session, settings: Settings, path: VersionedPath, body: TrainingPolicyIn, response: Response
) -> TrainingPolicyOut:
    """Set the fields that the body states. Raises NotFound, Stale, and like a training Invalid and Conflict."""
    _check_path(session, path, lock=True)
    policy = session.get(TrainingPolicy, (path.collection, path.task), with_for_update=True)
    version = policy.version if policy else 0
    if path.version is not None and path.version != version:
        raise Stale(f"the policy is at version {version}, not {path.version}: read it again", version=version)
    if policy is None:
        policy = _make_default(path)
        session.add(policy)
    before = (policy.trigger, policy.hours, policy.at)
    for name in body.model_fields_set - {"training"}:
        setattr(policy, name, getattr(body, name))
    if "training" in body.model_fields_set:
        policy.request = body.training.model_dump(mode="json", by_alias=True, exclude_unset=True)
    elif not _is_seen(session, policy):
        raise Forbidden("the policy trains on what this key may not see: state `training` anew, or use another key")
    _check_policy(session, settings, policy)
    if before != (policy.trigger, policy.hours, policy.at):
        policy.since = now()
        policy.last_labels = training_policy.count_labels(session, path.collection, path.task).total
    if policy.problem:
        policy.problem, policy.last_change = None, None
    policy.version = version + 1
    session.flush()
    return _describe(session, policy, response)


def _check_path(session: Session, path: DeploymentPath, lock: bool = False) -> None:
    get_collection(session, path.collection, lock=lock)
    if session.get(Task, path.task) is None:
        raise NotFound(f"no task {path.task!r}")


def _make_default(path: DeploymentPath) -> TrainingPolicy:
    return TrainingPolicy(
        collection_id=path.collection,
        task=path.task,
        version=0,
        trigger="on_demand",
        hours=DAY_HOURS,
        labels=100,
        publish="never",
        request={},
        last_labels=0,
        since=now(),
    )


def _check_policy(session: Session, settings: Settings, policy: TrainingPolicy) -> None:
    """Raises Invalid where hours and time of day do not fit, and what a training as described would raise.

    What the training names must exist for this session even while nothing triggers it: somebody else may do that later.
    """
    if policy.at is not None and policy.hours % DAY_HOURS:
        raise Invalid(f"with a time of day, `hours` must be whole days such as 24 or 168, not {policy.hours:g}")
    fields = training_policy.read_fields(policy)
    for source in fields.sources:
        get_collection(session, source.collection or policy.collection_id)
    if fields.start_from not in (None, SERVING):
        get_model(session, fields.start_from)
    if policy.trigger != "on_demand":
        make_plan(session, settings, training_policy.make_request(policy))


def _is_seen(session: Session, policy: TrainingPolicy) -> bool:
    """Whether every collection and model that the training names exists for this session."""
    fields = training_policy.read_fields(policy)
    collections = {source.collection for source in fields.sources} - {None}
    models = {fields.start_from} - {None, SERVING}
    rows = [session.get(Collection, name) for name in collections]
    return all(row is not None and not row.is_deleted for row in rows) and all(
        session.get(ModelRecord, name) for name in models
    )


def _describe(session: Session, policy: TrainingPolicy, response: Response) -> TrainingPolicyOut:
    key = (policy.collection_id, policy.task)
    status = training_policy.judge_policy(session, policy, now(), lambda: training_policy.count_labels(session, *key))
    response.headers["ETag"] = f'"{policy.version}"'
    is_seen = _is_seen(session, policy)
    return TrainingPolicyOut(
        collection=policy.collection_id,
        task=policy.task,
        version=policy.version,
        trigger=policy.trigger,
        hours=policy.hours,
        at=policy.at,
        labels=policy.labels,
        max_trainings=policy.max_trainings,
        max_seconds=policy.max_seconds,
        publish=policy.publish,
        training=policy.request if is_seen else None,
        state=status.state,
        detail=status.detail if is_seen or status.state != "refused" else "the training cannot be planned",
        next_at=status.next_at,
        last=_describe_last(session, policy),
    )


def _describe_last(session: Session, policy: TrainingPolicy) -> LastTrainingOut | None:
    training = session.get(Training, policy.last_training) if policy.last_training else None
    if training is None or policy.last_at is None:
        return None
    job = session.get(Job, training.job_id) if training.job_id else None
    return LastTrainingOut(
        training=training.id,
        job=training.job_id,
        started_at=policy.last_at,
        labels=policy.last_labels,
        state=job.state if job else "succeeded" if training.model else "cancelled",
        model=training.model,
        better=is_better(training.report, policy.task) if training.model else None,
    )
