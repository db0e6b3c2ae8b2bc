"""SML: one similarity of all descriptors together, learned from pairs.

Source: 000, equations 1 to 3.
"""

from dataclasses import dataclass

from ml.embedders.base import TrainingSet
from ml.metric_learning.cosim.embedder import SimilarityEmbedder


@dataclass
class Sml(SimilarityEmbedder):
    """P(same) = sigmoid(<W x, W y> + b), x the whitened row: several descriptors are concatenated first.

    The distance is minus the inner product of z = W x, which ranks as P does.
    """

    def _get_blocks(self, data: TrainingSet) -> tuple[int, ...]:
        return (data.rows.shape[1],)
