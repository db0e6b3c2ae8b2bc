"""Resolve a training request into a plan, and refuse at once whatever can be known to be wrong."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Collection, Face, Task
from app.errors import Invalid, NotFound
from app.learning.component_options import check_options, make_options_model
from app.learning.descriptor_choice import descriptors
from app.learning.plan import Plan, Source
from app.learning.training_request import TrainingRequest
from app.learning.warm_start import going_on
from ml import registry


def make_plan(session: Session, settings: Settings, request: TrainingRequest) -> Plan:
    """Resolve descriptors, options and sources. Raises NotFound (a collection), Invalid with the list of what exists.

    Whether the caller may use the plan's collections is for the API to check.
    """
    sources = request.sources or [Source(origin="subjects"), Source(origin="labels")]
    made = Plan(
        collection=request.collection,
        method=request.method,
        descriptors=tuple(descriptors(session, settings, request, sources[0].task)),
        options=_options(request),
        sources=tuple(sources),
        holdout=request.holdout,
    )
    if request.start_from is not None:
        made = going_on(session, made, request)
    for collection in made.collections:
        if session.get(Collection, collection) is None:
            raise NotFound(f"no collection {collection!r}")
    _check_tasks(session, made.tasks)
    _check_sources(made)
    return _sized(session, made, request)


def _options(request: TrainingRequest) -> dict[str, Any]:
    methods = registry.names("embedders")
    if request.method not in methods:
        raise Invalid(
            f"no method is named {request.method!r}; there are: {', '.join(methods)}",
            code="UnknownComponent",
            methods=methods,
        )
    if request.dim is not None and "dim" not in make_options_model("embedders", request.method).model_fields:
        raise Invalid(f"the method {request.method} has no dim: it keeps the descriptor's width")
    given = {"seed": request.seed} | ({} if request.dim is None else {"dim": request.dim}) | request.options
    return check_options("embedders", request.method, given)


def _check_tasks(session: Session, tasks: Iterable[str]) -> None:
    known = dict(session.execute(select(Task.name, Task.enabled)).all())
    for task in tasks:
        if task not in known:
            raise Invalid(f"no task {task!r}; there are: {', '.join(sorted(known))}", code="UnknownTask")
        if not known[task]:
            raise Invalid(f"the task {task!r} is off; an administrator may switch it on", code="TaskDisabled")


def _check_sources(plan: Plan) -> None:
    for task in plan.tasks:
        mine = [s for s in plan.sources if s.task == task]
        derived = {(s.origin, s.tolerance) for s in mine if s.origin != "labels"}
        if len(derived) > 1:
            raise Invalid(f"task {task!r}: all its sources must be subjects, or one metadata field with one tolerance")
        if len({(plan.of(s), s.origin) for s in mine}) < len(mine):
            raise Invalid(f"task {task!r}: a source is named twice")
        if any(s.tolerance is not None and s.metadata is None for s in mine):
            raise Invalid(f"task {task!r}: tolerance is for metadata; labels and subjects have none")


def _sized(session: Session, plan: Plan, request: TrainingRequest) -> Plan:
    """A learned space is no wider than what it is learned from; where no width was asked for, it has four faces an
    axis too. Raises ml.Unavailable where a file is missing."""
    width, dim = plan.recipe.dim, plan.options.get("dim", 1)
    given = request.dim is not None or "dim" in request.options or plan.start_from is not None
    if "dim" in plan.options and not given:
        faces = session.scalar(select(func.count()).where(Face.collection_id.in_(plan.collections))) or 0
        return plan.model_copy(update={"options": plan.options | {"dim": max(2, min(dim, width, faces // 4))}})
    if dim > width:
        raise Invalid(f"dim must be at most {width}, the width of the descriptors, not {dim}")
    return plan
