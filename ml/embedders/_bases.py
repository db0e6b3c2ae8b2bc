"""Directions that tell people apart somewhere among the faces, from which a sparse metric is made."""

import torch
from torch import Tensor

from ml.clustering.kmeans import k_means
from ml.embedders._folds import only
from ml.embedders._space import discriminant
from ml.embedders.base import TaskData


def local_discriminants(
    x: Tensor, task: TaskData, bases: int, regions: int, around: int, ridge: float, prior: float, seed: int
) -> Tensor:
    """Fisher's axes of the faces around each of several means, as many of each region.

    Regions are those of k-means in the space of the discriminant of all faces; the `around` nearest faces to a mean
    make one, so that regions overlap. x: (n, r), one row a face of the task, its columns principal. Returns (bases
    or some fewer, r), each scaled so that faces have variance 1/2 along it: (b . u)^2 of two of them is 1 on average.
    """
    each = min(max(1, bases // regions), x.shape[1])
    z = x @ discriminant(x, task, each, ridge, prior).T
    found = []
    for mean in k_means(z, regions, seed):
        near = (z - mean).square().sum(1).topk(min(around, len(z)), largest=False).indices
        mine = torch.zeros(len(z), dtype=torch.bool, device=z.device).index_fill_(0, near, True)
        found.append(discriminant(x[mine], only(task, mine.cpu().numpy()), each, ridge, prior))
    axes = torch.cat(found)
    return axes / (2**0.5 * (x @ axes.T).std(0)).clamp_min(1e-12)[:, None]
