"""The trained network as the descriptor reads it: weights, and the manifest beside them."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from ml.descriptors.common.manifest import CnnManifest, sha256
from ml.errors import Corrupt

WEIGHTS, MANIFEST = "cnn.safetensors", "cnn.json"


def export(net: str, weights: dict[str, Tensor], out: Path, *, licence: str, trained: str, dim: int) -> Path:
    """Writes both files of `out`, the manifest last; returns its path. A tensor `projection` among the weights is what
    the descriptor multiplies by.
    weights: the tensors of the network, (out, in, ...) each, by name.
    """
    out.mkdir(parents=True, exist_ok=True)
    part = out / f".{WEIGHTS}"
    part.write_bytes(save({name: one.detach().cpu().contiguous() for name, one in weights.items()}))
    says = CnnManifest(WEIGHTS, sha256(part), dim, licence, net, projected="projection" in weights, trained=trained)
    part.replace(out / WEIGHTS)
    note = out / f".{MANIFEST}"
    note.write_text(json.dumps(asdict(says), indent=1) + "\n")
    return note.replace(out / MANIFEST)


def read(manifest: Path, net: str) -> dict[str, Tensor]:
    """The network's weights that `export` wrote, without a projection. Raises Unavailable, Corrupt.

    Each tensor is (out, in, ...).
    """
    says = CnnManifest.read(manifest)
    if says.net != net:
        raise Corrupt(f"{manifest.name} is of the network {says.net!r}, and {net!r} was to start from it")
    weights: dict[str, Tensor] = load_file(says.model(manifest))
    return {name: one for name, one in weights.items() if name != "projection"}
