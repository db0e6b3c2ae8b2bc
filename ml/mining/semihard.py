"""Semi-hard negatives (Schroff et al. 2015; 001, sections 4 and 6)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SemiHard:
    """For each anchor and positive, choose the nearest negative that is not nearer than the positive.

    Each anchor takes part in at most `per_anchor` triplets (nu in section 6 of 001), with positives drawn at random. An
    anchor and positive without such a negative give no triplet.
    """

    per_anchor: int = 5

    def __call__(
        self,
        d2: Tensor,
        positives: Tensor,
        negatives: Tensor,
        generator: torch.Generator,
        preferred: Tensor | None = None,
        margin: float = 0.0,
    ) -> Tensor:
        """Mine the triplets of a batch. Returns (T, 3) indexes: anchor, positive, negative.

        d2: (B, B) squared distances; positives, negatives: (B, B) bool, the candidates of each anchor (row)
        preferred: (B, B) bool, negatives that are chosen first while they violate d2(a, n) < d2(a, p) + margin, even if
            they are nearer than the positive
        """
        anchor, positive = self._pairs(positives, generator)
        far = d2[anchor, positive, None]
        others = d2.masked_fill(~negatives, torch.inf)[anchor]
        nearest, negative = others.masked_fill_(others < far, torch.inf).min(1)
        if preferred is not None:
            nearest_preferred, preferred_negative = d2.masked_fill(~preferred, torch.inf).min(1)
            first = nearest_preferred[anchor] < far[:, 0] + margin
            negative, nearest = (
                torch.where(first, preferred_negative[anchor], negative),
                torch.where(first, nearest_preferred[anchor], nearest),
            )
        return torch.stack([anchor, positive, negative], 1)[nearest < torch.inf]

    def _pairs(self, positives: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the anchors and their positives: two arrays of the same length."""
        per_anchor = min(self.per_anchor, positives.shape[1])
        chance = torch.rand(positives.shape, generator=generator).to(positives.device)
        keys, positive = chance.masked_fill_(~positives, -1.0).topk(per_anchor, dim=1)
        anchor, which = (keys >= 0).nonzero(as_tuple=True)
        return anchor, positive[anchor, which]
