"""Semi-hard negatives (Schroff et al. 2015; 001, sections 4 and 6)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SemiHard:
    """For an anchor and a positive, the nearest of those negatives that are no nearer than the positive.

    An anchor has one triplet for each of `per_anchor` positives, drawn evenly where it has more (nu of section 6). A
    pair without such a negative has none.
    """

    per_anchor: int = 5

    def __call__(
        self, d2: Tensor, alike: Tensor, apart: Tensor, generator: torch.Generator, preferred: Tensor | None = None,
        margin: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """d2: (B, B) squared distances; alike, apart: (B, B) bool, what may be an anchor's positive and its negative.

        preferred: (B, B) bool, negatives that come first while they break the constraint, d2(a, n) < d2(a, p) + margin,
        also those nearer than the positive. Returns (T, 3) anchor, positive, negative.
        """
        anchor, positive = self._pairs(alike, generator)
        far = d2[anchor, positive, None]
        others = d2.masked_fill(~apart, torch.inf)[anchor]
        nearest, negative = others.masked_fill_(others < far, torch.inf).min(1)
        if preferred is not None:
            nearest_preferred, preferred_negative = d2.masked_fill(~preferred, torch.inf).min(1)
            first = nearest_preferred[anchor] < far[:, 0] + margin
            negative, nearest = (
                torch.where(first, preferred_negative[anchor], negative),
                torch.where(first, nearest_preferred[anchor], nearest),
            )
        return torch.stack([anchor, positive, negative], 1)[nearest < torch.inf]

    def _pairs(self, alike: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Anchors and their positives, one of each in turn."""
        per_anchor = min(self.per_anchor, alike.shape[1])
        chance = torch.rand(alike.shape, generator=generator).to(alike.device)
        keys, positive = chance.masked_fill_(~alike, -1.0).topk(per_anchor, dim=1)
        anchor, which = (keys >= 0).nonzero(as_tuple=True)
        return anchor, positive[anchor, which]
