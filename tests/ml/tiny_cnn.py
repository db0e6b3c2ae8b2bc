"""A network that learned nothing, written as a training writes one."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ml.cnn_training.export import export_network
from ml.descriptors.common.networks import NETS


def tiny_cnn(folder: Path, net: str = "light", /, seed: int = 0, **says: Any) -> Path:
    """The manifest's path; `says`: more manifest."""
    torch.manual_seed(seed)
    made = NETS[net]()
    path = export_network(net, made.state_dict(), folder, dim=made.dim, licence="CC0", trained="on nothing")
    path.write_text(json.dumps(json.loads(path.read_text()) | says))
    return path


def project(manifest: Path, dim: int) -> torch.Tensor:
    """Write a projection to `dim` numbers beside the weights, name it in the manifest, and return it."""
    weights = manifest.with_suffix(".safetensors")
    held, says = load_file(weights), json.loads(manifest.read_text())
    held["projection"] = torch.randn(NETS[says["net"]].dim, dim, generator=torch.Generator().manual_seed(1))
    save_file(held, weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(says | {"dim": dim, "projected": True, "sha256": digest}))
    return held["projection"]
