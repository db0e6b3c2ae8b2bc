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

    Root-SIFT of each of the 11,319 patches of 24 x 24 pixels is projected to 64 principal axes, and x and y of the
    patch are appended. The descriptor is the signed square root of the gradient of the patches' log-likelihood under
    128 diagonal Gaussians, with respect to the means and the standard deviations. Axes and Gaussians are read from a
    vocabulary, which `learn` fits to crops and which may have other sizes.

    Without a vocabulary `dim` is known, but faces cannot be described.
    Raises Unavailable if the file is missing, Corrupt if it was altered or cannot be read, WrongShape for the stride.
    """

    vocabulary: str = option(
        "", "path of the vocabulary, a .safetensors file; empty if there is none yet", server_only=True
    )
    stride: int = option(1, "distance from one patch to the next", low=1, high=MAX_STRIDE_PIXELS, unit="pixels")
    device: Device = option("auto", "auto, cpu or cuda; auto uses a GPU if there is one", server_only=True)
    pin: str = option("", "SHA-256 that the vocabulary must have; if empty, it is not checked", server_only=True)
    crop: ClassVar[CropKind] = "grey"
    is_costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= MAX_STRIDE_PIXELS:
            raise WrongShape("stride", f"1 to {MAX_STRIDE_PIXELS} pixels", self.stride)
        if self.pin not in ("", self.version):
            raise Corrupt(
                f"the vocabulary {Path(self.vocabulary).name} is not the one with which this descriptor was made"
            )

    @classmethod
    def _learn(
        cls, crops: Crops, folder: Path, seed: int, axes: int = AXES, components: int = COMPONENTS, patches: int = 256
    ) -> dict[str, Any]:
        """Fit a vocabulary. patches: number drawn from each crop. At least 10 crops are needed; 1,000 are plenty."""
        from ml.descriptors.common.vocabulary_fit import learned  # imports torch

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
                "fisher has no vocabulary yet; Fisher.learn fits one to crops, and a training fits one by itself"
            )
        return Vocabulary.read(Path(self.vocabulary))

    @cached_property
    def _encoder(self) -> "Encoder":
        from ml.descriptors.common.fisher_encoder import Encoder  # imports torch

        return Encoder(self._words, self.stride, self.device)

    def _describe(self, crops: Crops) -> Rows:
        return self._encoder.describe(crops)
