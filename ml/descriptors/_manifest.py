"""The small JSON file that says how an ONNX face recogniser wants its pictures (docs/onnx.md)."""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from ml.errors import Corrupt, Unavailable

Colour = Literal["rgb", "bgr"]
Layout = Literal["nchw", "nhwc"]
LARGEST = 4096


@dataclass(frozen=True)
class Manifest:
    """What a model is and takes: (pixel - mean) / scale of a picture of `size` (height, width).

    file: of the model, relative to the manifest; sha256: of that file, hex
    mean, scale: for each channel in the order of `colour`; output: its name, "" where there is one alone
    dim: numbers a face; normalise: whether a row is divided by its L2 norm; licence: shown, never judged
    """

    file: str
    sha256: str
    dim: int
    licence: str
    size: tuple[int, int] = (112, 112)
    colour: Colour = "rgb"
    layout: Layout = "nchw"
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    scale: tuple[float, float, float] = (127.5, 127.5, 127.5)
    output: str = ""
    normalise: bool = True

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises Unavailable where there is no such file, Corrupt where it is no manifest."""
        if not path.is_file():
            raise Unavailable(f"no ONNX manifest at {path}; docs/onnx.md says how one is written")
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            unknown = found.keys() - {field.name for field in fields(cls)}
            if unknown:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            return cls(**found)._checked()
        except (ValueError, TypeError, AttributeError) as error:
            raise Corrupt(f"the ONNX manifest {path.name} is not right: {error}") from error

    def model(self, beside: Path) -> Path:
        """The model's file, its hash checked. Raises Unavailable, Corrupt."""
        path = beside.parent / self.file
        if not path.is_file():
            raise Unavailable(f"the ONNX model {self.file} is not beside its manifest {beside.name}")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256.lower():
            raise Corrupt(f"the ONNX model {self.file} has SHA-256 {found}, its manifest says {self.sha256}")
        return path

    def _checked(self) -> Self:
        """With sizes and channels as tuples. Raises ValueError, TypeError."""
        size = _numbers("size", self.size, 2)
        mean, scale = _numbers("mean", self.mean, 3), _numbers("scale", self.scale, 3)
        if not all(type(n) is int and 0 < n <= LARGEST for n in (*size, self.dim)):
            raise ValueError(f"size and dim are whole numbers from 1 to {LARGEST}")
        if 0 in scale:
            raise ValueError("scale may not be 0")
        if self.colour not in get_args(Colour) or self.layout not in get_args(Layout):
            raise ValueError("colour is rgb or bgr, layout is nchw or nhwc")
        if not all(isinstance(text, str) for text in (self.file, self.sha256, self.licence, self.output)):
            raise ValueError("file, sha256, licence and output are texts")
        return type(self)(**(vars(self) | {"size": size, "mean": mean, "scale": scale}))


def _numbers(name: str, given: Any, count: int) -> tuple[Any, ...]:
    """One number stands for all."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,) * count
    if len(several) != count or not all(isinstance(n, int | float) for n in several):
        raise ValueError(f"{name} is a number or {count} of them")
    return several
