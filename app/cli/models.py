"""Files that are not ours to ship: fetched from their official address, pinned by their SHA-256."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

import httpx
import typer

from app.cli.client import console
from app.config import Settings
from app.resources import YUNET

app = typer.Typer(help="Optional model files.", no_args_is_help=True)

KNOWN = {
    "yunet": (
        YUNET,
        "https://github.com/opencv/opencv_zoo/raw/main/models/face_detection_yunet/face_detection_yunet_2023mar.onnx",
        "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
    ),
}


@app.callback()
def _models() -> None:
    """Optional model files."""


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="yunet: a face detector with five landmarks (MIT licence)")],
    file: Annotated[Path | None, typer.Option(help="take it from this file instead of the network")] = None,
    quiet: Annotated[bool, typer.Option(help="say nothing and succeed where there is no network")] = False,
) -> None:
    """Fetch a model file once; the same file is not fetched again."""
    if name not in KNOWN:
        raise typer.BadParameter(f"there are: {', '.join(KNOWN)}", param_hint="NAME")
    stored, address, digest = KNOWN[name]
    target = Settings.from_env(os.environ).home / "models" / stored
    if target.exists() and _sha256(target.read_bytes()) == digest:
        return
    try:
        data = file.read_bytes() if file else _fetch(address)
    except httpx.HTTPError as error:
        if quiet:
            return
        console.print(f"[red]not fetched[/red]: {error}. Fetch {address} elsewhere and give it with --file")
        raise typer.Exit(1) from error
    if _sha256(data) != digest:
        console.print(f"[red]refused[/red]: its SHA-256 is {_sha256(data)}, not {digest}")
        raise typer.Exit(0 if quiet else 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(data)
    part.replace(target)
    console.print(f"{name}: {target} ({len(data):,} bytes)")


def _fetch(address: str) -> bytes:
    answer = httpx.get(address, follow_redirects=True, timeout=httpx.Timeout(30, connect=4))
    return answer.raise_for_status().content


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
