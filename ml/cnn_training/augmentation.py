"""Augment faces as if they had been photographed again: one batch at a time, on any device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Jitter:
    """The strength of each change. With all fields at 0, faces are only mirrored.

    shift: SD, as a share of the side; turn: SD in radians; zoom, exposure, contrast: SD of the logarithm
    colour: SD of the tint of each channel; light: SD of a brightness gradient across the face
    blur, sharpen: largest amount; at a blur of 1 all detail below 4 pixels is lost
    grey, hidden: probability that the colour or a rectangular patch is lost
    """

    shift: float = 0.025
    turn: float = 0.07
    zoom: float = 0.06
    exposure: float = 0.15
    contrast: float = 0.15
    colour: float = 0.03
    light: float = 0.15
    blur: float = 1.0
    sharpen: float = 1.5
    grey: float = 0.1
    hidden: float = 0.3


def augment(faces: Tensor, generator: torch.Generator, jitter: Jitter = Jitter()) -> Tensor:
    """Change (n, 3, H, W) faces with values from -1 to 1 at random: the same shape and range.

    About half of them are mirrored. All random numbers come from `generator`, which is on the CPU.
    """
    faces = _warp(faces, generator, jitter)
    faces = _change_light(_change_focus(faces, generator, jitter), generator, jitter)
    return _hide_patches(faces, generator, jitter).contiguous(memory_format=torch.channels_last)


def _draw_normal(generator: torch.Generator, like: Tensor, sd: float, *shape: int) -> Tensor:
    return (torch.randn(len(like), *shape, generator=generator) * sd).to(like.device)


def _draw_mask(generator: torch.Generator, like: Tensor, probability: float) -> Tensor:
    return (torch.rand(len(like), 1, 1, 1, generator=generator) < probability).to(like.device)


def _warp(faces: Tensor, generator: torch.Generator, jitter: Jitter) -> Tensor:
    """Rotate, zoom, shift and mirror in one interpolation. Pixels outside the crop repeat its edge."""
    turn, zoom = _draw_normal(generator, faces, jitter.turn), torch.exp(_draw_normal(generator, faces, jitter.zoom))
    side = torch.where(_draw_mask(generator, faces, 0.5).flatten(), -1.0, 1.0)
    cos, sin = torch.cos(turn) * zoom, torch.sin(turn) * zoom
    linear = torch.stack([cos * side, -sin, sin * side, cos], 1).reshape(-1, 2, 2)
    shift = 2 * _draw_normal(generator, faces, jitter.shift, 2, 1)
    grid = F.affine_grid(torch.cat([linear, shift], 2), list(faces.shape), align_corners=False)
    return F.grid_sample(faces, grid, padding_mode="border", align_corners=False)


def _change_focus(faces: Tensor, generator: torch.Generator, jitter: Jitter) -> Tensor:
    """Blur or sharpen. Galleries mix photos of 250 and of 2,500 pixels, and a network must cope with both."""
    blurred = F.interpolate(F.avg_pool2d(faces, 4), faces.shape[2:], mode="bilinear")
    amount = torch.rand(len(faces), 1, 1, 1, generator=generator) * (jitter.blur + jitter.sharpen) - jitter.blur
    return faces + amount.to(faces.device) * (faces - blurred)


def _change_light(faces: Tensor, generator: torch.Generator, jitter: Jitter) -> Tensor:
    """Change exposure, contrast, tint and the direction of the light; make some faces grey."""
    height, width = faces.shape[2:]
    gradient = _draw_normal(generator, faces, jitter.light, 1, 1, 1)
    across = torch.linspace(-1, 1, width, device=faces.device) * gradient
    gradient = _draw_normal(generator, faces, jitter.light, 1, 1, 1)
    down = torch.linspace(-1, 1, height, device=faces.device)[:, None] * gradient
    contrast = torch.exp(_draw_normal(generator, faces, jitter.contrast, 1, 1, 1))
    tint = _draw_normal(generator, faces, jitter.colour, 3, 1, 1)
    exposure = torch.exp(_draw_normal(generator, faces, jitter.exposure, 1, 1, 1)) * (1 + across + down)
    lit = ((faces + 1) * exposure - 1) * contrast + tint
    return torch.where(_draw_mask(generator, faces, jitter.grey), lit.mean(1, keepdim=True), lit).clamp(-1, 1)


def _hide_patches(faces: Tensor, generator: torch.Generator, jitter: Jitter) -> Tensor:
    """Cover some faces with a uniformly grey rectangle of an eighth to two fifths of the side."""
    n, _, height, width = faces.shape
    size, middle = torch.rand(2, n, 2, generator=generator) * torch.tensor([0.14, 1.0])[:, None, None]
    size, middle = (size + 0.06).to(faces.device), middle.to(faces.device)
    inside_y = (torch.linspace(0, 1, height, device=faces.device) - middle[:, :1]).abs() < size[:, :1]
    inside_x = (torch.linspace(0, 1, width, device=faces.device) - middle[:, 1:]).abs() < size[:, 1:]
    hidden = _draw_mask(generator, faces, jitter.hidden)
    inside = inside_y[:, None, :, None] & inside_x[:, None, None, :] & hidden
    return torch.where(inside, _draw_normal(generator, faces, 0.5, 1, 1, 1).clamp(-1, 1), faces)
