"""Any face recogniser in an ONNX file, with a manifest that states the input it expects."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.descriptors.common.manifest import DescriptorManifest, OnnxManifest
from ml.descriptors.common.onnx_session import open_session
from ml.descriptors.common.stored_model import Device, StoredModel
from ml.errors import Corrupt, Unavailable, WrongShape
from ml.options import option
from ml.types import Crops, Rows

CROPS_PER_BATCH = 32
MIN_NORM = 1e-12


@lru_cache(maxsize=8)
def _session(model: Path, sha256: str, threads: int, device: Device) -> Any:
    """Open one session for all descriptors of a model. Several threads can share it. Raises Unavailable, Corrupt."""
    try:
        return open_session(str(model), threads, device)
    except Unavailable:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise Corrupt(f"ONNX Runtime cannot load {model.name}: {error}") from error


@dataclass(frozen=True)
class Onnx(StoredModel[OnnxManifest]):
    """A face recogniser provided by the operator, run by ONNX Runtime.

    docs/use/recognisers.md describes the manifest.
    Raises Unavailable if the manifest or the model is missing, Corrupt if either was altered or cannot be read, and
    WrongShape if the model's input or output differs from what the manifest states.
    """

    threads: int = option(1, "threads per run", low=1, unit="threads", server_only=True)
    manifest_type: ClassVar[type[DescriptorManifest] | None] = OnnxManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        [picture_input, *others], outputs = (
            self._session.get_inputs(),
            {o.name: o.shape for o in self._session.get_outputs()},
        )
        wanted = (self._batch, *self._picture)
        if others or len(picture_input.shape) != 4 or not _agree(picture_input.shape, wanted):
            raise WrongShape(
                f"the input of {self.read_manifest.file}", f"{wanted}, as its manifest states", picture_input.shape
            )
        if self._output not in outputs:
            raise WrongShape(f"the output of {self.read_manifest.file}", " or ".join(outputs), repr(self._output))

    @cached_property
    def _session(self) -> Any:
        model = self.read_manifest.model(self._path)
        return _session(model.resolve(), self.read_manifest.sha256, self.threads, self.device)

    @cached_property
    def _output(self) -> str:
        return self.read_manifest.output or self._session.get_outputs()[0].name

    @cached_property
    def _batch(self) -> int:
        """Pictures per run: the number that the model fixes, or `CROPS_PER_BATCH` if it takes any number."""
        first = self._session.get_inputs()[0].shape[0]
        return first if isinstance(first, int) else CROPS_PER_BATCH

    @property
    def _picture(self) -> tuple[int, int, int]:
        height, width = self.read_manifest.size
        return (3, height, width) if self.read_manifest.layout == "nchw" else (height, width, 3)

    def _describe(self, crops: Crops) -> Rows:
        rows = np.concatenate([self._pass(crops[at : at + self._batch]) for at in range(0, len(crops), self._batch)])
        if self.read_manifest.normalise:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True).clip(MIN_NORM)
        return rows

    def _pass(self, crops: Crops) -> Rows:
        """Describe at most one batch: (n, dim). If the model fixes the batch size, black pictures fill the batch."""
        fixed = isinstance(self._session.get_inputs()[0].shape[0], int)
        filled = np.zeros((self._batch if fixed else len(crops), *self._picture), np.float32)
        filled[: len(crops)] = self._pictures(crops)
        [output] = self._session.run([self._output], {self._session.get_inputs()[0].name: filled})
        if output.size != len(filled) * self.dim:
            raise WrongShape(f"the output of {self.read_manifest.file}", f"(N, {self.dim})", output.shape)
        return np.array(output[: len(crops)], np.float32).reshape(len(crops), self.dim)

    def _pictures(self, crops: Crops) -> NDArray[np.float32]:
        """Convert (N, 112, 112, 3) RGB crops to the model's input, (N, *_picture) float32."""
        height, width = self.read_manifest.size
        if (height, width) != crops.shape[1:3]:
            how = cv2.INTER_AREA if height < crops.shape[1] else cv2.INTER_LINEAR
            crops = np.stack([cv2.resize(crop, (width, height), interpolation=how) for crop in crops])
        ordered = crops if self.read_manifest.colour == "rgb" else crops[..., ::-1]
        mean, scale = np.array([self.read_manifest.mean, self.read_manifest.scale], np.float32)
        scaled: NDArray[np.float32] = (ordered - mean) / scale
        return scaled.transpose(0, 3, 1, 2) if self.read_manifest.layout == "nchw" else scaled


def _agree(sizes: list[Any], wanted: tuple[int, ...]) -> bool:
    """Whether a shape of the model matches; a name or None in it stands for any size."""
    return all(not isinstance(n, int) or n == m for n, m in zip(sizes, wanted, strict=True))
