"""The networks that compute one feature vector of each aligned face. `ml/cnn_training` trains them."""

import numpy as np
import torch
from torch import Tensor, nn

from ml.types import Crops

LUMA_WEIGHTS = (0.299, 0.587, 0.114)
CASIA_CHANNELS = ((32, 64), (64, 128), (96, 192), (128, 256), (160, 320))
"""Output channels of conv11 and conv12, conv21 and conv22, ... (Yi et al. 2014, Table 1)."""
LIGHT_STAGES = ((2, 64, 1, 1), (2, 96, 4, 2), (2, 128, 2, 2))
"""(expansion, channels, blocks, stride of the first block), as in Table 1 of Chen et al. 2018."""


class Casia(nn.Module):
    """The 10-layer network of Yi et al. 2014, "Learning face representation from scratch".

    (n, 3, 112, 112) -> (n, 320).

    Pairs of 3 x 3 convolutions with a 2 x 2 maximum pooling after each pair, and a mean over the last 7 x 7 map. The
    last convolution has no ReLU, because its output is the feature. docs/research/cnn.md lists the differences from the
    paper.
    """

    dim = 320

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        wide = 1
        for at, pair in enumerate(CASIA_CHANNELS):
            layers += [nn.MaxPool2d(2, ceil_mode=True)] * (at > 0)
            for to in pair:
                layers += [*_conv(wide, to, 3), _relu()]
                wide = to
        self.layers = nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, faces: Tensor) -> Tensor:
        luma = faces.new_tensor(LUMA_WEIGHTS).reshape(1, 3, 1, 1)
        return self.layers((faces * luma).sum(1, keepdim=True))  # type: ignore[no-any-return]


class Light(nn.Module):
    """A narrow MobileFaceNet (Chen et al. 2018): (n, 3, 112, 112) -> (n, 128), 0.4 M parameters.

    It consists of depthwise-separable bottlenecks. At the end, each position of the 7 x 7 map has its own weight (the
    paper's "global depthwise convolution"); a mean would treat the chin like the eyes. It has ReLU instead of PReLU
    (docs/research/cnn.md).
    """

    dim = 128

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv(3, 32, 3, stride=2), _relu(), *_conv(32, 64, 3, stride=2), _relu()]
        wide = 64
        for widening, to, blocks, stride in LIGHT_STAGES:
            for block in range(blocks):
                layers.append(_Bottleneck(wide, to, widening, stride if block == 0 else 1))
                wide = to
        layers += [*_conv(wide, 384, 1), _relu(), *_conv(384, 384, 7, groups=384, pad=0), *_conv(384, self.dim, 1)]
        self.layers = nn.Sequential(*layers, nn.Flatten())

    def forward(self, faces: Tensor) -> Tensor:
        return self.layers(faces)  # type: ignore[no-any-return]


class _Bottleneck(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added if it has the same shape."""

    def __init__(self, wide: int, to: int, widening: int, stride: int) -> None:
        super().__init__()
        inner = wide * widening
        self.same = stride == 1 and wide == to
        self.layers = nn.Sequential(
            *_conv(wide, inner, 1),
            _relu(),
            *_conv(inner, inner, 3, stride=stride, groups=inner),
            _relu(),
            *_conv(inner, to, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        inner: Tensor = self.layers(maps)
        return maps + inner if self.same else inner


NETS: dict[str, type[Casia] | type[Light]] = {"casia": Casia, "light": Light}


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def _conv(
    wide: int, to: int, size: int, *, stride: int = 1, groups: int = 1, pad: int | None = None
) -> list[nn.Module]:
    """Return a convolution and its batch normalisation."""
    around = size // 2 if pad is None else pad
    return [nn.Conv2d(wide, to, size, stride, around, groups=groups, bias=False), nn.BatchNorm2d(to)]


def pictures(crops: Tensor) -> Tensor:
    """Convert (n, 112, 112, 3) uint8 crops to (n, 3, 112, 112) float32 from -1 to 1, channels last in memory."""
    return crops.permute(0, 3, 1, 2).to(torch.float32).sub_(127.5).div_(127.5)


@torch.inference_mode()
def features(net: nn.Module, crops: Crops, *, unit: bool = True, batch: int = 64) -> Tensor:
    """Compute the features of (N, 112, 112, 3) uint8 crops: (N, dim) float32 on the network's device.

    N must be above 0. unit: divide each feature by its L2 norm; batch: crops per forward pass
    """
    device = next(net.parameters()).device
    parts = (torch.from_numpy(np.array(crops[at : at + batch])) for at in range(0, len(crops), batch))
    rows = torch.cat([net(pictures(part.to(device))) for part in parts])
    return nn.functional.normalize(rows) if unit else rows
