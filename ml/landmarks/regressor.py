"""The default landmarker: our own five-point model, which ships with the code (see CARD.md)."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from ml.errors import Unavailable
from ml.geometry import Matrix, grey, inverse, moved, warp
from ml.landmarks.base import MIRRORED, Landmarker
from ml.landmarks.common import patch_frames
from ml.types import Detection, Image, Points

STRAIGHT = ((0.0, 1.0),)
LOOKS = ((6.0, 1.0), (-6.0, 1.0))
"""Degrees and zoom of the looks of the second pass; they are the same set when mirrored."""


@dataclass(frozen=True)
class Regressor(Landmarker):
    """Two passes of a small CNN: from the box to a guess, then a mean over looks at the face turned upright.

    Every look is taken twice, as it is and mirrored, so that the mirrored photo has the mirrored points.
    A detector's own points, where it gives them, take the place of the first pass.

    path: of the model that `python -m ml.landmarks.training.train` writes
    """

    path: Path = field(default=Path(__file__).with_name("regressor.onnx"))

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise Unavailable(
                f"the landmark model {self.path} is not there; `python -m ml.landmarks.training.train` makes one"
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        object.__setattr__(self, "_session", session)

    def _locate(self, image: Image, detection: Detection) -> Points | None:
        points = detection.landmarks
        if points is None:
            points = self._pass(image, patch_frames.of_box(detection.box), STRAIGHT)
        return self._pass(image, patch_frames.of_points(points), LOOKS)

    def _pass(self, image: Image, frame: Matrix, looks: tuple[tuple[float, float], ...]) -> Points:
        """Where the points lie in the photo, seen through `frame` and its variations."""
        wide = grey(warp(image, patch_frames.widened(frame), (patch_frames.WIDE, patch_frames.WIDE)))
        views = np.stack([patch_frames.look(turn, zoom) for turn, zoom in looks])
        seen = np.stack([warp(wide, view, (patch_frames.SIDE, patch_frames.SIDE)) for view in views])
        offsets = self._offsets(np.concatenate([seen, seen[:, :, ::-1]]))
        straight, mirrored = np.split(offsets, 2)
        mirrored = mirrored[:, MIRRORED] * (-1, 1)
        points = (straight + mirrored) / 2 * patch_frames.EYES + patch_frames.TEMPLATE
        back = [moved(inverse(view), one) for view, one in zip(views, points, strict=True)]
        return moved(inverse(patch_frames.widened(frame)), np.mean(back, axis=0))

    def _offsets(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, 5, 2) in eye distances from the average face, as the net sees it."""
        normal = patch_frames.normal(patches.astype(np.float32) / np.float32(255))
        [output] = self._session.run(None, {"patches": normal})  # type: ignore[attr-defined]
        return np.asarray(output, np.float32).reshape(-1, 5, 2)
