"""What can be used as a recogniser here, and what is known of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from app.config import Settings
from app.errors import Conflict, Invalid
from app.storage.recognisers.manifests import Registered, list_registered
from ml import registry
from ml.descriptors.common.file_backed import read_manifest
from ml.errors import LikenessError
from ml.files import hash_file
from ml.types import Spec


@dataclass(frozen=True)
class Accuracy:
    """What is known of how well a recogniser tells people apart. Shares are 0..1, None where nobody measured them.

    data: on what it was measured; by: `us`, or `publisher` for what its makers state
    verification: share of pairs judged rightly; right_first: share of searches with the right person first
    auc: how often a pair of one person is more alike than a pair of two
    """

    data: str
    by: Literal["us", "publisher"]
    verification: float | None = None
    right_first: float | None = None
    auc: float | None = None


@dataclass(frozen=True)
class Recogniser:
    """spec: the descriptor that runs it, None where it is not installed; size: bytes of its file, None for unknown
    install: what installs or mends it, a command or an explanation; "" where it is installed
    """

    name: str
    licence: str
    size: int | None
    source: str
    dim: int | None
    accuracy: Accuracy | None
    spec: Spec | None
    install: str = ""


LFW = "LFW: 6,000 pairs of view 2; right first of 300 searches among 500 people"
SFACE_COMMIT = "edef535367a4f8053b5bfb7580935c83772a9639"
SFACE_PATH = "models/face_recognition_sface/face_recognition_sface_2021dec.onnx"
SFACE = Recogniser(
    name="sface",
    licence="Apache-2.0",
    size=38_696_353,
    source=f"https://github.com/opencv/opencv_zoo/raw/{SFACE_COMMIT}/{SFACE_PATH}",
    dim=128,
    accuracy=Accuracy("LFW", "publisher", verification=0.994),
    spec=None,
    install="likeness recognisers pull sface",
)
SFACE_SHA256 = "0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79"
DLIB_OPTIONS: dict[str, object] = {"mirrored": True}
"""docs/decisions/0007-default-recogniser.md says why these."""
DLIB_RESNET = Recogniser(
    name="dlib_resnet",
    licence="CC0-1.0",
    size=22_466_066,
    source="http://dlib.net, by the PyPI package face_recognition_models 0.3.0",
    dim=128,
    accuracy=Accuracy(LFW, "us", verification=0.984, right_first=0.97),
    spec=None,
    install="pip install face_recognition_models==0.3.0",
)
LBP = Recogniser(
    name="lbp",
    licence="as Likeness",
    size=0,
    source="built in; it needs no file, and is weak",
    dim=9860,
    accuracy=Accuracy("LFW, 300 searches of 500 people", "us", right_first=0.39),
    spec=Spec("lbp"),
)


def list_recognisers(settings: Settings) -> list[Recogniser]:
    """What Likeness knows, then what the operator registered, by name."""
    registered = list_registered(settings)
    sface = registered.pop(SFACE.name, None)
    known = [_check_built_in(DLIB_RESNET), SFACE if sface is None else _describe_registered(sface, SFACE), LBP]
    return known + [_describe_registered(registered[name]) for name in sorted(registered)]


def find_recogniser(settings: Settings, name: str) -> Recogniser:
    """One that is installed. Raises Invalid UnknownComponent, Conflict NotInstalled (with what installs it)."""
    known = {r.name: r for r in list_recognisers(settings)}
    if name not in known:
        names = ", ".join(known)
        raise Invalid(
            f"no recogniser is named {name!r}; there are: {names}. `likeness recognisers add FILE.onnx`, run where the "
            f"service has its home, registers another",
            code="UnknownComponent",
            recognisers=list(known),
        )
    recogniser = known[name]
    if recogniser.spec is None:
        raise Conflict(f"the recogniser {name} is not installed: {recogniser.install}", code="NotInstalled")
    return recogniser


def _check_built_in(entry: Recogniser) -> Recogniser:
    """With its spec where its descriptor and the weights are there."""
    if entry.name not in registry.names("descriptors"):
        return entry
    try:
        registry.build("descriptors", entry.name, **DLIB_OPTIONS).load()
    except LikenessError as error:
        return replace(entry, install=str(error))
    return replace(entry, spec=Spec(entry.name, dict(DLIB_OPTIONS)), install="")


def _describe_registered(entry: Registered, known: Recogniser | None = None) -> Recogniser:
    """From its manifest and card; one whose files cannot be used says why."""
    card = entry.card
    try:
        manifest, descriptor = read_manifest(entry.manifest), entry.descriptor
        file = manifest.model(entry.manifest, check=False).stat()
        _check_hash(entry.manifest, hash_file(entry.manifest), file.st_mtime_ns, file.st_size)
    except (LikenessError, OSError) as error:
        blank = Recogniser(entry.name, "", None, str(card.get("source", "")), None, None, None, "")
        return replace(known or blank, install=str(error))
    spec = Spec(descriptor, {"manifest": str(entry.manifest), "pin": hash_file(entry.manifest)})
    if known is not None:
        return replace(known, spec=spec, install="")
    source = str(card.get("source") or f"the operator's file {manifest.file}")
    accuracy = _read_accuracy(card.get("accuracy"))
    return Recogniser(entry.name, manifest.licence, file.st_size, source, manifest.dim, accuracy, spec)


@lru_cache(maxsize=64)
def _check_hash(manifest: Path, *version: object) -> None:
    """Check the model against its manifest; read anew only where one of them has changed. Raises Corrupt."""
    read_manifest(manifest).model(manifest)


def _read_accuracy(stored: Any) -> Accuracy | None:
    try:
        return Accuracy(**stored) if isinstance(stored, dict) else None
    except TypeError:
        return None


def name_recogniser(descriptors: Sequence[Mapping[str, Any]], known: list[Recogniser]) -> str | None:
    """Which recogniser a model describes faces by, whatever was learned on top; None for several, or an unknown one."""
    if len(descriptors) != 1:
        return None
    name, options = descriptors[0]["name"], descriptors[0].get("options", {})
    for entry in known:
        if entry.spec is not None and entry.spec.name == name and _same_file(entry.spec.options, options):
            return entry.name
    return None


def _same_file(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    if "manifest" not in ours:
        return True
    if theirs.get("pin"):
        return bool(ours["pin"] == theirs["pin"])
    return Path(str(ours["manifest"])) == Path(str(theirs.get("manifest", ""))).absolute()
