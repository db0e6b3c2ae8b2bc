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
    balanced: bool = option(True, "draw people evenly; off: draw faces evenly, as the papers print it")
    negatives: float = option(20.0, "weight of all negatives together over that of all positives", low=0)
    corrections: float = option(0.2, "share of the loss that labelled pairs carry once there are many", low=0, high=1)
    min_pairs: int = option(
        10, "pairs of the same, and of not the same, without which nothing is learned",
        low=0, unit="pairs", formerly="needed",
    )  # fmt: skip


@dataclass(frozen=True)
class MapOptions:
    """How the linear map of an LDML fit starts, steps and is regularised.

    Regularisers are measured in the variance of the descriptors, so that they suit any descriptor.
    """

    spherical: float = option(
        0.0,
        "learn from z at unit length, times so much of the length that suits the start; 0: from z itself, as in the "
        "paper. At 0.7 the people learned from are known better, and strangers a little worse",
        low=0,
    )
    shrink: float = option(2.5e-6, "pull of the map towards zero", low=0)
    proximal_weight: float = option(
        1e-4, "pull of the map towards its start, times prior / n of n faces with another of the same", low=0,
        formerly="stay",
    )  # fmt: skip
    prior: float = option(
        300.0, "so many labelled faces weigh as much as the belief that a person varies as all faces do", low=0,
        unit="faces",
    )  # fmt: skip
    start: Start = option(
        "lda",
        "where the map starts: Fisher's discriminant, whitened or plain principal axes, at random, or what was fitted "
        "or loaded; its scale and the bias are fitted first",
    )
    ridge: float = option(2e-4, "share of the total variance within people that lda adds to each axis", low=0)
    rate: float = option(0.02, "Adam's step, relative to the root mean square of the start", low=0)
    averaging: float = option(
        0.95, "how slowly the average of the map over steps follows it; 0: no average", low=0, high=1
    )
    axes: int = option(
        2000,
        "principal axes that the map is sought in, fewer than the descriptor has for speed; 0: the numbers of a row "
        "are such coordinates already, strongest first, about the mean and weighted",
        low=0,
        unit="axes",
    )


@dataclass(frozen=True)
class GateOptions:
    """How CLML's Gaussian mixture assigns a face to local maps."""

    gate: Literal["ldml", "descriptor"] = option(
        "ldml", "the mixture lives in the space of the first map, or in the leading 64 principal axes of the descriptor"
    )
    threshold: float = option(
        1e-3, "taken off each q_s, which is then cut at 0 and made to sum to 1 again", low=0, high=1
    )
    soften: float = option(1.0, "divides ln p(s | x): above 1, faces belong to more maps", low=0)


@dataclass(frozen=True)
class LocalMapOptions:
    """How CLML's local maps are learned and held together."""

    local_rate: float = option(0.005, "Adam's step for the local maps, relative to the first map", low=0)
    pull: float = option(5e-6, "pull of each local map towards the mean of all", low=0)
    anchor: float = option(1e-3, "pull of each local offset towards zero", low=0)
    rescale: bool = option(
        True,
        "local maps begin at the scale and bias where the first map's loss is least, not at those it ended with. On, "
        "the people learned from are known better; off, and with an anchor of 0.1, strangers are. A spherical first "
        "map has no scale and is always given one",
    )
