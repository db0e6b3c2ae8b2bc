"""What a score means: probabilities from distances, and thresholds for false-match rates."""

from ml.calibration.distance_map import DistanceMap
from ml.calibration.impostor_distances import DistanceThreshold, ImpostorDistances, threshold_for_fmr
from ml.calibration.named_pairs import NamedPairs, extrapolate_tail
from ml.calibration.pair_sampling import (
    MAX_FACES_PER_PERSON,
    choose_faces,
    draw_impostor_pairs,
    draw_pairs_with,
    sample_genuine,
    sample_impostors,
)
from ml.calibration.platt import MIN_PAIRS_PER_CLASS, Calibration

__all__ = [
    "MAX_FACES_PER_PERSON",
    "MIN_PAIRS_PER_CLASS",
    "Calibration",
    "DistanceMap",
    "DistanceThreshold",
    "ImpostorDistances",
    "NamedPairs",
    "choose_faces",
    "draw_impostor_pairs",
    "draw_pairs_with",
    "extrapolate_tail",
    "sample_genuine",
    "sample_impostors",
    "threshold_for_fmr",
]
