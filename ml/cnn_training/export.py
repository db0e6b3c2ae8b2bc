"""The trained network as the descriptor reads it: weights, and the manifest beside them."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ml.descriptors._manifest import CnnManifest, sha256

WEIGHTS, MANIFEST = "cnn.safetensors", "cnn.json"


def export(net: str, weights: dict[str, Tensor], out: Path, *, dim: int, licence: str, trained: str) -> Path:
    """Writes both files of `out`, the manifest last; returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    part = out / f".{WEIGHTS}"
    save_file({name: one.detach().cpu().contiguous() for name, one in weights.items()}, part)
    says = CnnManifest(WEIGHTS, sha256(part), dim, licence, net, trained=trained)
    part.replace(out / WEIGHTS)
    note = out / f".{MANIFEST}"
    note.write_text(json.dumps(asdict(says), indent=1) + "\n")
    return note.replace(out / MANIFEST)
