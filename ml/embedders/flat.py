"""Flat clustering: k-means cells with an LDML metric in each.

Source: a baseline of 003, section 4.2.
"""

from dataclasses import dataclass

from ml.metric_learning.logistic.clustered_maps import ClusteredMaps
from ml.options import option


@dataclass
class FlatClusters(ClusteredMaps):
    """z = L_s x in cell s, where s is the nearest of k means in the space of a global LDML."""

    k: int = option(8, "number of cells; with 1 the method is LDML", low=1, unit="cells")

    @property
    def forks(self) -> tuple[int, ...]:
        return (self.k,) if self.k > 1 else ()
