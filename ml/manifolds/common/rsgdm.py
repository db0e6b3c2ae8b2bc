"""rSGD-M: stochastic gradient descent with momentum that stays on a manifold (001, section 6)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Rsgdm(Optimizer):
    """m <- nu Pi(m) + eta Pi(grad), X <- Y(-m) (equations 10 and 11), with momentum m, projection Pi and retraction Y.

    As in the paper, m includes the learning rate eta, so earlier steps keep their rate when eta is lowered.
    torch.optim.SGD and geoopt apply eta outside m, which is the same if eta is constant. m starts at zero.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.9) -> None:
        """Take groups {"params": [...], "manifold": Manifold}, optionally with an "lr". lr: eta; momentum: nu"""
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for point in group["params"]:
                if point.grad is not None:
                    self._move(point, group)
        return loss

    def _move(self, point: Tensor, group: dict[str, Any]) -> None:
        manifold, state = group["manifold"], self.state[point]
        vector = group["lr"] * manifold.gradient(point, point.grad)
        if "momentum" in state:
            vector.add_(state["momentum"], alpha=group["momentum"])
        # Pi is linear, so one projection of the sum replaces the two of equation 10
        momentum = state["momentum"] = manifold.project(point, vector, state)
        point.copy_(manifold.retract(point, -momentum))
