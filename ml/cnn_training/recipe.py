"""What a training of a network is asked to do."""

from dataclasses import dataclass
from typing import Literal, get_args

from ml.descriptors.common.networks import NETS
from ml.errors import WrongShape

Head = Literal["pairs", "softmax", "qconv", "stiefel"]


@dataclass(frozen=True)
class CnnRecipe:
    """net: of `ml.descriptors.common.networks`; head: what the loss is taken of, see `heads.py`

    hours, steps: the end is reached by whichever comes first, 0: not by that; the clock alone cannot be repeated
    batch: photos a step and process; rate: the highest; decay: of the weights (AdamW)
    margin, scale: of the softmax over cosines (0 margin: plain)
    held_out: share of the people with two photos or more by whom the net is judged, and who teach it nothing
    every: minutes between two judgements and checkpoints; patience: so many without a better one end it, 0: never
    bf16: half-precision arithmetic
    Of the others: faces: of each person in a batch, 0: 2 for pairs, else 4; sharp: the scale of pairs
    Of qconv and stiefel: width: numbers a face, 0: the net's; apart: the margin of squared distances; fine: the
    network's highest rate (RMSProp); curved, momentum: the layer's (rSGD-M)
    """

    net: str = "light"
    head: Head = "softmax"
    hours: float = 1.0
    steps: int = 0
    batch: int = 64
    rate: float = 2e-3
    decay: float = 0.05
    margin: float = 0.2
    scale: float = 24.0
    held_out: float = 0.1
    every: float = 5.0
    patience: int = 0
    bf16: bool = False
    width: int = 0
    faces: int = 0
    sharp: float = 12.0
    apart: float = 0.5
    fine: float = 1e-4
    curved: float = 1e-2
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.net not in NETS or self.head not in get_args(Head):
            raise WrongShape("net and head", f"of {', '.join(NETS)} and {', '.join(get_args(Head))}", self.net)
        ends = max(self.hours, self.steps)
        if min(ends, self.rate, self.scale, self.every) <= 0 or self.batch < 4 or not 0 < self.held_out < 1:
            raise WrongShape("the recipe", "of hours or steps, rate, scale and every above 0, batch from 4", self)
        if self.head != "softmax" and not 2 <= self.each <= self.batch // 2:
            raise WrongShape("batch", f"at least two people of {self.each} photos for {self.head}", self.batch)
        if min(self.hours, self.steps, self.margin, self.width, self.patience, self.decay) < 0:
            raise WrongShape("hours, steps, margin, width, patience and decay", "0 or more", self)

    @property
    def each(self) -> int:
        """Photos of a person in a batch of those heads that draw people."""
        return self.faces or (2 if self.head == "pairs" else 4)
