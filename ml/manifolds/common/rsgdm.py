"""rSGD-M: stochastic gradient descent with momentum that stays on a manifold (001, section 6)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Rsgdm(Optimizer):
    """m <- nu Pi(m) + eta Pi(grad), X <- Y(-m) (equations 10 and 11).

    eta stands inside m, as printed: after eta falls, m still remembers the steps of before. torch.optim.SGD and geoopt
    keep it outside, which is the same while eta is constant. m starts at zero. Each group names its `manifold`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.9) -> None:
        """lr: eta; momentum: nu. groups: {"params": [...], "manifold": Manifold}, with their own lr if they like."""
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
        # Pi is linear, so one projection of the sum is both of equation 10's
        momentum = state["momentum"] = manifold.project(point, vector, state)
        point.copy_(manifold.retract(point, -momentum))
