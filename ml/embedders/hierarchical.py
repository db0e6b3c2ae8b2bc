"""Hierarchical clustering: a tree of LDML metrics, learned from the root down.

Source: Bhattarai et al. 2014; 003.
"""

from dataclasses import dataclass

from ml.metric_learning.logistic.clustered_maps import ClusteredMaps
from ml.options import option


@dataclass
class HierarchicalClusters(ClusteredMaps):
    """z = L_s x at leaf s. A face descends a binary tree: at each node, to the nearer of two means in its space."""

    depth: int = option(
        4,
        "levels of the tree, including the root: 4 levels have 8 leaves, as 256D4 in the papers; 1 level is LDML",
        low=0,
        unit="levels",
    )

    @property
    def forks(self) -> tuple[int, ...]:
        return (2,) * max(0, self.depth - 1)
