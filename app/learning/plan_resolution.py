"""Resolve the request for a training into a plan, and refuse a plan that cannot work before a job starts."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.lookups import get_collection
from app.db.tables import Face, Task
from app.errors import Invalid
from app.galleries.external_descriptors import check_external_suits
from app.galleries.label_consensus import read_rule
from app.learning.component_options import check_options, make_options_model
from app.learning.descriptor_choice import choose_descriptors
from app.learning.plan import ComponentChoice, Plan, Source
from app.learning.training_request import TrainingRequest
from app.learning.warm_start import continue_from_model
from app.storage.recognisers.external_models import read_external
from ml import registry

MIN_FACES_PER_DIM = 4
"""If a request states no `dim`, the embedding has at most one dimension per so many faces."""


def make_plan(session: Session, settings: Settings, request: TrainingRequest) -> Plan:
    """Resolve descriptors, options and sources. Raises NotFound (a collection), Invalid with the list of what exists.

    The API checks whether the caller may use the plan's collections.
    """
    sources = [
        source.with_rule(read_rule(session, source.collection or request.collection, source.task))
        for source in request.sources or [Source(origin="subjects"), Source(origin="labels")]
    ]
    plan = Plan(
        collection=request.collection,
        method=request.method,
        descriptors=tuple(choose_descriptors(session, settings, request, sources[0].task)),
        options=_resolve_options(request),
        sources=tuple(sources),
        holdout=request.holdout,
        index=_resolve_index(request),
    )
    if request.start_from is not None:
        plan = continue_from_model(session, settings, plan, request)
    external = read_external(plan.model_dump())
    for collection in plan.collections:
        check_external_suits(session, get_collection(session, collection), external, "the training")
    _check_tasks(session, plan.tasks)
    _check_sources(plan)
    return _limit_dim(session, plan, request)


def _resolve_options(request: TrainingRequest) -> dict[str, Any]:
    methods = registry.names("embedders")
    if request.method not in methods:
        raise Invalid(
            f"no method is named {request.method!r}; there are: {', '.join(methods)}",
            code="UnknownComponent",
            methods=methods,
        )
    if request.dim is not None and "dim" not in make_options_model("embedders", request.method).model_fields:
        raise Invalid(f"the method {request.method} has no dim: its embeddings are as wide as the descriptors")
    given = {"seed": request.seed} | ({} if request.dim is None else {"dim": request.dim}) | request.options
    return check_options("embedders", request.method, given)


def _resolve_index(request: TrainingRequest) -> ComponentChoice | None:
    """Complete the options of the index. Raises Invalid with the list of what exists."""
    if request.index is None:
        return None
    names = [name for name in registry.names("indexes") if hasattr(registry.component("indexes", name), "option_class")]
    if request.index.name not in names:
        raise Invalid(
            f"no index that a model can choose is named {request.index.name!r}; there are: {', '.join(names)}",
            code="UnknownComponent",
        )
    options = check_options("indexes", request.index.name, request.index.options)
    return ComponentChoice(name=request.index.name, options=options)


def _check_tasks(session: Session, tasks: Iterable[str]) -> None:
    enabled = dict(session.execute(select(Task.name, Task.enabled)).all())
    for task in tasks:
        if task not in enabled:
            raise Invalid(f"no task {task!r}; there are: {', '.join(sorted(enabled))}", code="UnknownTask")
        if not enabled[task]:
            raise Invalid(f"the task {task!r} is off; an administrator can switch it on", code="TaskDisabled")


def _check_sources(plan: Plan) -> None:
    for task in plan.tasks:
        sources = [s for s in plan.sources if s.task == task]
        values = {(s.origin, s.tolerance) for s in sources if s.origin != "labels"}
        if len(values) > 1:
            raise Invalid(f"task {task!r}: all its sources must be subjects, or one metadata field with one tolerance")
        if len({(plan.collection_of(s), s.origin) for s in sources}) < len(sources):
            raise Invalid(f"task {task!r}: a source is named twice")
        if any(s.tolerance is not None and s.metadata is None for s in sources):
            raise Invalid(f"task {task!r}: tolerance applies only to metadata, not to labels and subjects")


def _limit_dim(session: Session, plan: Plan, request: TrainingRequest) -> Plan:
    """Limit the embedding's size by that of the descriptors and, unless the request states it, by the number of faces.

    A size of 0 is left to the method. Raises Invalid if the request states more than the method can make of the
    descriptors, ml.Unavailable if a file is missing.
    """
    width, dim = plan.recipe.dim, plan.options.get("dim", 1)
    limit = registry.build("embedders", plan.method, **plan.options).limit_dim(width)
    if limit < 1:
        raise Invalid(f"the method {plan.method} needs descriptors of more than {width} numbers")
    is_stated = request.dim is not None or "dim" in request.options or plan.start_from is not None
    if plan.options.get("dim") and not is_stated:
        faces = session.scalar(select(func.count()).where(Face.collection_id.in_(plan.collections))) or 0
        dim = min(limit, max(2, min(dim, faces // MIN_FACES_PER_DIM)))
        return plan.model_copy(update={"options": plan.options | {"dim": dim}})
    if dim > limit:
        raise Invalid(f"dim must be at most {limit} for descriptors of {width} numbers, not {dim}")
    return plan
