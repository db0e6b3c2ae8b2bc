"""`likeness recognisers`: what faces can be described by, and which collection uses what."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.client import connect, console, read_answer
from app.cli.home import read_settings
from app.cli.recognisers.addition import add
from app.cli.recognisers.cnn_training import train_cnn
from app.cli.recognisers.pinned_files import PinnedFile, read_pinned
from app.cli.recognisers.switch import rollback, use
from app.storage.recognisers import manifests
from app.storage.recognisers.catalogue import SFACE, SFACE_SHA256, Accuracy, list_recognisers
from ml.descriptors.common.onnx_signature import OnnxManifest

app = typer.Typer(help="What faces are described by: list, pull, add, use, roll back.", no_args_is_help=True)
app.command()(add)
app.command()(use)
app.command()(rollback)
app.command("train-cnn")(train_cnn)

SFACE_FILE = "face_recognition_sface_2021dec.onnx"


@app.command("list")
def list_(
    url: Annotated[str | None, typer.Option(help="ask this service; default LIKENESS_URL, with LIKENESS_KEY")] = None,
) -> None:
    """Name, licence, size, source and accuracy of each, whether it is installed, and what it serves.

    Asks the service where LIKENESS_KEY is set, else reads the home (LIKENESS_HOME).
    """
    if url or os.environ.get("LIKENESS_KEY"):
        with connect(url) as client:
            rows: list[dict[str, Any]] = read_answer(client.get("/v1/recognisers"))["recognisers"]
        where = "the service"
    else:
        settings = read_settings()
        rows = [
            {**vars(entry), "bytes": entry.size, "installed": entry.spec is not None, "serves": None}
            | {"accuracy": asdict(entry.accuracy) if entry.accuracy else None}
            for entry in list_recognisers(settings)
        ]
        where = f"the home {settings.home.resolve()}"
    console.print(f"Recognisers, by {where}", soft_wrap=True)
    for row in rows:
        _print_row(row)


def _print_row(row: dict[str, Any]) -> None:
    accuracy = _describe_accuracy(Accuracy(**row["accuracy"])) if row["accuracy"] else "accuracy not measured"
    numbers = f"{row['dim']} numbers a face" if row["dim"] else ""
    about = "; ".join(part for part in (row["licence"], _describe_size(row["bytes"]), numbers, row["source"]) if part)
    serves = f"; serves {', '.join(row['serves'])}" if row["serves"] else ""
    installed = f"installed{serves}" if row["installed"] else f"not installed: {row['install']}"
    for text in (f"\n{row['name']}: {installed}", f"  {accuracy}", f"  {about}"):
        console.print(text, soft_wrap=True)


def _describe_accuracy(accuracy: Accuracy) -> str:
    shares = {
        "pairs judged rightly": accuracy.verification,
        "right person first": accuracy.right_first,
        "pairs ordered rightly": accuracy.auc,
    }
    figures = ", ".join(f"{100 * share:.1f} % {what}" for what, share in shares.items() if share is not None)
    return f"{figures} ({accuracy.data}{'; as published' if accuracy.by == 'publisher' else ''})"


def _describe_size(size: int | None) -> str:
    if not size:
        return "" if size is None else "no file"
    return f"{size / 1e6:.1f} MB"


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="sface: 128 numbers, Apache-2.0, from OpenCV's model zoo")],
    file: Annotated[Path | None, typer.Option(exists=True, help="take it from here, not from the network")] = None,
    quiet: Annotated[bool, typer.Option(help="say nothing and succeed where there is no network")] = False,
) -> None:
    """Fetch a recogniser's file once, pinned by commit and SHA-256; a running service sees it at once."""
    if name != SFACE.name:
        raise typer.BadParameter(f"there is: {SFACE.name}", param_hint="NAME")
    settings = read_settings()
    if name in manifests.list_registered(settings):
        return
    data = read_pinned(PinnedFile(SFACE.source, SFACE_SHA256), file, quiet)
    if data is None:
        return
    manifest = OnnxManifest(
        file=SFACE_FILE, sha256=SFACE_SHA256, dim=128, licence=SFACE.licence, mean=(0.0,) * 3, scale=(1.0,) * 3
    )
    with manifests.staging_folder(settings) as staged:
        (staged / SFACE_FILE).write_bytes(data)
        manifest.write(staged / manifests.MANIFEST)
        path = manifests.register(settings, name, staged, {"source": SFACE.source})
    console.print(f"{name}: {path.parent} ({len(data):,} bytes)", soft_wrap=True)
    console.print(f"next: likeness recognisers use {name} --collection C")
