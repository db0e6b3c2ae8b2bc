"""`likeness detectors`: fetch the files of optional face detectors."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.client import console
from app.cli.home import read_settings
from app.cli.recognisers.pinned_files import PinnedFile, is_pinned, read_pinned
from app.resources import YUNET_FILE
from ml.files import atomic_write

app = typer.Typer(help="Optional face detectors.", no_args_is_help=True)

DETECTOR_FILES = {
    "yunet": (
        YUNET_FILE,
        PinnedFile(
            "https://github.com/opencv/opencv_zoo/raw/main/models/face_detection_yunet/face_detection_yunet_2023mar.onnx",
            "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
        ),
    ),
}


@app.callback()
def _detectors() -> None:
    """Optional face detectors."""


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="yunet: a face detector with five landmarks (MIT licence)")],
    file: Annotated[Path | None, typer.Option(exists=True, help="copy this file instead of downloading it")] = None,
    quiet: Annotated[bool, typer.Option(help="print nothing and succeed if there is no network")] = False,
) -> None:
    """Fetch the file of a detector, unless it is there already."""
    if name not in DETECTOR_FILES:
        raise typer.BadParameter(f"there are: {', '.join(DETECTOR_FILES)}", param_hint="NAME")
    stored, pinned = DETECTOR_FILES[name]
    target = read_settings().detector_folder / stored
    if is_pinned(target, pinned):
        return
    data = read_pinned(pinned, file, quiet)
    if data is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as stored_file:
        stored_file.write(data)
    console.print(f"{name}: {target} ({len(data):,} bytes)")
