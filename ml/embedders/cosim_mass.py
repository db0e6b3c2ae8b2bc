"""Mass CoSiM: the inner products of several descriptors, summed before the sigmoid.

Source: 000, equations 4 to 7.
"""

from dataclasses import dataclass

from ml.embedders.base import TrainingSet
from ml.metric_learning.cosim.embedder import SimilarityEmbedder


@dataclass
class CosimMass(SimilarityEmbedder):
    """P(same) = sigmoid(sum_i <W_i x_i, W_i y_i> + b), learned jointly.

    The distance is minus the inner product of z = [W_1 x_1; W_2 x_2; ...], which ranks as P does.
    """

    def _get_blocks(self, data: TrainingSet) -> tuple[int, ...]:
        return data.widths
