"""When a deployment is trained again without being asked: on a schedule, or after so many further settled labels.

A policy never starts a training while one of the collection runs or waits, while the budget is spent, or while nothing
is new. After a training that failed it waits for further labels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import BUILT_IN_TASK, Collection, Face, Job, Training, TrainingPolicy
from app.errors import AppError
from app.galleries.label_consensus import decide_collection
from app.learning.plan import Plan, Source
from app.learning.plan_resolution import make_plan
from app.learning.training_budget import BudgetUse, read_budget_use
from app.learning.training_clock import find_next_time
from app.learning.training_request import TrainingFields, TrainingRequest
from app.queue.jobs import LIVE_STATES, enqueue
from app.queue.messages import POLICY, Train
from ml.errors import LikenessError

State = Literal[
    "on_demand", "due", "never", "running", "refused", "nothing_new", "failed", "scheduled", "too_few_labels",
    "one_kind", "budget_spent",
]  # fmt: skip


class LabelCounts(NamedTuple):
    """The settled pairs of a task in a collection."""

    same: int
    different: int

    @property
    def total(self) -> int:
        return self.same + self.different


@dataclass(frozen=True)
class PolicyStatus:
    """Whether a training is due, and if not, why. next_at: when it may be, if time alone decides"""

    state: State
    detail: str
    next_at: float | None = None


def count_labels(session: Session, collection: str, task: str) -> LabelCounts:
    """Count the settled pairs of the collection's faces."""
    same = decide_collection(session, collection, task).same
    return LabelCounts(int(same.sum()), int((~same).sum()))


def judge_policy(
    session: Session, policy: TrainingPolicy, at: float, read_counts: Callable[[], LabelCounts]
) -> PolicyStatus:
    """Say whether a training is due at this time. read_counts: counts the settled pairs; called only if it matters"""
    if policy.trigger == "on_demand":
        return PolicyStatus("on_demand", "trainings start only when somebody asks for one")
    if policy.max_trainings == 0 or policy.max_seconds == 0:
        return PolicyStatus("never", "the budget is zero: no training ever starts by itself")
    use = read_budget_use(session, policy.collection_id, at)
    if use.is_running:
        return PolicyStatus("running", "a training of this collection runs or waits")
    for status in _iterate_obstacles(session, policy, at, use, read_counts):
        return status
    return PolicyStatus("due", "a training starts within seconds", at)


def _iterate_obstacles(
    session: Session, policy: TrainingPolicy, at: float, use: BudgetUse, read_counts: Callable[[], LabelCounts]
) -> Iterator[PolicyStatus]:
    """Iterate over what keeps a training from starting, the cheapest to find out first."""
    change = session.scalar(select(Collection.change).where(Collection.id == policy.collection_id))
    if change == policy.last_change:
        if policy.problem:
            yield PolicyStatus("refused", f"{policy.problem}. It is tried again when the collection has changed")
        yield PolicyStatus("nothing_new", "nothing has changed in the collection since the last training")
    if policy.trigger == "schedule":
        next_at = find_next_time(policy.since, policy.last_at, policy.hours, policy.at)
        if at < next_at:
            yield PolicyStatus("scheduled", "the time has not come", next_at)
    end = use.find_end(policy.max_trainings, policy.max_seconds)
    if end is not None:
        spent = f"{len(use.runs)} trainings and {use.seconds:.0f} seconds in the last 24 hours"
        yield PolicyStatus("budget_spent", f"the budget is spent: {spent}", end)
    yield from _iterate_missing_labels(session, policy, read_counts())


def _iterate_missing_labels(session: Session, policy: TrainingPolicy, counts: LabelCounts) -> Iterator[PolicyStatus]:
    further = counts.total - policy.last_labels
    if policy.trigger == "labels" and further < policy.labels:
        missing = f"{further} further pairs are settled since the last training, of {policy.labels}"
        yield PolicyStatus("too_few_labels", missing)
    if further <= 0 and _has_failed(session, policy):
        yield PolicyStatus("failed", "the last training failed; the next one waits for further labels")
    kinds = _find_kinds(session, policy, counts)
    if not kinds.same or (not kinds.different and read_fields(policy).method != "auto"):
        known = "not the same" if kinds.different else "the same" if kinds.same else "nothing"
        yield PolicyStatus(
            "one_kind",
            f"pairs of both kinds are needed, and all that is known says {known!r}: {counts.same} pairs are labelled "
            f"'same' and {counts.different} 'not the same'",
        )


def _has_failed(session: Session, policy: TrainingPolicy) -> bool:
    """Whether the last training has ended without a model."""
    training = session.get(Training, policy.last_training) if policy.last_training else None
    if training is None or training.model is not None:
        return False
    job = session.get(Job, training.job_id) if training.job_id else None
    return job is None or job.state not in LIVE_STATES


def _find_kinds(session: Session, policy: TrainingPolicy, counts: LabelCounts) -> LabelCounts:
    """Return which kinds of pairs the sources have, as 0 or 1. Metadata is taken to have both."""
    origins = {source.origin for source in make_request(policy).sources or _default_sources()}
    same, different = (bool(n) and "labels" in origins for n in counts)
    if "subjects" in origins and not (same and different):
        named = select(func.count(Face.pk)).where(Face.subject_pk.is_not(None), Face.role == "gallery")
        named = named.where(Face.collection_id == policy.collection_id).group_by(Face.subject_pk)
        sizes = session.scalars(named).all()
        same, different = same or max(sizes, default=0) > 1, different or len(sizes) > 1
    has_metadata = bool(origins - {"labels", "subjects"})
    return LabelCounts(same or has_metadata, different or has_metadata)


def _default_sources() -> list[Source]:
    return [Source(origin="subjects"), Source(origin="labels")]


def read_fields(policy: TrainingPolicy) -> TrainingFields:
    """Return how the policy trains."""
    return TrainingFields.model_validate(policy.request)


def make_request(policy: TrainingPolicy) -> TrainingRequest:
    """Return the request of the policy's next training; a task other than identity learns from its labels."""
    given = dict(policy.request)
    if not given.get("sources") and policy.task != BUILT_IN_TASK:
        given["sources"] = [{"task": policy.task, "from": "labels"}]
    return TrainingRequest(collection=policy.collection_id, **given)


def start_due_training(
    session: Session, settings: Settings, key: tuple[str, str], at: float, counts: LabelCounts
) -> Training | None:
    """Start the training of a policy, (collection, task), if it is due. Several workers may try at once: one starts it.

    If it cannot be planned, the policy records why, and waits for a change of the collection. All policies of the
    collection are locked, since they share its budget.
    """
    policies = select(TrainingPolicy).where(TrainingPolicy.collection_id == key[0]).order_by(TrainingPolicy.task)
    locked = session.scalars(policies.with_for_update(), execution_options={"populate_existing": True})
    policy = next((one for one in locked.all() if one.task == key[1]), None)
    if policy is None or judge_policy(session, policy, at, lambda: counts).state != "due":
        return None
    policy.last_at, policy.last_labels = at, counts.total
    policy.last_change = session.scalar(select(Collection.change).where(Collection.id == policy.collection_id))
    try:
        plan = make_plan(session, settings, make_request(policy))
    except (AppError, LikenessError) as error:
        policy.problem, policy.last_training = str(error)[:1000], None
        return None
    policy.problem = None
    training = start_training(session, plan, POLICY)
    policy.last_training = training.id
    return training


def start_training(session: Session, plan: Plan, requested_by: str = "") -> Training:
    """Store a training and enqueue its job. Trainings of one collection run one after the other."""
    training = Training(request=plan.model_dump(mode="json", by_alias=True))
    session.add(training)
    session.flush()
    message = Train(training=training.id, collection=plan.collection, requested_by=requested_by)
    training.job_id = enqueue(session, message, reads=plan.collections).id
    return training
