"""Measure the quality of a face, and decide whether it should be enrolled."""

from dataclasses import dataclass

import cv2
import numpy as np

from ml.types import Crops, Points, Quality

HEAD_POINTS = np.array(
    [(-0.5, -0.525, 0.0), (0.5, -0.525, 0.0), (0.0, 0.06, -0.5), (-0.43, 0.495, -0.1), (0.43, 0.495, -0.1)]
)
"""The five points of an average head in eye distances; z away from the camera. The tip of the nose matters most."""


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


def pose(points: Points) -> tuple[float, float, float]:
    """Estimate yaw, pitch and roll in degrees from (5, 2) landmarks.

    Fits a weak-perspective view of `HEAD_POINTS` (DeMenthon and Davis 1995, one step). Yaw is positive towards the
    viewer's right, pitch downwards, roll clockwise.
    """
    view = np.linalg.pinv(HEAD_POINTS - HEAD_POINTS.mean(0)) @ (points - points.mean(0))
    u, v = view.T
    scale = max((np.linalg.norm(u) + np.linalg.norm(v)) / 2, 1e-9)
    yaw, pitch = np.arcsin(np.clip((-u[2] / scale, -v[2] / scale), -1, 1))
    roll = np.arctan2(*(points[1] - points[0])[::-1])
    return float(np.degrees(yaw)), float(np.degrees(pitch)), float(np.degrees(roll))


def assess(grey: Crops, points: Points, confidence: float, wanted: QualityThresholds = QualityThresholds()) -> Quality:
    """Measure the quality of a face and list the reasons not to enrol it.

    grey: (170, 100) crop; points: (5, 2) landmarks in the photo; confidence: of the detection; wanted: the thresholds
    """
    yaw, pitch, roll = pose(points)
    sharpness = float(cv2.Laplacian(grey, cv2.CV_32F).var())
    brightness, contrast = float(grey.mean()), float(grey.std())
    eye_distance = float(np.linalg.norm(points[1] - points[0]))
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
