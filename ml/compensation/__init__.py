"""Compensate embeddings for their source: a camera, a scanner, a mask.

Photos of one source lie together, whoever is on them, so that a search from another source finds the source rather than
the person. The mean and the spread of each source are learned from unlabelled faces and removed.
"""

from ml.compensation.correction import NO_SOURCE, SourceCompensation, SourceCorrection, Sources
from ml.compensation.fit import MIN_FACES_TO_CORRECT, fit_compensation
from ml.compensation.judgement import Decision, JudgedCompensation, judge_compensation

__all__ = [
    "MIN_FACES_TO_CORRECT",
    "NO_SOURCE",
    "Decision",
    "JudgedCompensation",
    "SourceCompensation",
    "SourceCorrection",
    "Sources",
    "fit_compensation",
    "judge_compensation",
]
