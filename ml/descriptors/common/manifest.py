"""The manifest: a JSON file beside a model's weights that states their hash and the input they expect.

See docs/use/recognisers.md and docs/research/cnn.md.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from ml.errors import Corrupt, Unavailable
from ml.files import hash_file, parse_json

Colour = Literal["rgb", "bgr"]
Layout = Literal["nchw", "nhwc"]
MAX_DIM = 4096


@dataclass(frozen=True)
class DescriptorManifest:
    """The fields of every manifest.

    file: path of the model file, relative to the manifest; sha256: of that file, in hex
    dim: numbers in a descriptor, 1 to 4096; licence: a text that is displayed but not interpreted
    """

    file: str
    sha256: str
    dim: int
    licence: str
    kind: ClassVar[str]
    page: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest. Raises Unavailable if the file is missing, Corrupt if it is not a valid manifest."""
        if not path.is_file():
            raise Unavailable(f"no {cls.kind} manifest at {path}; {cls.page} describes how to write one")
        try:
            content: dict[str, Any] = parse_json(path.read_bytes())
            unknown = content.keys() - {field.name for field in fields(cls)}
            if unknown:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            return cls(**content)._checked()
        except (ValueError, TypeError, AttributeError) as error:
            raise Corrupt(f"the {cls.kind} manifest {path.name} is not valid: {error}") from error

    def write(self, path: Path) -> None:
        """Write the manifest as JSON. Raises Corrupt, and writes nothing, if a value is not valid."""
        try:
            checked = self._checked()
        except (ValueError, TypeError) as error:
            raise Corrupt(f"the {self.kind} manifest {path.name} would not be valid: {error}") from error
        path.write_text(json.dumps(asdict(checked), indent=1))

    def model(self, beside: Path, *, check: bool = True) -> Path:
        """Return the path of the model file, which lies beside the manifest `beside`.

        check: verify the hash of the file. Raises Unavailable, Corrupt.
        """
        path = beside.parent / self.file
        if not path.is_file():
            raise Unavailable(f"the {self.kind} model {self.file} is not beside its manifest {beside.name}")
        digest = hash_file(path) if check else self.sha256.lower()
        if digest != self.sha256.lower():
            raise Corrupt(f"the {self.kind} model {self.file} has SHA-256 {digest}, its manifest states {self.sha256}")
        return path

    def _checked(self) -> Self:
        """Return the manifest if its values are valid. Raises ValueError, TypeError."""
        if not all(isinstance(text, str) for text in (self.file, self.sha256, self.licence)):
            raise ValueError("file, sha256 and licence must be texts")
        if type(self.dim) is not int or not 0 < self.dim <= MAX_DIM:
            raise ValueError(f"dim must be a whole number from 1 to {MAX_DIM}")
        return self


@dataclass(frozen=True)
class OnnxManifest(DescriptorManifest):
    """The manifest of an ONNX model, whose input is (pixel - mean) / scale of a picture.

    size: (height, width) of the picture in pixels; colour, layout: order of its channels and of its axes
    mean, scale: one value per channel, in the order of `colour`
    output: name of the model's output; empty if it has only one
    normalise: whether each descriptor is divided by its L2 norm
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
        """Return the manifest with size, mean and scale as tuples."""
        super()._checked()
        size = _as_tuple("size", self.size, 2)
        mean, scale = _as_tuple("mean", self.mean, 3), _as_tuple("scale", self.scale, 3)
        if not all(type(n) is int and 0 < n <= MAX_DIM for n in size):
            raise ValueError(f"size must hold whole numbers from 1 to {MAX_DIM}")
        if 0 in scale:
            raise ValueError("scale must not be 0")
        if self.colour not in get_args(Colour) or self.layout not in get_args(Layout):
            raise ValueError("colour must be rgb or bgr, layout nchw or nhwc")
        if not isinstance(self.output, str):
            raise ValueError("output must be a text")
        return type(self)(**(vars(self) | {"size": size, "mean": mean, "scale": scale}))


@dataclass(frozen=True)
class CnnManifest(DescriptorManifest):
    """The manifest of a network of `networks.py` that `likeness recognisers train-cnn` trained.

    net: name of the network; unit: whether its features are divided by their L2 norm
    projected: whether they are then multiplied by the matrix `projection` (features, dim) among the weights
    trained: a text that says on what and how it was trained
    """

    net: str
    unit: bool = True
    projected: bool = False
    trained: str = ""
    kind: ClassVar[str] = "CNN"
    page: ClassVar[str] = "docs/research/cnn.md"

    def _checked(self) -> Self:
        if not all(isinstance(text, str) for text in (self.net, self.trained)):
            raise ValueError("net and trained must be texts")
        if not all(isinstance(flag, bool) for flag in (self.unit, self.projected)):
            raise ValueError("unit and projected must be true or false")
        return super()._checked()


def _as_tuple(name: str, given: Any, count: int) -> tuple[Any, ...]:
    """Return `count` numbers as a tuple. A single number is repeated. Raises ValueError."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,) * count
    if len(several) != count or not all(isinstance(n, int | float) for n in several):
        raise ValueError(f"{name} must be a number or {count} of them")
    return several
