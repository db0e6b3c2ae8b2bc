"""Adam on gradients computed by hand gives the bits of `torch.optim.Adam`."""

import pytest
import torch

from ml.metric_learning.tensors import FusedAdam
from ml.registry import build
from tests.ml.synthetic_people import people


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_step_gives_the_bits_of_torchs_own_optimiser(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((7, 5), ())]
    theirs = [p.clone().requires_grad_() for p in ours]
    expected = torch.optim.Adam([{"params": [p], "lr": 1.0} for p in theirs], fused=True)
    adam = FusedAdam(ours)
    for step in range(1, 20):
        rates = [0.1 / step, 0.01]
        gradients = [torch.randn(p.shape, generator=generator, dtype=dtype) for p in ours]
        for group, rate, parameter, gradient in zip(expected.param_groups, rates, theirs, gradients, strict=True):
            group["lr"], parameter.grad = rate, gradient.clone()
        expected.step()
        adam.step(gradients, rates)
        assert all(torch.equal(a, b.detach()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("method", "width"), [("ldml", "dim"), ("clml", "dim"), ("cosim_mass", "inner")])
def test_a_fit_uses_no_class_of_torch_optim(method: str, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an optimiser of torch imports torch._dynamo, which takes a second")

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", refuse)
    build("embedders", method, steps=2, **{width: 4}).fit(people())
