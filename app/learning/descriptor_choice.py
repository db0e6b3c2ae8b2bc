"""Resolve the descriptors that a training will use."""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Deployment, ModelRecord
from app.errors import Invalid
from app.learning.component_options import check_options
from app.learning.plan import ComponentChoice
from app.learning.training_request import TrainingRequest
from app.storage.recognisers.component_files import find_descriptor_files, find_files
from app.storage.recognisers.manifests import list_registered
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.descriptors.common.file_backed import manifest_types


def list_descriptor_names(settings: Settings) -> list[str]:
    """Return the names that a training may give, sorted: registered recognisers, and descriptors that need no file."""
    return sorted(list_registered(settings).keys() | set(list_crop_descriptors()) - manifest_types().keys())


def choose_descriptors(
    session: Session, settings: Settings, request: TrainingRequest, task: str
) -> Iterable[ComponentChoice]:
    """Return the requested descriptors, by default those of the serving model. Raises Invalid."""
    if request.descriptor and request.descriptors:
        raise Invalid("send descriptor or descriptors, not both")
    requested = request.descriptors or ([request.descriptor] if request.descriptor else [])
    if not requested:
        return _read_serving(session, settings, request.collection, task)
    choices = (ComponentChoice(name=one) if isinstance(one, str) else one for one in requested)
    return [_resolve(settings, choice) for choice in choices]


def _read_serving(session: Session, settings: Settings, collection: str, task: str) -> list[ComponentChoice]:
    """Return the champion's descriptors, so that a training changes only the metric."""
    deployment = session.get(Deployment, (collection, task)) or session.get(Deployment, (collection, "identity"))
    champion = session.get(ModelRecord, deployment.champion) if deployment else None
    return read_descriptors(champion, settings) if champion else [ComponentChoice(name="lbp")]


def read_descriptors(model: ModelRecord, settings: Settings) -> list[ComponentChoice]:
    """Return the descriptors of a model, with the paths at which this home has their files."""
    return [ComponentChoice(**one) for one in find_descriptor_files(model.manifest, settings.home)]


def locate_files(descriptors: Iterable[ComponentChoice], settings: Settings) -> list[ComponentChoice]:
    """Return descriptors that were stored in a row, with the paths at which this home has their files."""
    return [ComponentChoice(name=one.name, options=find_files(one.options, settings.home)) for one in descriptors]


def _resolve(settings: Settings, choice: ComponentChoice) -> ComponentChoice:
    """Replace the name of a registered recogniser by its component, and check the options of any other descriptor."""
    registered = list_registered(settings)
    if recogniser := registered.get(choice.name):
        if choice.options:
            raise Invalid(f"{choice.name} is defined by its manifest and has no options")
        return ComponentChoice(name=recogniser.descriptor, options={"manifest": str(recogniser.manifest)})
    if choice.name not in (names := list_descriptor_names(settings)):
        raise Invalid(
            f"no descriptor is named {choice.name!r}; there are: {', '.join(names)}",
            code="UnknownComponent",
            descriptors=names,
        )
    options = check_options("descriptors", choice.name, choice.options)
    return ComponentChoice(name=choice.name, options={name: options[name] for name in choice.options})
