"""Quality: each fault has its reason; a plain face has none."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from ml.aligners.similarity import TEMPLATES, Similarity
from ml.quality import HEAD_POINTS, QualityThresholds, assess, pose
from ml.synthetic_faces import person, photograph
from ml.types import Points

PHOTO, POINTS = photograph(person(0), 0, strength=0)
CROP = Similarity().crops(PHOTO, POINTS)["grey"]


def seen(yaw: float, pitch: float, roll: float = 0.0, scale: float = 40.0) -> Points:
    """The average head, turned and looked at."""
    a, b, c = np.radians([yaw, pitch, roll])
    about_y = np.array([[np.cos(a), 0, -np.sin(a)], [0, 1, 0], [np.sin(a), 0, np.cos(a)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    about_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return (HEAD_POINTS @ (about_z @ about_x @ about_y).T)[:, :2].astype(np.float32) * scale + 200


def test_a_plain_face_has_no_fault() -> None:
    assessment = assess(CROP, POINTS, 1.0)
    assert assessment.reasons == ()
    assert assessment.eye_distance == pytest.approx(45, abs=3)
    assert abs(assessment.yaw) < 15
    assert abs(assessment.roll) < 5


@pytest.mark.parametrize(("crop", "reason"), [
    (cv2.GaussianBlur(CROP, (0, 0), 6), "LOW_QUALITY_SHARPNESS"),
    ((CROP / 12).astype(np.uint8), "LOW_BRIGHTNESS"),
    ((245 + CROP / 26).astype(np.uint8), "HIGH_BRIGHTNESS"),
    ((120 + CROP / 40).astype(np.uint8), "LOW_CONTRAST"),
])  # fmt: skip
def test_each_fault_of_the_picture_has_its_reason(crop: np.ndarray, reason: str) -> None:
    assert reason in assess(crop, POINTS, 1.0).reasons


def test_a_small_face_and_an_unsure_one_have_their_reasons() -> None:
    assert assess(CROP, POINTS / 5, 1.0).reasons == ("SMALL_BOUNDING_BOX",)
    assert assess(CROP, POINTS, -1.0).reasons == ("LOW_CONFIDENCE",)


@pytest.mark.parametrize(("yaw", "pitch"), [(80, 0), (-80, 0), (0, 70)])
def test_a_face_turned_away_is_an_extreme_pose(yaw: float, pitch: float) -> None:
    assert "EXTREME_POSE" in assess(CROP, seen(yaw, pitch), 1.0).reasons


@pytest.mark.parametrize("yaw", [-40, -15, 0, 15, 40])
def test_yaw_and_roll_are_told_from_the_points(yaw: float) -> None:
    angles = pose(seen(yaw, 0, 10))
    assert angles[0] == pytest.approx(yaw, abs=12)
    assert angles[2] == pytest.approx(10, abs=6)


@pytest.mark.parametrize("pitch", [-25, 0, 25])
def test_pitch_is_told_from_the_points(pitch: float) -> None:
    assert pose(seen(0, pitch))[1] == pytest.approx(pitch, abs=12)


def test_the_template_looks_straight_ahead() -> None:
    for template in TEMPLATES.values():
        assert np.abs(pose(template)).max() < 12


def test_thresholds_can_be_stricter() -> None:
    strict = replace(QualityThresholds(), eye_distance=60)
    assert assess(CROP, POINTS, 1.0, strict).reasons == ("SMALL_BOUNDING_BOX",)
