"""What the descriptors that are a model in a file share: its manifest, and a pin that holds them to it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from ml.descriptors._manifest import Manifest, sha256
from ml.descriptors.base import Descriptor
from ml.errors import Corrupt
from ml.types import CropKind

Device = Literal["auto", "cpu", "cuda"]
Said = TypeVar("Said", bound=Manifest)


@dataclass(frozen=True)
class Stored(Descriptor, Generic[Said]):
    """manifest: path of the JSON file beside the model
    device: "auto" runs on a GPU where the library sees one
    pin: the `fingerprint` that the manifest had; another one is Corrupt, so that what was learned on the
        descriptor never meets another model. "" takes any.
    """

    manifest: str
    device: Device = "auto"
    pin: str = ""
    crop: ClassVar[CropKind] = "colour"
    dear: ClassVar[bool] = True
    form: ClassVar[type[Manifest]]

    def __post_init__(self) -> None:
        if self.pin not in ("", self.fingerprint):
            raise Corrupt(f"the manifest {self._path.name} is not the one that this was made with")

    @property
    def _path(self) -> Path:
        return Path(self.manifest)

    @cached_property
    def wants(self) -> Said:
        """What the manifest says."""
        return self.form.read(self._path)  # type: ignore[return-value]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, which names that of the model."""
        self.form.read(self._path)
        return sha256(self._path)

    @property
    def version(self) -> str:
        return self.fingerprint

    @property
    def dim(self) -> int:
        return self.wants.dim
