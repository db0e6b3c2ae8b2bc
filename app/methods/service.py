"""List the methods and descriptors of the registry, and the descriptors of this server's files."""

from functools import lru_cache

from app.config import Settings
from app.learning.method_catalogue import list_descriptors, list_methods
from app.learning.training_request import TrainingRequest
from app.methods.schemas import DescriptorOut, MethodOut, MethodsOut
from ml import registry


@lru_cache(1)
def _describe_methods(names: tuple[str, ...]) -> list[MethodOut]:
    """Describe all methods, which have these names and do not change while the process runs."""
    return [MethodOut.of(entry) for entry in list_methods()]


def list_methods_and_descriptors(settings: Settings) -> MethodsOut:
    """List every method and descriptor with its options, by name."""
    return MethodsOut(
        default_method=TrainingRequest.model_fields["method"].default,
        methods=_describe_methods(registry.names("embedders")),
        descriptors=[DescriptorOut.of(entry) for entry in list_descriptors(settings)],
    )
