"""Hierarchical clustering: a tree of LDML metrics, learned from the root down (Bhattarai et al. 2014; 003)."""

from dataclasses import dataclass

from ml.metric_learning.logistic.clustered_maps import Divided


@dataclass
class Hierarchical(Divided):
    """z = L_s x at leaf s: a face goes down a binary tree, at each node to the nearer of two means in the node's space.

    depth: levels of the tree, the root's among them: 4 has 8 leaves, as the papers' 256D4 has; 1 is LDML
    """

    depth: int = 4

    @property
    def forks(self) -> tuple[int, ...]:
        return (2,) * max(0, self.depth - 1)
