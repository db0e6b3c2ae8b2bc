"""Write a trained network as the descriptor `cnn` reads it: a weights file, and a manifest beside it."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from ml.descriptors.common.manifest import CnnManifest
from ml.errors import Corrupt
from ml.files import atomic_write, hash_bytes

WEIGHTS_FILE, MANIFEST_FILE = "cnn.safetensors", "cnn.json"


def export_network(net: str, weights: dict[str, Tensor], out: Path, *, licence: str, trained: str, dim: int) -> Path:
    """Write weights and manifest to the folder `out`, the manifest last. Returns the manifest's path.

    net: name of the network; weights: its tensors by name, (out, in, ...) each. The descriptor multiplies its features
    by a tensor named `projection`, if there is one.
    licence, trained: texts for the manifest; dim: numbers in a descriptor
    """
    out.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    projected = "projection" in weights
    manifest = CnnManifest(WEIGHTS_FILE, hash_bytes(data), dim, licence, net, projected=projected, trained=trained)
    with atomic_write(out / WEIGHTS_FILE) as file:
        file.write(data)
    with atomic_write(out / MANIFEST_FILE) as file:
        file.write(json.dumps(asdict(manifest), indent=1).encode() + b"\n")
    return out / MANIFEST_FILE


def load_weights(manifest_path: Path, net: str) -> dict[str, Tensor]:
    """Load the weights that `export_network` wrote, without a projection: tensors by name, (out, in, ...) each.

    Raises Unavailable, and Corrupt if the weights are damaged or belong to another network than `net`.
    """
    manifest = CnnManifest.read(manifest_path)
    if manifest.net != net:
        raise Corrupt(f"{manifest_path.name} is of the network {manifest.net!r}, and {net!r} was to start from it")
    weights: dict[str, Tensor] = load(manifest.model(manifest_path).read_bytes())
    return {name: tensor for name, tensor in weights.items() if name != "projection"}
