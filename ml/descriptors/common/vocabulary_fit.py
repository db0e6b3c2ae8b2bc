"""Fit the vocabulary of Fisher vectors to patches of crops."""

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import fit_mixture
from ml.descriptors.common.dense_sift import DenseSift, device_of
from ml.descriptors.common.vocabulary import Vocabulary
from ml.errors import TooFewPairs
from ml.types import Crops

MIN_FACES = 10
FACES_PER_BATCH = 16


def learned(crops: Crops, axes: int, components: int, patches: int, seed: int) -> Vocabulary:
    """Fit a vocabulary to (N, 170, 100) grey crops. patches: number drawn from each crop. Raises TooFewPairs."""
    if len(crops) < MIN_FACES:
        raise TooFewPairs("faces for a vocabulary", MIN_FACES, len(crops))
    rooted, positions = _drawn(crops, patches, seed, device_of("auto"))
    mean = rooted.mean(0)
    turned = torch.linalg.eigh(torch.cov(rooted.T.double())).eigenvectors.flip(1)[:, :axes].to(rooted.dtype)
    mixture = fit_mixture(torch.cat([(rooted - mean) @ turned, positions], 1), components, seed)
    return Vocabulary(
        axes=turned.T.cpu().numpy(),
        mean=mean.cpu().numpy(),
        means=mixture.means.cpu().numpy(),
        variances=mixture.variances.cpu().numpy(),
        log_weights=mixture.log_weights.cpu().numpy(),
    )


def _drawn(crops: Crops, patches: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw patches from each crop: root-SIFT (N * patches, 128) and positions (N * patches, 2)."""
    sift, draw = DenseSift(1, device), torch.Generator().manual_seed(seed)
    centres = sift.centres().to(device, torch.float32)
    rooted, positions = [], []
    for at in range(0, len(crops), FACES_PER_BATCH):
        patches_found = sift.patches(torch.from_numpy(np.array(crops[at : at + FACES_PER_BATCH])).to(device))
        for numbers, length in zip(patches_found.rooted, patches_found.length, strict=True):
            chosen = torch.randperm(len(centres), generator=draw)[:patches].to(device)
            rooted.append((numbers[:, chosen] / length[chosen]).T)
            positions.append(centres[chosen])
    return torch.cat(rooted), torch.cat(positions)
