"""Fisher vectors of dense root-SIFT.

Source: 003, section 4; Simonyan et al., BMVC 2013.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ml.descriptors.base import Descriptor
from ml.descriptors.common.vocabulary import POSITION_DIM, Vocabulary
from ml.errors import Corrupt, Unavailable, WrongShape
from ml.options import option
from ml.types import CropKind, Crops, Rows

if TYPE_CHECKING:
    from ml.descriptors.common.fisher_encoder import Encoder

Device = Literal["auto", "cpu", "cuda"]
MAX_STRIDE_PIXELS = 77
AXES, COMPONENTS = 64, 128


@dataclass(frozen=True)
class Fisher(Descriptor):
    """How a face's patches differ from those of other faces: 2 x 66 x 128 = 16,896 numbers of L2 norm 1.

    Root-SIFT of every 24x24 patch (11,319 of them), projected to 64 principal axes, with x and y of the patch; the
    gradient of their likelihood under 128 diagonal Gaussians by the means and by the deviations; its signed root.
    Axes and Gaussians come from a vocabulary, which `learn` makes from crops; they may be of other numbers.

    Without a vocabulary its width is known, but it cannot describe.
    Raises Unavailable (no such file), Corrupt (altered or unreadable), WrongShape (stride).
    """

    vocabulary: str = option("", "path of the vocabulary's .safetensors file; empty: none yet", server_only=True)
    stride: int = option(1, "pixels from one patch to the next", low=1, high=MAX_STRIDE_PIXELS, unit="pixels")
    device: Device = option("auto", "auto takes a GPU if there is one", server_only=True)
    pin: str = option("", "SHA-256 that the vocabulary must have; empty: any", server_only=True)
    crop: ClassVar[CropKind] = "grey"
    is_costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= MAX_STRIDE_PIXELS:
            raise WrongShape("stride", f"1 to {MAX_STRIDE_PIXELS} pixels", self.stride)
        if self.pin not in ("", self.version):
            raise Corrupt(f"the vocabulary {Path(self.vocabulary).name} is not the one that this was made with")

    @classmethod
    def _learn(
        cls, crops: Crops, folder: Path, seed: int, axes: int = AXES, components: int = COMPONENTS, patches: int = 256
    ) -> dict[str, Any]:
        """patches: drawn from each crop. 1,000 crops are plenty, 10 the least."""
        from ml.descriptors.common.vocabulary_fit import learned  # and with it torch

        vocabulary = learned(crops, axes, components, patches, seed)
        metadata = {"faces": len(crops), "patches": patches, "seed": seed, "axes": axes, "components": components}
        path = vocabulary.write(folder, metadata)
        return {"vocabulary": str(path), "pin": path.stem}

    @property
    def is_ready(self) -> bool:
        return bool(self.vocabulary)

    @property
    def version(self) -> str:
        return self._words.sha256 if self.is_ready else ""

    @property
    def dim(self) -> int:
        return self._words.dim if self.is_ready else 2 * COMPONENTS * (AXES + POSITION_DIM)

    @cached_property
    def _words(self) -> Vocabulary:
        if not self.is_ready:
            raise Unavailable(
                "fisher has no vocabulary yet; Fisher.learn makes one from crops, a training does so itself"
            )
        return Vocabulary.read(Path(self.vocabulary))

    @cached_property
    def _encoder(self) -> "Encoder":
        from ml.descriptors.common.fisher_encoder import Encoder  # and with it torch

        return Encoder(self._words, self.stride, self.device)

    def _describe(self, crops: Crops) -> Rows:
        return self._encoder.describe(crops)
