"""A CNN trained by `likeness recognisers train-cnn`. No weights ship with Likeness: the operator provides them."""

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
    """The features of a trained network, divided by their norm or projected by a matrix that was trained with it.

    The training writes the manifest (docs/research/cnn.md).
    Raises Unavailable if the manifest, the weights or the requested GPU are missing, and Corrupt if the files were
    altered or belong to another network.
    """

    manifest_type: ClassVar[type[DescriptorManifest] | None] = CnnManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        self._network  # noqa: B018  so that a network that cannot be loaded is reported early

    @cached_property
    def _network(self) -> "TrainedNetwork":
        from ml.descriptors.common.trained_network import load_network  # imports torch

        return load_network(self.read_manifest.model(self._path).resolve(), self.read_manifest, self.device)

    def _describe(self, crops: Crops) -> Rows:
        return np.ascontiguousarray(self._network.describe(crops))
