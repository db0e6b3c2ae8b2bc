"""Save embedders as on a disk without space."""

from pathlib import Path

from ml.embedders.base import Embedder

_SAVE = Embedder.save


def save_on_full_disk(embedder: Embedder, folder: Path) -> None:
    """Do as `Embedder.save` does, where no number can be written."""
    folder.mkdir()
    (folder / "embedder.safetensors").symlink_to("/dev/full")
    _SAVE(embedder, folder)
