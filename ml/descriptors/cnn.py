"""A CNN of our own, trained by `likeness recognisers train-cnn`; its weights are a file of yours, none ship."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ml.descriptors._manifest import CnnManifest, Manifest
from ml.descriptors._nets import NETS, features
from ml.descriptors._stored import Stored
from ml.errors import Corrupt, Unavailable
from ml.types import Crops, Rows


@lru_cache(maxsize=8)
def _loaded(weights: Path, says: CnnManifest, device: str) -> tuple[nn.Module, Tensor | None]:
    """One copy for all descriptors of one model; safe to run from several threads. Raises Corrupt."""
    try:
        made = NETS[says.net]()
        found = load_file(weights, device=device)
        projection = found.pop("projection") if says.projected else None
        made.load_state_dict(found)
    except (KeyError, RuntimeError, SafetensorError) as error:
        raise Corrupt(f"{weights.name} does not hold the weights of the network {says.net!r}: {error}") from error
    wide = made.dim if projection is None else projection.shape[-1]
    if wide != says.dim or (projection is not None and projection.shape != (made.dim, says.dim)):
        raise Corrupt(f"{weights.name} gives {wide} numbers a face, its manifest says {says.dim}")
    return made.to(device, memory_format=torch.channels_last).train(False), projection  # type: ignore[call-overload]


@dataclass(frozen=True)
class Cnn(Stored[CnnManifest]):
    """The feature of a trained network: of norm one, or projected by a matrix that was learned with it.

    manifest, device, pin: see `Stored`; the manifest is what the training wrote (docs/methods/cnn.md)
    Raises Unavailable (no manifest, no weights, no GPU), Corrupt (altered, or of another network than it says).
    """

    form: ClassVar[type[Manifest]] = CnnManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Unavailable("torch sees no GPU; install a build of torch with CUDA, or use device auto or cpu")
        self._net  # noqa: B018  a network that cannot be loaded is told now

    @cached_property
    def _net(self) -> tuple[nn.Module, Tensor | None]:
        on = "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"
        return _loaded(self.wants.model(self._path).resolve(), self.wants, on)

    def _describe(self, crops: Crops) -> Rows:
        net, projection = self._net
        rows = features(net, crops, unit=self.wants.unit)
        if projection is not None:
            rows = rows @ projection
        return np.ascontiguousarray(rows.cpu().numpy())
