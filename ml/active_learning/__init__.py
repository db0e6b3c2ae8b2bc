"""Choose what to ask people about a gallery: pairs of faces, and whole groups of faces."""

from ml.active_learning.candidate_pairs import CandidatePairs, find_candidates
from ml.active_learning.cluster_choice import (
    MAX_CLUSTER_FACES,
    MIN_CLUSTER_FACES,
    ClusterQuestion,
    choose_clusters,
)
from ml.active_learning.face_groups import FaceGroups, PairAnswers
from ml.active_learning.pair_choice import MAX_SUGGESTIONS, PairSuggestions, choose_pairs
from ml.active_learning.same_probability import SameProbability

__all__ = [
    "MAX_CLUSTER_FACES",
    "MAX_SUGGESTIONS",
    "MIN_CLUSTER_FACES",
    "CandidatePairs",
    "ClusterQuestion",
    "FaceGroups",
    "PairAnswers",
    "PairSuggestions",
    "SameProbability",
    "choose_clusters",
    "choose_pairs",
    "find_candidates",
]
