"""Dense root-SIFT at every position of a crop at once, in the layout of VLFeat's `vl_dsift` with a flat window."""

from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from ml.descriptors.base import CROP_SHAPES
from ml.errors import Unavailable

HEIGHT, WIDTH = CROP_SHAPES["grey"]
CELL_PIXELS, CELLS_PER_AXIS, DIRECTIONS = 6, 4, 8
PATCH_PIXELS = CELL_PIXELS * CELLS_PER_AXIS
NUMBERS_PER_PATCH = CELLS_PER_AXIS * CELLS_PER_AXIS * DIRECTIONS
MAX_COMPONENT = 0.2
MIN_NORM = 1e-6


def device_of(name: str) -> torch.device:
    """Return the device of this name; "auto" is the GPU if there is one. Raises Unavailable."""
    seen = torch.cuda.is_available()
    if name == "cuda" and not seen:
        raise Unavailable("torch finds no GPU; install a build of torch with CUDA, or set device to auto or cpu")
    return torch.device(("cuda" if seen else "cpu") if name == "auto" else name)


class Patches(NamedTuple):
    """Root-SIFT of T patches of B crops, as a quotient: `rooted` (B, 128, T) divided by its norms `length` (B, T).

    The quotient is not computed here, because it is cheaper to divide after a linear map.
    """

    rooted: Tensor
    length: Tensor


class DenseSift:
    """Computes root-SIFT of every 24 x 24 patch that lies inside the crop, row by row.

    Convention, with Y, X the first row and column of a patch, 0..146 and 0..76 in steps of `stride`:
        gradient: central differences, one-sided at the border. There are 8 orientations, 45 degrees apart, from x to
            y; each gradient is shared linearly by the two nearest.
        cells: 4 x 4, whose centres are 6 pixels apart and start at (Y + 3, X + 3). The weight of a pixel in a cell is
            1 - |distance| / 6 along each axis (bilinear). Beyond the border the gradient is repeated.
        window: flat within a cell. The weight of a cell is the mean over it of a Gaussian with an SD of 12 pixels
            about the centre of the patch.
        order of the 128 numbers: orientation, row of the cell, column of the cell (VLFeat: the orientation last)
        normalisation: clipped at 0.2 of the L2 norm, divided by the L1 norm, square root. The L2 norm is then 1, or 0
            for a uniform patch.
    Sources: Lowe, IJCV 2004; Vedaldi and Fulkerson, VLFeat 0.9.21; Arandjelovic and Zisserman, CVPR 2012 (the root).
    """

    def __init__(self, stride: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        def put(matrix: Tensor) -> Tensor:
            return matrix.to(device, dtype)

        weight = _window()
        self.stride = stride
        self._down, self._across = put(_triangles(HEIGHT)), put(_triangles(WIDTH).T)
        self._mass_down, self._mass_across = (
            put(_four(HEIGHT, weight**2, stride)),
            put(_four(WIDTH, weight**2, stride).T),
        )
        self._weight = put(torch.outer(weight, weight).sqrt()[:, :, None, None])
        self._orientations = put(torch.arange(DIRECTIONS)[:, None, None])

    def centres(self) -> Tensor:
        """Return (T, 2): x, y of the centre of each patch, as a share of the crop's width and height, minus 0.5."""
        y, x = (torch.arange(0, side - PATCH_PIXELS + 1, self.stride) + PATCH_PIXELS / 2 for side in (HEIGHT, WIDTH))
        return torch.stack(torch.meshgrid(x / WIDTH - 0.5, y / HEIGHT - 0.5, indexing="xy"), -1).flatten(0, 1)

    def patches(self, crops: Tensor) -> Patches:
        """Compute the patches of (B, 170, 100) grey crops: `rooted` (B, 128, T) and `length` (B, T).

        The scale of the grey values does not matter.
        """
        cells = self._down @ (self._oriented(crops) @ self._across)
        energy = self._mass_down @ (cells.square().sum(1) @ self._mass_across)
        limit = (MAX_COMPONENT * energy.clamp_min_(0).sqrt_()).sqrt_()
        across = (
            cells.sqrt_()
            .unfold(2, HEIGHT - PATCH_PIXELS + 1, CELL_PIXELS)
            .unfold(3, WIDTH - PATCH_PIXELS + 1, CELL_PIXELS)
        )
        shared = across[..., :: self.stride, :: self.stride]
        rooted = torch.empty(shared.shape, device=shared.device, dtype=shared.dtype)
        torch.mul(shared, self._weight, out=rooted)
        torch.minimum(rooted, limit[:, None, None, None], out=rooted)
        rooted = rooted.view(len(crops), NUMBERS_PER_PATCH, -1)
        return Patches(rooted, rooted.square().sum(1).sqrt_().clamp_min_(MIN_NORM))

    def _oriented(self, crops: Tensor) -> Tensor:
        """Return the length of each gradient, shared by the two nearest orientations: (B, 8, 170, 100)."""
        by_y, by_x = torch.gradient(crops.to(self._weight.dtype), dim=(1, 2))
        turned = torch.atan2(by_y, by_x)[:, None] * (DIRECTIONS / (2 * pi))
        difference = (turned - self._orientations).abs_()
        difference = torch.minimum(difference, (DIRECTIONS - difference).abs_())
        return (1 - difference).clamp_min_(0) * torch.hypot(by_x, by_y)[:, None]


def _triangles(side: int) -> Tensor:
    """Return (positions, side): the weight of each pixel of an axis in a cell centred at 3, 4, ..."""
    centres = torch.arange(CELL_PIXELS // 2, side - CELL_PIXELS // 2 + 1)
    pixels = (centres[:, None] + torch.arange(1 - CELL_PIXELS, CELL_PIXELS)).clamp(0, side - 1)
    shares = 1 - torch.arange(1 - CELL_PIXELS, CELL_PIXELS).abs() / CELL_PIXELS
    return torch.zeros(len(centres), side, dtype=torch.float64).scatter_add_(
        1, pixels, shares.double().expand(len(centres), -1)
    )


def _four(side: int, weight: Tensor, stride: int) -> Tensor:
    """Return (patches, positions): a matrix that computes the weighted sum over the four cells of a patch."""
    first = torch.arange(0, side - PATCH_PIXELS + 1, stride)
    sums = torch.zeros(len(first), side - CELL_PIXELS + 1, dtype=torch.float64)
    for cell in range(CELLS_PER_AXIS):
        sums[torch.arange(len(first)), first + cell * CELL_PIXELS] = weight[cell]
    return sums


def _window() -> Tensor:
    """Return (4,): the mean of the Gaussian window over each cell of an axis."""
    away = (
        torch.arange(1 - CELL_PIXELS, CELL_PIXELS)
        - CELL_PIXELS * (torch.arange(CELLS_PER_AXIS, dtype=torch.float64) - (CELLS_PER_AXIS - 1) / 2)[:, None]
    )
    return torch.exp(-0.5 * (away / (2 * CELL_PIXELS)) ** 2).mean(1)
