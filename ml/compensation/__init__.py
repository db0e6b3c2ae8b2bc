"""Compensate embeddings for their source: a camera, a scanner, a mask.

Photos of one source lie together, whoever is on them, so that a search from another source finds the source rather than
the person. The mean and the spread of each source are learned from unlabelled faces and removed.
"""

from ml.compensation.correction import NO_SOURCE, SourceCompensation, SourceCorrection, Sources
from ml.compensation.degradations import DEGRADATIONS, degrade_crops
from ml.compensation.fit import (
    MAX_SPREAD_DIM,
    MIN_FACES_TO_CORRECT,
    find_reference,
    fit_compensation,
    has_unit_length,
    limit_sources,
)
from ml.compensation.judgement import Decision, JudgedCompensation, judge_compensation
from ml.compensation.simulation import Describe, SimulatedFaces, simulate_sources

__all__ = [
    "DEGRADATIONS",
    "MAX_SPREAD_DIM",
    "MIN_FACES_TO_CORRECT",
    "NO_SOURCE",
    "Decision",
    "Describe",
    "JudgedCompensation",
    "SimulatedFaces",
    "SourceCompensation",
    "SourceCorrection",
    "Sources",
    "degrade_crops",
    "find_reference",
    "fit_compensation",
    "has_unit_length",
    "judge_compensation",
    "limit_sources",
    "simulate_sources",
]
