"""`likeness recognisers add`: from a recogniser in a file to one that collections can use."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from app.cli.client import console, print_problem
from app.cli.home import read_settings
from app.cli.recognisers.check import (
    PREPROCESSINGS,
    check_staged,
    choose_preprocessing,
    describe_manifest,
    explain_failure,
    print_check,
    rate,
)
from app.cli.recognisers.prompts import Prompts
from app.cli.recognisers.switch import use
from app.config import Settings
from app.errors import AppError, Conflict, Invalid, NotFound
from app.storage.recognisers import manifests
from ml.descriptors.common.file_backed import read_manifest
from ml.descriptors.common.manifest import DescriptorManifest, Layout, OnnxManifest
from ml.descriptors.common.onnx_signature import OnnxSignature, inspect_onnx
from ml.errors import LikenessError
from ml.files import hash_file

UNKNOWN_LICENCE = "unknown: ask its makers"
NUMBERS = "a number, or three with commas, in the order of --colour"


@dataclass(frozen=True)
class Stated:
    """What the options state of an ONNX file; None where the file, an answer or a default is to say it."""

    name: str | None
    mean: str | None
    scale: str | None
    colour: str | None
    licence: str | None
    output: str | None
    layout: str | None
    size: str | None
    normalise: bool


def add(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="an ONNX file, or a manifest FILE.json")],
    name: Annotated[str | None, typer.Option(help="how to call it; default: the file's name")] = None,
    mean: Annotated[str | None, typer.Option(help=f"it is given (pixel - mean) / scale: {NUMBERS}")] = None,
    scale: Annotated[str | None, typer.Option(help=NUMBERS)] = None,
    colour: Annotated[str | None, typer.Option(help="order of its channels, rgb or bgr")] = None,
    licence: Annotated[str | None, typer.Option(help="what its makers allow; shown, never judged")] = None,
    source: Annotated[str | None, typer.Option(help="where the file comes from; default: its name")] = None,
    output: Annotated[str | None, typer.Option(help="which output, where it has several")] = None,
    layout: Annotated[str | None, typer.Option(help="nchw or nhwc, where the file leaves it open")] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH in pixels, where the file leaves it open")] = None,
    normalise: Annotated[bool, typer.Option(help="divide by the norm, as nearly all are made for")] = True,
    yes: Annotated[bool, typer.Option("--yes", help="ask nothing; defaults for what no option states")] = False,
    force: Annotated[bool, typer.Option("--force", help="register it though it does not tell people apart")] = False,
    collection: Annotated[str | None, typer.Option(help="then let it serve this collection")] = None,
    url: Annotated[str | None, typer.Option(help="address of the service, for --collection")] = None,
) -> None:
    """Read what the file says, ask for the rest, check that it tells people apart, and register it.

    It is kept in the service's home (LIKENESS_HOME), where a running service and its workers see it at once.
    """
    stated = Stated(name, mean, scale, colour, licence, output, layout, size, normalise)
    try:
        registered = _register(open_home(), file, stated, Prompts(ask=not yes), source or file.name, force)
    except (AppError, LikenessError) as error:
        print_problem("refused", str(getattr(error, "detail", error)))
        raise typer.Exit(1) from error
    if collection is not None:
        use(registered, collection, url=url)
        return
    console.print(f"next: likeness recognisers use {registered} --collection C", soft_wrap=True)


def open_home() -> Settings:
    """The settings. Raises NotFound where no service has its home there, lest one be made that nothing reads."""
    settings = read_settings()
    if not settings.home.is_dir():
        raise NotFound(
            f"there is no service's home at {settings.home.absolute()}; run this where the service was started, or set "
            "LIKENESS_HOME to its home"
        )
    return settings


def _register(settings: Settings, file: Path, stated: Stated, prompts: Prompts, source: str, force: bool) -> str:
    """The name it is registered by. Raises AppError, LikenessError."""
    with manifests.staging_folder(settings) as staged:
        if file.suffix == ".json":
            name, manifest = _copy_manifest(settings, file, staged, stated, prompts)
        else:
            name, manifest = _make_manifest(settings, file, staged, stated, prompts)
        result = check_staged(manifest, staged)
        print_check(result)
        if not result.passed and not force:
            raise Conflict(explain_failure(result, manifest, staged))
        card = {"source": source, "accuracy": asdict(rate(result))}
        path = manifests.register(settings, name, staged, card)
    console.print(f"{name} is registered in {path.parent}", soft_wrap=True)
    return name


def _copy_manifest(
    settings: Settings, file: Path, staged: Path, stated: Stated, prompts: Prompts
) -> tuple[str, DescriptorManifest]:
    """Name and manifest of a recogniser that has a manifest already. Raises Corrupt, Unavailable, ..."""
    manifest = read_manifest(file)
    model = manifest.model(file)
    name = stated.name or prompts.text("name", file.stem, "--name")
    manifests.check_name(settings, name)
    shutil.copyfile(model, staged / model.name)
    return name, replace(manifest, file=model.name)


def _make_manifest(
    settings: Settings, file: Path, staged: Path, stated: Stated, prompts: Prompts
) -> tuple[str, OnnxManifest]:
    """Name and manifest, from the file, the options and the answers. Raises Invalid, Conflict, WrongShape, ..."""
    signature = inspect_onnx(file, layout=_parse_layout(stated.layout), size=_parse_size(stated.size))
    name = stated.name or prompts.text("name", file.stem, "--name")
    manifests.check_name(settings, name)
    output = stated.output or _choose_output(signature, prompts)
    if output not in signature.outputs:
        raise Invalid(f"{file.name} has no output {output!r} for embeddings; it has {', '.join(signature.outputs)}")
    shutil.copyfile(file, staged / file.name)
    manifest = OnnxManifest(
        file=file.name,
        sha256=hash_file(staged / file.name),
        dim=signature.outputs[output],
        licence=stated.licence or prompts.text("licence", UNKNOWN_LICENCE, "--licence"),
        size=signature.size,
        layout=signature.layout,
        colour=cast("Any", stated.colour or prompts.choice("order of its channels", ("rgb", "bgr"), "--colour")),
        output=output,
        normalise=stated.normalise,
    )
    manifest = _add_preprocessing(manifest, staged, stated, prompts)
    console.print(describe_manifest(manifest, signature.batch), soft_wrap=True)
    return name, manifest


def _choose_output(signature: OnnxSignature, prompts: Prompts) -> str:
    if len(signature.outputs) == 1:
        return next(iter(signature.outputs))
    staged_manifest = ", ".join(f"{name} ({dim} numbers)" for name, dim in signature.outputs.items())
    return prompts.choice(f"outputs: {staged_manifest}; which is the embedding", tuple(signature.outputs), "--output")


def _add_preprocessing(manifest: OnnxManifest, staged: Path, stated: Stated, prompts: Prompts) -> OnnxManifest:
    """With mean and scale: as stated, else by default those by which it tells synthetic people apart best."""
    mean, scale = PREPROCESSINGS[0]
    if stated.mean is None and stated.scale is None:
        (mean, scale), _ = choose_preprocessing(manifest, staged)
    by = stated.mean or prompts.text("it is given (pixel - mean) / scale; mean", f"{mean:g}", "--mean")
    over = stated.scale or prompts.text("scale", f"{scale:g}", "--scale")
    return replace(manifest, mean=_parse_numbers(by), scale=_parse_numbers(over))


def _parse_layout(text: str | None) -> Layout | None:
    if text not in (None, "nchw", "nhwc"):
        raise Invalid(f"--layout is nchw or nhwc, not {text!r}")
    return cast("Layout | None", text)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise Invalid(f"--size is HEIGHTxWIDTH in pixels, such as 112x112, not {text!r}")
    return int(height), int(width)


def _parse_numbers(text: str) -> tuple[float, float, float]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise Invalid(f"--mean and --scale are {NUMBERS}, not {text!r}") from error
    if len(numbers) not in (1, 3):
        raise Invalid(f"--mean and --scale are {NUMBERS}, not {text!r}")
    return cast("tuple[float, float, float]", numbers if len(numbers) == 3 else numbers * 3)
