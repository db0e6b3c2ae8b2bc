"""Every error that `ml` raises.

LikenessError
├── UnknownComponent      no component of that name
├── Unreadable            bytes that are not a supported picture, or exceed a limit; `code` says which
├── WrongShape            an array of another shape, width or type than stated
├── NotFinite             NaN or infinity in an array
├── NotFitted             an embedder was asked to embed before it was fitted
├── NotLinear             a distance that cannot be split exactly into contributions
├── CannotGoOn            a training cannot continue from that embedder
├── CannotDescribe        a photo for a descriptor whose vectors are imported
├── FitFailed             a fit's numbers overflow or its equations have no solution
├── TooFewPairs           a fit needs more labels; says how many are missing
├── Corrupt               a stored file is missing, truncated or altered
└── Unavailable           an optional file or library is missing; says how to get it
"""

from collections.abc import Iterable, Mapping


class LikenessError(Exception):
    """The base class of every error that `ml` raises deliberately."""


class UnknownComponent(LikenessError):
    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} is named {name!r}; there are: {', '.join(sorted(known))}")


class Unreadable(LikenessError):
    """A picture that cannot be used. `code` is one of InvalidImageFormat, ImageTooLarge."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class WrongShape(LikenessError):
    def __init__(self, what: str, wanted: str, actual: object) -> None:
        super().__init__(f"{what} must be {wanted}, not {actual}")


class NotFinite(LikenessError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} holds NaN or infinity; every number must be finite")


class NotFitted(LikenessError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was not fitted; call fit or load first")


class NotLinear(LikenessError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not made of linear maps, so its distances cannot be taken apart exactly")


class TooFewPairs(LikenessError):
    """`missing` says how many more pairs of which kind are needed."""

    def __init__(self, what: str, needed: int, actual: int) -> None:
        super().__init__(f"{needed} {what} needed, {actual} found: {needed - actual} more to label")
        self.missing = needed - actual


class CannotGoOn(LikenessError):
    """A training cannot continue from what that embedder has learned."""


class FitFailed(LikenessError):
    """The numbers of a fit overflow, its equations have no solution, or its arrays are empty or too large."""

    def __init__(self, method: str, changed: Mapping[str, object], reason: str) -> None:
        options = ", ".join(f"{name} = {value}" for name, value in changed.items())
        cause = f"choose values nearer to the defaults than {options}" if changed else "scale the descriptors"
        super().__init__(f"{method} cannot be fitted to these data with these options; {cause} ({reason})")


class CannotDescribe(LikenessError):
    """The vectors of the descriptor are imported, so it has no way to describe a photo."""

    def __init__(self, name: str, dim: int) -> None:
        super().__init__(
            f"the collection holds imported vectors ({name}, {dim} numbers), which no photo can be compared with. "
            "Import vectors with faces:import-embeddings, and search with search:by-embedding"
        )


class Corrupt(LikenessError):
    pass


class Unavailable(LikenessError):
    pass
