"""How two embeddings are compared: one class per distance. Smaller always means more alike."""

from ml.distances.base import Distance, load_distance
from ml.distances.inner_product import InnerProduct
from ml.distances.squared_euclidean import SquaredEuclidean

EUCLIDEAN = SquaredEuclidean()
INNER_PRODUCT = InnerProduct()

__all__ = ["EUCLIDEAN", "INNER_PRODUCT", "Distance", "load_distance"]
