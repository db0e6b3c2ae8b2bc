"""By what the faces of a training are described."""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Deployment, ModelRecord
from app.errors import Invalid
from app.learning.component_options import check_options
from app.learning.plan import Named
from app.learning.training_request import TrainingRequest
from app.storage.recognisers.manifests import list_registered
from ml import registry
from ml.descriptors.common.file_backed import manifest_types


def descriptors(session: Session, settings: Settings, request: TrainingRequest, task: str) -> Iterable[Named]:
    """As asked for; else those of the model that serves. Raises Invalid."""
    if request.descriptor and request.descriptors:
        raise Invalid("send descriptor or descriptors, not both")
    asked = request.descriptors or ([request.descriptor] if request.descriptor else [])
    if not asked:
        return _serving(session, request.collection, task)
    return [_named(settings, Named(name=one) if isinstance(one, str) else one) for one in asked]


def _serving(session: Session, collection: str, task: str) -> list[Named]:
    """What the champion is described by, so that retraining changes the metric alone."""
    deployment = session.get(Deployment, (collection, task)) or session.get(Deployment, (collection, "identity"))
    champion = session.get(ModelRecord, deployment.champion) if deployment else None
    return [Named(**d) for d in champion.manifest["descriptors"]] if champion else [Named(name="lbp")]


def _named(settings: Settings, asked: Named) -> Named:
    registered = list_registered(settings)
    if asked.name in registered:
        recogniser = registered[asked.name]
        if asked.options:
            raise Invalid(f"{asked.name} is what its manifest says and takes no options")
        return Named(name=recogniser.component, options={"manifest": str(recogniser.manifest)})
    known = registered.keys() | set(registry.names("descriptors")) - manifest_types().keys()
    if asked.name not in known:
        raise Invalid(
            f"no descriptor is named {asked.name!r}; there are: {', '.join(sorted(known))}",
            code="UnknownComponent",
            descriptors=sorted(known),
        )
    options = check_options("descriptors", asked.name, asked.options)
    return Named(name=asked.name, options={name: options[name] for name in asked.options})
