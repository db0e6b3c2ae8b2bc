"""List the methods and descriptors of the registry, and the descriptors of this server's files."""

from functools import lru_cache

from app.config import Settings
from app.learning.method_catalogue import DescriptorEntry, MethodEntry, list_descriptors, list_methods
from app.learning.training_request import TrainingRequest
from app.methods.schemas import DescriptorOut, MethodOut, MethodsOut


def list_methods_and_descriptors(settings: Settings) -> bytes:
    """List every method and descriptor with its options, by name, as the JSON of a MethodsOut.

    It is made anew only where the descriptors have changed, such as by the installation of one.
    """
    return _make_answer(list_methods(), list_descriptors(settings))


@lru_cache(maxsize=1)
def _make_answer(methods: tuple[MethodEntry, ...], descriptors: tuple[DescriptorEntry, ...]) -> bytes:
    answer = MethodsOut(
        default_method=TrainingRequest.model_fields["method"].default,
        methods=[MethodOut.of(entry) for entry in methods],
        descriptors=[DescriptorOut.of(entry) for entry in descriptors],
    )
    return answer.model_dump_json().encode()
