"""Compute Fisher vectors: the gradient of the log-likelihood of a face's patches under a Gaussian mixture."""

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import Mixture, posteriors
from ml.descriptors.common.dense_sift import DenseSift, device_of
from ml.descriptors.common.vocabulary import POSITION_DIM, Vocabulary
from ml.types import Crops, Rows

MIN_NORM = 1e-12
FACES_PER_BATCH = {"cpu": 1, "cuda": 64}
"""Faces in a batch; the intermediate results of a face take 30 MB."""


class Encoder:
    """Computes Fisher vectors. It is immutable, so several threads can share it."""

    def __init__(
        self, vocabulary: Vocabulary, stride: int, device: str = "auto", dtype: torch.dtype = torch.float32
    ) -> None:
        def put(array: object) -> Tensor:
            return torch.as_tensor(array).to(self.device, dtype)

        self.device = device_of(device)
        self.sift = DenseSift(stride, self.device, dtype)
        self.axes = put(vocabulary.axes).T.contiguous()
        self.mean = put(vocabulary.mean) @ self.axes
        self.mixture = Mixture(put(vocabulary.means), put(vocabulary.variances), put(vocabulary.log_weights))
        self.centres = put(self.sift.centres())

    def describe(self, crops: Crops) -> Rows:
        """Describe (N, 170, 100) uint8 crops: (N, 2 k (d + 2)) float32."""
        size = FACES_PER_BATCH[self.device.type]
        batches = (torch.from_numpy(np.array(crops[at : at + size])) for at in range(0, len(crops), size))
        return np.concatenate([self.rows(batch.to(self.device)).cpu().numpy() for batch in batches])

    def rows(self, crops: Tensor) -> Tensor:
        """Describe a batch of crops (B, 170, 100): signed roots of Fisher vectors, (B, 2 k (d + 2)), of L2 norm 1."""
        raw = self.fisher_vectors(self.lifted(crops))
        roots = raw.abs().sqrt_().copysign(raw)
        return roots.div_(torch.linalg.vector_norm(roots, dim=1, keepdim=True).clamp_min(MIN_NORM))

    def lifted(self, crops: Tensor) -> Tensor:
        """Return the mixture's input for each patch and its squares, (B, T, 2 (d + 2)). crops: (B, height, width)"""
        rooted, length = self.sift.patches(crops)
        d = len(self.mean)
        both = rooted.new_empty(*length.shape, 2 * (d + POSITION_DIM))
        z = both[..., : d + POSITION_DIM]
        torch.sub(torch.matmul(rooted.mT, self.axes).div_(length[..., None]), self.mean, out=z[..., :d])
        z[..., d:] = self.centres
        torch.mul(z, z, out=both[..., d + POSITION_DIM :])
        return both

    def fisher_vectors(self, both: Tensor) -> Tensor:
        """Compute the gradients by the means and by the deviations: (B, T, 2 d + 4) -> (B, 2 k (d + 2)).

        G_mean = sum_t q_ts (z_t - m_s) / v_s^0.5 / (T w_s^0.5)
        G_deviation = sum_t q_ts ((z_t - m_s)^2 / v_s - 1) / (T (2 w_s)^0.5), with q_ts = p(s | z_t)
        Source: Perronnin, Sanchez and Mensink, ECCV 2010.
        """
        faces, patches, _ = both.shape
        q = posteriors(self.mixture.of_lifted(both.flatten(0, 1)))[0].view(faces, patches, -1)
        mass = q.sum(1)[..., None]
        first, second = (q.mT @ both).chunk(2, dim=2)
        m, v = self.mixture.means, self.mixture.variances
        root = self.mixture.log_weights.mul(0.5).exp()[:, None] * patches
        by_mean = (first - m * mass) * v.rsqrt() / root
        by_deviation = ((second - 2 * m * first + m * m * mass) / v - mass) / (root * 2**0.5)
        return torch.cat([by_mean.flatten(1), by_deviation.flatten(1)], 1)
