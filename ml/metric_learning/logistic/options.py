"""Groups of options that LDML and the methods built on it share."""

from dataclasses import dataclass
from typing import Literal

from ml.options import option

Start = Literal["lda", "wpca", "pca", "random", "learned"]


@dataclass(frozen=True)
class BatchOptions:
    """How the batches of an LDML fit are drawn and weighted."""

    groups: int = option(256, "people in a batch", low=1, unit="people")
    faces: int = option(4, "faces of each of these people in a batch", low=1, unit="faces")
    others: int = option(256, "further faces in a batch, as negatives", low=0, unit="faces")
    balanced: bool = option(
        True, "draw people with equal probability; off: draw faces with equal probability, as in the papers"
    )
    negatives: float = option(20.0, "total weight of negatives over total weight of positives", low=0)
    corrections: float = option(0.2, "share of labelled pairs in the loss, if there are many labels", low=0, high=1)
    min_pairs: int = option(
        10, "smallest number of positive pairs, and of negative pairs, that a fit accepts",
        low=0, unit="pairs", formerly="needed",
    )  # fmt: skip


@dataclass(frozen=True)
class MapOptions:
    """How the linear map of an LDML fit starts, steps and is regularised.

    Regularisers are measured in the variance of the descriptors, so that they suit any descriptor.
    """

    spherical: float = option(
        0.0,
        "compute the loss from z scaled to this multiple of the length that suits the start; 0: from z, as in the "
        "paper. With 0.7, results are better for people of the training set and a little worse for others",
        low=0,
    )
    shrink: float = option(2.5e-6, "weight of the pull of the map towards zero", low=0)
    proximal_weight: float = option(
        1e-4, "weight of the pull of the map towards its start, times prior / n for n matched faces", low=0,
        formerly="stay",
    )  # fmt: skip
    operating_weight: float = option(
        0.0,
        "weight of the loss at the operating point, a false-match rate of 0.1 %: pairs of the same rejected there, "
        "and the nearest face of somebody else in each search; 0: without",
        low=0,
    )
    prior: float = option(
        300.0,
        "number of labelled faces that weigh as much as the assumption that a person varies as all faces do",
        low=0, unit="faces",
    )  # fmt: skip
    start: Start = option(
        "lda",
        "where the map starts: Fisher's discriminant, whitened or plain principal axes, at random, or from a fitted or "
        "loaded map; its scale and the bias are fitted first",
    )
    ridge: float = option(2e-4, "share of the total variance within people that lda adds to each axis", low=0)
    rate: float = option(0.02, "Adam's step, relative to the root mean square of the start", low=0)
    averaging: float = option(0.95, "decay of the running average of the map over steps; 0: no average", low=0, high=1)
    axes: int = option(
        2000,
        "number of principal axes in which the map is learned; fewer are faster; 0: the rows already are such "
        "coordinates, centred and weighted, strongest first",
        low=0,
        unit="axes",
    )


@dataclass(frozen=True)
class GateOptions:
    """How CLML's Gaussian mixture assigns a face to local maps."""

    gate: Literal["ldml", "descriptor"] = option(
        "ldml", "space of the mixture: that of the first map, or the leading 64 principal axes of the descriptor"
    )
    threshold: float = option(
        1e-3, "subtracted from each q_s, which is then clipped at 0 and scaled so that they sum to 1", low=0, high=1
    )
    soften: float = option(1.0, "divides ln p(s | x): above 1, faces belong to more maps", low=0)


@dataclass(frozen=True)
class LocalMapOptions:
    """How CLML's local maps are learned and held together."""

    local_rate: float = option(0.005, "Adam's step for the local maps, relative to the first map", low=0)
    pull: float = option(5e-6, "weight of the pull of each local map towards their mean", low=0)
    anchor: float = option(1e-3, "weight of the pull of each local offset towards zero", low=0)
    rescale: bool = option(
        True,
        "local maps start at the scale and bias that minimise the first map's loss, not at those it ended with. On is "
        "better for people of the training set; off, with an anchor of 0.1, for others. A spherical first map "
        "is always rescaled",
    )
