"""A CNN trained by `likeness recognisers train-cnn`. Its weights are the operator's file; none ship with Likeness."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ml.descriptors.common.manifest import CnnManifest, DescriptorManifest
from ml.descriptors.common.stored_model import StoredModel
from ml.types import Crops, Rows

if TYPE_CHECKING:
    from ml.descriptors.common.trained_network import TrainedNetwork


@dataclass(frozen=True)
class Cnn(StoredModel[CnnManifest]):
    """The feature of a trained network: of norm one, or projected by a matrix that was learned with it.

    The training writes the manifest (docs/research/cnn.md).
    Raises Unavailable (no manifest, no weights, no GPU), Corrupt (altered, or weights of another network).
    """

    manifest_type: ClassVar[type[DescriptorManifest] | None] = CnnManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        self._network  # noqa: B018  a network that cannot be loaded is reported now

    @cached_property
    def _network(self) -> "TrainedNetwork":
        from ml.descriptors.common.trained_network import load_network  # imports torch

        return load_network(self.read_manifest.model(self._path).resolve(), self.read_manifest, self.device)

    def _describe(self, crops: Crops) -> Rows:
        return np.ascontiguousarray(self._network.describe(crops))
