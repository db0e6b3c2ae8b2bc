"""The default landmarker: a small five-point CNN that ships with the code (see CARD.md)."""

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ml.errors import Unavailable
from ml.geometry import Matrix, grey, inverse, moved, warp
from ml.landmarks.base import MIRRORED_ORDER, Landmarker
from ml.landmarks.common import patch_frames
from ml.types import Detection, Image, Points

FIRST_PASS_VIEWS = ((0.0, 1.0),)
SECOND_PASS_VIEWS = ((6.0, 1.0), (-6.0, 1.0))
"""Rotation in degrees and zoom of each view in a pass. Mirroring maps each set of views to itself."""


@dataclass(frozen=True)
class Regressor(Landmarker):
    """Locates landmarks in two passes of a small CNN: a first guess from the box, then a mean over upright views.

    Every view is evaluated as it is and mirrored, so a mirrored photo has exactly mirrored landmarks. If the detector
    finds landmarks itself, they replace the first pass.

    path: the ONNX file that `python -m ml.landmarks.training.train` writes
    Raises Unavailable if the file is missing.
    """

    path: Path = field(default=Path(__file__).with_name("regressor.onnx"))

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise Unavailable(
                f"the landmark model {self.path} is missing; `python -m ml.landmarks.training.train` trains one"
            )

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        """The network, which is loaded with the first photo: most workers and commands analyse none."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])

    def _locate(self, image: Image, detection: Detection) -> Points | None:
        points = detection.landmarks
        if points is None:
            points = self._pass(image, patch_frames.frame_from_box(detection.box), FIRST_PASS_VIEWS)
        return self._pass(image, patch_frames.frame_from_landmarks(points), SECOND_PASS_VIEWS)

    def _pass(self, image: Image, frame: Matrix, views: tuple[tuple[float, float], ...]) -> Points:
        """Return the mean (5, 2) landmarks in the photo over all views. frame: photo -> patch transform, (2, 3)."""
        wide = grey(
            warp(
                image, patch_frames.widen_frame(frame), (patch_frames.WIDE_PATCH_PIXELS, patch_frames.WIDE_PATCH_PIXELS)
            )
        )
        transforms = [_find_view(turn, zoom) for turn, zoom in views]
        seen = np.stack(
            [warp(wide, view, (patch_frames.PATCH_PIXELS, patch_frames.PATCH_PIXELS)) for view, _ in transforms]
        )
        offsets = self._offsets(np.concatenate([seen, seen[:, :, ::-1]]))
        straight, mirrored = np.split(offsets, 2)
        mirrored = mirrored[:, MIRRORED_ORDER] * (-1, 1)
        points = (straight + mirrored) / 2 * patch_frames.EYE_DISTANCE_PIXELS + patch_frames.TEMPLATE
        back = [moved(to_wide, one) for (_, to_wide), one in zip(transforms, points, strict=True)]
        return moved(inverse(patch_frames.widen_frame(frame)), np.mean(back, axis=0))

    def _offsets(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Run the network on n patches: (n, 5, 2) offsets from the average face, in eye distances."""
        normal = patch_frames.normalise_patches(patches.astype(np.float32) / np.float32(255))
        [output] = self._session.run(None, {"patches": normal})
        return np.asarray(output, np.float32).reshape(-1, 5, 2)


@cache
def _find_view(turn: float, zoom: float) -> tuple[Matrix, Matrix]:
    """Return the wide patch -> patch transform of a view and its inverse, (2, 3) each."""
    view = patch_frames.view_transform(turn, zoom)
    return view, inverse(view)
