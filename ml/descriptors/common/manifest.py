"""The small JSON file beside a model's weights: what it is, and how it wants its pictures (docs/use/recognisers.md,
docs/research/cnn.md)."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from ml.errors import Corrupt, Unavailable

Colour = Literal["rgb", "bgr"]
Layout = Literal["nchw", "nhwc"]
LARGEST = 4096


@dataclass(frozen=True)
class DescriptorManifest:
    """What every model's says.

    file: of the model, relative to the manifest; sha256: of that file, hex
    dim: numbers a face; licence: shown, never judged
    """

    file: str
    sha256: str
    dim: int
    licence: str
    kind: ClassVar[str]
    page: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises Unavailable where there is no such file, Corrupt where it is no manifest."""
        if not path.is_file():
            raise Unavailable(f"no {cls.kind} manifest at {path}; {cls.page} says how one is written")
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            unknown = content.keys() - {field.name for field in fields(cls)}
            if unknown:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            return cls(**content)._checked()
        except (ValueError, TypeError, AttributeError) as error:
            raise Corrupt(f"the {cls.kind} manifest {path.name} is not right: {error}") from error

    def write(self, path: Path) -> None:
        """As JSON. Raises Corrupt where a value is not right: nothing is written then."""
        try:
            checked = self._checked()
        except (ValueError, TypeError) as error:
            raise Corrupt(f"the {self.kind} manifest {path.name} would not be right: {error}") from error
        path.write_text(json.dumps(asdict(checked), indent=1))

    def model(self, beside: Path, *, check: bool = True) -> Path:
        """The model's file, its hash checked unless that is not wanted. Raises Unavailable, Corrupt."""
        path = beside.parent / self.file
        if not path.is_file():
            raise Unavailable(f"the {self.kind} model {self.file} is not beside its manifest {beside.name}")
        digest = sha256(path) if check else self.sha256.lower()
        if digest != self.sha256.lower():
            raise Corrupt(f"the {self.kind} model {self.file} has SHA-256 {digest}, its manifest says {self.sha256}")
        return path

    def _checked(self) -> Self:
        """Raises ValueError, TypeError."""
        if not all(isinstance(text, str) for text in (self.file, self.sha256, self.licence)):
            raise ValueError("file, sha256 and licence are texts")
        if type(self.dim) is not int or not 0 < self.dim <= LARGEST:
            raise ValueError(f"dim is a whole number from 1 to {LARGEST}")
        return self


@dataclass(frozen=True)
class OnnxManifest(DescriptorManifest):
    """A model that takes (pixel - mean) / scale of a picture of `size` (height, width).

    mean, scale: for each channel in the order of `colour`; output: its name, "" where there is one alone
    normalise: whether a row is divided by its L2 norm
    """

    size: tuple[int, int] = (112, 112)
    colour: Colour = "rgb"
    layout: Layout = "nchw"
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    scale: tuple[float, float, float] = (127.5, 127.5, 127.5)
    output: str = ""
    normalise: bool = True
    kind: ClassVar[str] = "ONNX"
    page: ClassVar[str] = "docs/use/recognisers.md"

    def _checked(self) -> Self:
        """With sizes and channels as tuples."""
        super()._checked()
        size = _numbers("size", self.size, 2)
        mean, scale = _numbers("mean", self.mean, 3), _numbers("scale", self.scale, 3)
        if not all(type(n) is int and 0 < n <= LARGEST for n in size):
            raise ValueError(f"size is of whole numbers from 1 to {LARGEST}")
        if 0 in scale:
            raise ValueError("scale may not be 0")
        if self.colour not in get_args(Colour) or self.layout not in get_args(Layout):
            raise ValueError("colour is rgb or bgr, layout is nchw or nhwc")
        if not isinstance(self.output, str):
            raise ValueError("output is a text")
        return type(self)(**(vars(self) | {"size": size, "mean": mean, "scale": scale}))


@dataclass(frozen=True)
class CnnManifest(DescriptorManifest):
    """A network of `networks.py` that `likeness recognisers train-cnn` trained.

    net: which; unit: whether its feature is divided by its L2 norm
    projected: whether that is then multiplied by the matrix `projection` (features, dim) that lies with the weights
    trained: on what and how, in words
    """

    net: str
    unit: bool = True
    projected: bool = False
    trained: str = ""
    kind: ClassVar[str] = "CNN"
    page: ClassVar[str] = "docs/research/cnn.md"

    def _checked(self) -> Self:
        if not all(isinstance(text, str) for text in (self.net, self.trained)):
            raise ValueError("net and trained are texts")
        if not all(isinstance(flag, bool) for flag in (self.unit, self.projected)):
            raise ValueError("unit and projected are true or false")
        return super()._checked()


def sha256(path: Path) -> str:
    """Of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbers(name: str, given: Any, count: int) -> tuple[Any, ...]:
    """One number stands for all."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,) * count
    if len(several) != count or not all(isinstance(n, int | float) for n in several):
        raise ValueError(f"{name} is a number or {count} of them")
    return several
