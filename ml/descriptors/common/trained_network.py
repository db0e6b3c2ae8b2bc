"""Load a trained CNN from its weights and run it. In a module of its own, because it imports torch."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from ml.descriptors.common.manifest import CnnManifest
from ml.descriptors.common.networks import NETS, features
from ml.descriptors.common.stored_model import Device
from ml.errors import Corrupt, Unavailable
from ml.types import Crops, Rows


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network in evaluation mode.

    unit: whether features are divided by their L2 norm
    projection: (features, dim), by which features are multiplied; None: they are not
    """

    net: nn.Module
    unit: bool
    projection: Tensor | None

    def describe(self, crops: Crops) -> Rows:
        """Compute (N, dim) features of (N, 112, 112, 3) crops, N above 0."""
        rows = features(self.net, crops, unit=self.unit)
        if self.projection is not None:
            rows = rows @ self.projection
        described: Rows = rows.cpu().numpy()
        return described


def load_network(weights: Path, manifest: CnnManifest, device: Device) -> TrainedNetwork:
    """Load a network, onto the GPU if there is one and `device` allows it.

    Raises Unavailable if `device` is "cuda" and there is no GPU, Corrupt if the weights do not fit.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("torch finds no GPU; install a build of torch with CUDA, or set device to auto or cpu")
    return _load_once(weights, manifest, "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


@lru_cache(maxsize=8)
def _load_once(weights: Path, manifest: CnnManifest, device: str) -> TrainedNetwork:
    """Load one copy that all descriptors of a model share. It is safe to run from several threads. Raises Corrupt."""
    try:
        net = NETS[manifest.net]()
        tensors = {name: tensor.to(device) for name, tensor in load(weights.read_bytes()).items()}
        projection = tensors.pop("projection") if manifest.projected else None
        net.load_state_dict(tensors)
    except (KeyError, RuntimeError, SafetensorError) as error:
        raise Corrupt(f"{weights.name} does not hold the weights of the network {manifest.net!r}: {error}") from error
    dim = net.dim if projection is None else projection.shape[-1]
    if dim != manifest.dim or (projection is not None and projection.shape != (net.dim, manifest.dim)):
        raise Corrupt(f"{weights.name} gives {dim} numbers a face, but its manifest states {manifest.dim}")
    network = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return TrainedNetwork(network.train(False), manifest.unit, projection)
