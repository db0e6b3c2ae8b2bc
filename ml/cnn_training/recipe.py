"""The recipe of a CNN training."""

from dataclasses import dataclass
from typing import Literal, get_args

from ml.descriptors.common.networks import NETS
from ml.errors import WrongShape

Head = Literal["pairs", "softmax", "qconv", "stiefel"]


@dataclass(frozen=True)
class CnnRecipe:
    """The options of a CNN training. Raises WrongShape for values that make no sense.

    For every head:
        net: a network of `ml.descriptors.common.networks`; head: what the loss is computed from, see `heads.py`
        hours, steps: the training ends at whichever limit is reached first; 0: no such limit. A training that ends by
            the clock cannot be repeated exactly.
        batch: photos per step and process; rate: highest learning rate; decay: weight decay (AdamW)
        held_out: share of the people with two or more photos who are held out for validation, 0..1
        every: minutes between validations, each followed by a checkpoint
        patience: end after this many validations without improvement; 0: never
        bf16: compute in half precision
    For the softmax head: margin, scale: of the softmax over cosines; a margin of 0 is the plain softmax
    For the other heads: faces: photos per person in a batch; 0: 2 for pairs, otherwise 4
    For pairs: pair_scale: scale of the cosines
    For qconv and stiefel:
        width: numbers in a descriptor; 0: as many as the network has
        triplet_margin: margin between squared distances
        network_rate: highest learning rate of the network (RMSProp)
        layer_rate, momentum: of the layer (rSGD-M)
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
    pair_scale: float = 12.0
    triplet_margin: float = 0.5
    network_rate: float = 1e-4
    layer_rate: float = 1e-2
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.net not in NETS or self.head not in get_args(Head):
            allowed = f"one of {', '.join(NETS)} and one of {', '.join(get_args(Head))}"
            raise WrongShape("net and head", allowed, f"{self.net} and {self.head}")
        limit = max(self.hours, self.steps)
        if min(limit, self.rate, self.scale, self.every) <= 0 or self.batch < 4 or not 0 < self.held_out < 1:
            needed = (
                "given hours or steps, rate, scale and every above 0, a batch of 4 or more, held_out between 0 and 1"
            )
            raise WrongShape("the recipe", needed, self)
        if self.head != "softmax" and not 2 <= self.photos_per_person <= self.batch // 2:
            needed = f"at least two people of {self.photos_per_person} photos for {self.head}"
            raise WrongShape("batch", needed, self.batch)
        if min(self.hours, self.steps, self.margin, self.width, self.patience, self.decay) < 0:
            raise WrongShape("hours, steps, margin, width, patience and decay", "0 or more", self)

    @property
    def photos_per_person(self) -> int:
        """Photos of each person in a batch, for the heads that draw people."""
        return self.faces or (2 if self.head == "pairs" else 4)
