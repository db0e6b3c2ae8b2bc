"""The methods and descriptors that a training can name, with the options that a client may set."""

from dataclasses import dataclass

from app.config import Settings
from app.learning.component_options import list_client_options
from app.learning.descriptor_choice import list_descriptor_names
from app.storage.recognisers.catalogue import Recogniser, list_recognisers
from app.storage.recognisers.manifests import list_registered
from ml import registry
from ml.errors import LikenessError
from ml.options import Option


@dataclass(frozen=True)
class MethodEntry:
    """A way to learn a metric. learns: whether it is fitted; otherwise it compares descriptors by a fixed rule."""

    name: str
    summary: str
    learns: bool
    options: tuple[Option, ...]


@dataclass(frozen=True)
class DescriptorEntry:
    """A way to describe faces.

    dim: numbers per face with the default options; None if unknown
    install: what installs or mends it, a command or an explanation; "" if it can be used
    """

    name: str
    summary: str
    dim: int | None
    install: str
    options: tuple[Option, ...] = ()


def list_methods() -> tuple[MethodEntry, ...]:
    """List the methods by name. The first call in a process imports torch, which takes seconds."""
    return tuple(_describe_method(name) for name in registry.names("embedders"))


def list_descriptors(settings: Settings) -> tuple[DescriptorEntry, ...]:
    """List the descriptors by name: components that need no file, and the recognisers that an operator registered."""
    recognisers = {entry.name: entry for entry in list_recognisers(settings)}
    registered = list_registered(settings)
    return tuple(
        _describe_recogniser(recognisers[name]) if name in registered else _describe_component(name)
        for name in list_descriptor_names(settings)
    )


def _describe_method(name: str) -> MethodEntry:
    learns = registry.build("embedders", name).needs_fit
    return MethodEntry(name, registry.summarise("embedders", name), learns, list_client_options("embedders", name))


def _describe_recogniser(entry: Recogniser) -> DescriptorEntry:
    summary = f"A recogniser that the operator registered: {entry.source or entry.name}."
    return DescriptorEntry(entry.name, summary, entry.dim, entry.install)


def _describe_component(name: str) -> DescriptorEntry:
    descriptor = registry.build("descriptors", name)
    try:
        descriptor.load()
        install = ""
    except LikenessError as error:
        install = str(error)
    summary, options = registry.summarise("descriptors", name), list_client_options("descriptors", name)
    return DescriptorEntry(name, summary, descriptor.dim, install, options)
