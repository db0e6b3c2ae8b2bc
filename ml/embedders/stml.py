"""stML: one projection and one bias from pairs, by the hinge (Simonyan et al. 2013; the baseline of 002)."""

from dataclasses import dataclass

from ml.metric_learning.hinge.tasks import OneTask


@dataclass
class Stml(OneTask):
    """z = L x, with sum [1 - y (b - |z_i - z_j|^2)]_+ as small as it gets: CP-mtML without a common projection.

    Learns the first task alone. d numbers are stored for a face.
    """
