"""Flat clustering: k-means cells with an LDML metric in each, a baseline of 003 (section 4.2)."""

from dataclasses import dataclass

from ml.metric_learning.logistic.clustered_maps import Divided


@dataclass
class Flat(Divided):
    """z = L_s x in cell s, where s is the nearest of k means in the space of a global LDML.

    k: cells; 1 is LDML
    """

    k: int = 8

    @property
    def forks(self) -> tuple[int, ...]:
        return (self.k,) if self.k > 1 else ()
