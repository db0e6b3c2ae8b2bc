"""The descriptors that describe crops: all but those whose vectors are imported."""

from ml import registry


def list_crop_descriptors() -> tuple[str, ...]:
    """Return the sorted names of the descriptors that describe crops."""
    return tuple(n for n in registry.names("descriptors") if not registry.component("descriptors", n).is_external)
