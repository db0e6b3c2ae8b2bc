"""Measure the quality of a face, and decide whether it should be enrolled."""

import math
from dataclasses import dataclass

import cv2
import numpy as np

from ml.types import Crops, Points, Pose, Quality

HEAD_POINTS = np.array(
    [(-0.5, -0.525, 0.0), (0.5, -0.525, 0.0), (0.0, 0.06, -0.5), (-0.43, 0.495, -0.1), (0.43, 0.495, -0.1)]
)
"""The five points of an average head in eye distances; z away from the camera. The tip of the nose matters most."""
FIT_OF_HEAD = np.linalg.pinv(HEAD_POINTS - HEAD_POINTS.mean(0))
"""(3, 5): what maps centred landmarks to the two rows of the view."""


@dataclass(frozen=True)
class QualityThresholds:
    """The quality that a face needs to be enrolled. The defaults are lenient: nearly every face of LFW passes.

    sharpness, contrast, eye_distance, confidence: smallest allowed value, in the units of `Quality`
    darkest, brightest: allowed range of the brightness
    yaw, pitch: largest allowed absolute value in degrees. Roll is not limited, because alignment removes it.
    """

    sharpness: float = 4.0
    contrast: float = 8.0
    darkest: float = 20.0
    brightest: float = 240.0
    yaw: float = 60.0
    pitch: float = 45.0
    eye_distance: float = 12.0
    confidence: float = -0.3


def pose(points: Points) -> Pose:
    """Estimate yaw, pitch and roll in degrees from (5, 2) landmarks.

    Fits a weak-perspective view of `HEAD_POINTS` (DeMenthon and Davis 1995, one step). Yaw is positive towards the
    viewer's right, pitch downwards, roll clockwise.
    """
    u, v = (FIT_OF_HEAD @ (points - points.mean(0))).T.tolist()
    scale = max((math.hypot(*u) + math.hypot(*v)) / 2, 1e-9)
    yaw, pitch = (math.asin(min(1.0, max(-1.0, -side[2] / scale))) for side in (u, v))
    across, down = (points[1] - points[0]).tolist()
    return math.degrees(yaw), math.degrees(pitch), math.degrees(math.atan2(down, across))


def assess(
    grey: Crops,
    points: Points,
    confidence: float,
    wanted: QualityThresholds = QualityThresholds(),
    known_pose: Pose | None = None,
) -> Quality:
    """Measure the quality of a face and list the reasons not to enrol it.

    grey: (170, 100) crop; points: (5, 2) landmarks in the photo; confidence: of the detection; wanted: the thresholds
    known_pose: of these points, if it was estimated already
    """
    yaw, pitch, roll = known_pose or pose(points)
    sharpness = cv2.meanStdDev(cv2.Laplacian(grey, cv2.CV_16S))[1].item() ** 2
    brightness, contrast = (value.item() for value in cv2.meanStdDev(grey))
    eye_distance = math.dist(points[0].tolist(), points[1].tolist())
    faults = {
        "LOW_QUALITY_SHARPNESS": sharpness < wanted.sharpness,
        "SMALL_BOUNDING_BOX": eye_distance < wanted.eye_distance,
        "EXTREME_POSE": abs(yaw) > wanted.yaw or abs(pitch) > wanted.pitch,
        "LOW_BRIGHTNESS": brightness < wanted.darkest,
        "HIGH_BRIGHTNESS": brightness > wanted.brightest,
        "LOW_CONTRAST": contrast < wanted.contrast,
        "LOW_CONFIDENCE": confidence < wanted.confidence,
    }
    reasons = tuple(reason for reason, is_present in faults.items() if is_present)
    return Quality(sharpness, brightness, contrast, yaw, pitch, roll, eye_distance, confidence, reasons)
