"""A training that goes on from a model, rather than anew."""

from sqlalchemy.orm import Session

from app.db.tables import Deployment, ModelRecord
from app.errors import Invalid, NotFound
from app.learning.plan import Named, Plan
from app.learning.training_request import TrainingRequest
from ml import registry
from ml.embedders.base import Embedder

SERVING = "serving"


def going_on(session: Session, plan: Plan, request: TrainingRequest) -> Plan:
    """With the descriptors and the dim of the model to start from. Raises NotFound, Invalid."""
    able = [n for n in registry.names("embedders") if _goes_on(n)]
    if plan.method not in able:
        raise Invalid(f"the method {plan.method} always learns anew; these go on from a model: {', '.join(able)}")
    named = request.start_from
    if named == SERVING:
        deployment = session.get(Deployment, (request.collection, plan.tasks[0]))
        named = deployment.champion if deployment else None
    model = session.get(ModelRecord, named) if named else None
    if model is None:
        raise NotFound(f"no model {request.start_from!r} to go on from")
    dim = model.manifest["embedder"]["options"].get("dim")
    asked = request.dim if request.dim is not None else request.options.get("dim", dim)
    if request.descriptor or request.descriptors or asked != dim:
        raise Invalid(f"leave out dim and descriptors: those of {model.id} are taken, dim {dim}")
    described = tuple(Named(**d) for d in model.manifest["descriptors"])
    options = plan.options | ({} if dim is None else {"dim": dim})
    return plan.model_copy(update={"descriptors": described, "options": options, "start_from": model.id})


def _goes_on(method: str) -> bool:
    found: type[Embedder] = registry.component("embedders", method)
    return found.start_from is not Embedder.start_from
