"""What another photo of the same face might have looked like: one batch at a time, on any device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Jitter:
    """SDs of: shift, as a part of the side; turn, radians; zoom, contrast, exposure: of logarithms; colour; light: a
    gradient across the face. blur: at most, 1 is all detail below 4 pixels; sharpen: likewise; grey, hidden: how often
    colour or a patch is lost. With all at 0 faces are mirrored or not.
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


def augmented(faces: Tensor, draw: torch.Generator, how: Jitter = Jitter()) -> Tensor:
    """(n, 3, H, W) from -1 to 1, likewise. Half of them are mirrored. `draw` decides all, on the CPU."""
    faces = _warped(faces, draw, how)
    faces = _lit(_focused(faces, draw, how), draw, how)
    return _hidden(faces, draw, how).contiguous(memory_format=torch.channels_last)


def _normal(draw: torch.Generator, like: Tensor, sd: float, *shape: int) -> Tensor:
    return (torch.randn(len(like), *shape, generator=draw) * sd).to(like.device)


def _chance(draw: torch.Generator, like: Tensor, often: float) -> Tensor:
    return (torch.rand(len(like), 1, 1, 1, generator=draw) < often).to(like.device)


def _warped(faces: Tensor, draw: torch.Generator, how: Jitter) -> Tensor:
    """Turned, zoomed, shifted and mirrored in one interpolation; what comes into sight repeats the rim."""
    turn, zoom = _normal(draw, faces, how.turn), torch.exp(_normal(draw, faces, how.zoom))
    side = torch.where(_chance(draw, faces, 0.5).flatten(), -1.0, 1.0)
    cos, sin = torch.cos(turn) * zoom, torch.sin(turn) * zoom
    linear = torch.stack([cos * side, -sin, sin * side, cos], 1).reshape(-1, 2, 2)
    shift = 2 * _normal(draw, faces, how.shift, 2, 1)
    grid = F.affine_grid(torch.cat([linear, shift], 2), list(faces.shape), align_corners=False)
    return F.grid_sample(faces, grid, padding_mode="border", align_corners=False)


def _focused(faces: Tensor, draw: torch.Generator, how: Jitter) -> Tensor:
    """Photos of 250 pixels and of 2,500 meet in one gallery; a net that saw one kind is lost with the other."""
    blurred = F.interpolate(F.avg_pool2d(faces, 4), faces.shape[2:], mode="bilinear")
    much = torch.rand(len(faces), 1, 1, 1, generator=draw) * (how.blur + how.sharpen) - how.blur
    return faces + much.to(faces.device) * (faces - blurred)


def _lit(faces: Tensor, draw: torch.Generator, how: Jitter) -> Tensor:
    height, width = faces.shape[2:]
    across = torch.linspace(-1, 1, width, device=faces.device) * _normal(draw, faces, how.light, 1, 1, 1)
    down = torch.linspace(-1, 1, height, device=faces.device)[:, None] * _normal(draw, faces, how.light, 1, 1, 1)
    contrast, tint = torch.exp(_normal(draw, faces, how.contrast, 1, 1, 1)), _normal(draw, faces, how.colour, 3, 1, 1)
    exposure = torch.exp(_normal(draw, faces, how.exposure, 1, 1, 1)) * (1 + across + down)
    lit = ((faces + 1) * exposure - 1) * contrast + tint
    return torch.where(_chance(draw, faces, how.grey), lit.mean(1, keepdim=True), lit).clamp(-1, 1)


def _hidden(faces: Tensor, draw: torch.Generator, how: Jitter) -> Tensor:
    """A rectangle of an eighth to two fifths of the side, of one grey."""
    n, _, height, width = faces.shape
    size, middle = torch.rand(2, n, 2, generator=draw) * torch.tensor([0.14, 1.0])[:, None, None]
    size = (size + 0.06).to(faces.device)
    away_y = (torch.linspace(0, 1, height, device=faces.device) - middle[:, :1].to(faces.device)).abs() < size[:, :1]
    away_x = (torch.linspace(0, 1, width, device=faces.device) - middle[:, 1:].to(faces.device)).abs() < size[:, 1:]
    where = away_y[:, None, :, None] & away_x[:, None, None, :] & _chance(draw, faces, how.hidden)
    return torch.where(where, _normal(draw, faces, 0.5, 1, 1, 1).clamp(-1, 1), faces)
