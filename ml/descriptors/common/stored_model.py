"""The base of descriptors that run a model file: its manifest, and a pin that fixes the model."""

from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from ml.descriptors.base import Descriptor
from ml.descriptors.common.manifest import DescriptorManifest
from ml.errors import Corrupt
from ml.files import hash_file
from ml.options import option
from ml.types import CropKind

Device = Literal["auto", "cpu", "cuda"]
ManifestT = TypeVar("ManifestT", bound=DescriptorManifest)


@dataclass(frozen=True)
class StoredModel(Descriptor, Generic[ManifestT]):
    """A descriptor that runs a model file, which a manifest beside it describes.

    Raises Corrupt if `pin` differs from the manifest's fingerprint, so that an embedder is never given descriptors of a
    model on which it was not trained.
    """

    manifest: str = option(MISSING, "path of the JSON file beside the model", server_only=True)
    device: Device = option("auto", "auto, cpu or cuda; auto uses a GPU if the library finds one", server_only=True)
    pin: str = option("", "fingerprint that the manifest must have; if empty, it is not checked", server_only=True)
    crop: ClassVar[CropKind] = "colour"
    is_costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pin not in ("", self.fingerprint):
            raise Corrupt(f"the manifest {self._path.name} is not the one with which this model was made")

    @property
    def _path(self) -> Path:
        return Path(self.manifest)

    @cached_property
    def read_manifest(self) -> ManifestT:
        """The content of the manifest."""
        assert self.manifest_type is not None, "a stored model has a manifest"
        return self.manifest_type.read(self._path)  # type: ignore[return-value]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, which itself states the SHA-256 of the model."""
        self.read_manifest  # noqa: B018  raises if the file is not a manifest
        return hash_file(self._path)

    @property
    def version(self) -> str:
        return self.fingerprint

    @property
    def dim(self) -> int:
        return self.read_manifest.dim
