"""List the methods and descriptors of the registry, and the descriptors of this server's files."""

from app.config import Settings
from app.learning.method_catalogue import list_descriptors, list_methods
from app.learning.training_request import TrainingRequest
from app.methods.schemas import DescriptorOut, MethodOut, MethodsOut


def list_methods_and_descriptors(settings: Settings) -> MethodsOut:
    """List every method and descriptor with its options, by name."""
    return MethodsOut(
        default_method=TrainingRequest.model_fields["method"].default,
        methods=[MethodOut.of(entry) for entry in list_methods()],
        descriptors=[DescriptorOut.of(entry) for entry in list_descriptors(settings)],
    )
