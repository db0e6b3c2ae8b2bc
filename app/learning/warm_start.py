"""Plan a training that continues from a model instead of starting anew."""

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Deployment, ModelRecord
from app.errors import Invalid, NotFound
from app.learning.descriptor_choice import read_descriptors
from app.learning.plan import Plan
from app.learning.training_request import TrainingRequest
from ml import registry
from ml.embedders.base import Embedder

SERVING = "serving"


def continue_from_model(session: Session, settings: Settings, plan: Plan, request: TrainingRequest) -> Plan:
    """Return the plan with the descriptors and the dim of the model to continue from. Raises NotFound, Invalid."""
    methods = [name for name in registry.names("embedders") if _can_continue(name)]
    if plan.method not in methods:
        raise Invalid(f"the method {plan.method} cannot continue from a model; these can: {', '.join(methods)}")
    model_id = request.start_from
    if model_id == SERVING:
        deployment = session.get(Deployment, (request.collection, plan.tasks[0]))
        model_id = deployment.champion if deployment else None
    model = session.get(ModelRecord, model_id) if model_id else None
    if model is None:
        raise NotFound(f"no model {request.start_from!r} to continue from")
    dim = model.manifest["embedder"]["options"].get("dim")
    requested_dim = request.dim if request.dim is not None else request.options.get("dim", dim)
    if request.descriptor or request.descriptors or requested_dim != dim:
        size = "" if dim is None else f", dim {dim}"
        raise Invalid(f"leave out dim and descriptors: the training uses those of {model.id}{size}")
    descriptors = tuple(read_descriptors(model, settings))
    plan = plan.model_copy(update={"descriptors": descriptors, "start_from": model.id})
    if dim is None and "dim" in plan.options:  # a method without a dim: the embedding may be as wide as the descriptors
        dim = min(plan.options["dim"], plan.recipe.dim)
    return plan.model_copy(update={"options": plan.options | ({} if dim is None else {"dim": dim})})


def _can_continue(method: str) -> bool:
    embedder: type[Embedder] = registry.component("embedders", method)
    return embedder.start_from is not Embedder.start_from
