"""A trained network is described by as its manifest says, and refused with a reason where the two do not agree."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ml.descriptors.cnn import Cnn
from ml.descriptors.common.networks import NETS, Casia, features, pictures
from ml.errors import Corrupt, Unavailable
from tests.ml.tiny_cnn import project, tiny_cnn

FACES = np.random.default_rng(1).integers(0, 256, (5, 112, 112, 3), dtype=np.uint8)
HALF = 1e-3
"""Rows are kept in half precision; theirs are below 1."""


def by_hand(net: torch.nn.Module) -> np.ndarray:
    """Describe one face at a time, in float64, without changing the order of the channels in memory."""
    net = net.double().train(False).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with torch.no_grad():
        planes = torch.from_numpy(((FACES.astype(np.float64) - 127.5) / 127.5).transpose(0, 3, 1, 2).copy())
        rows = torch.cat([net(plane[None]) for plane in planes])
    return np.asarray(rows / rows.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("net", NETS)
def test_a_face_is_described_by_the_network_that_the_manifest_names(net: str, tmp_path: Path) -> None:
    rows = Cnn(manifest=str(tiny_cnn(tmp_path, net))).describe(FACES)
    torch.manual_seed(0)
    np.testing.assert_allclose(rows, by_hand(NETS[net]()), atol=HALF)


def test_rows_have_norm_one_unless_the_manifest_says_otherwise(tmp_path: Path) -> None:
    unit = Cnn(manifest=str(tiny_cnn(tmp_path))).describe(FACES)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=HALF)
    raw = Cnn(manifest=str(tiny_cnn(tmp_path, unit=False))).describe(FACES)
    norms = np.linalg.norm(raw, axis=1)
    assert abs(norms - 1).max() > 0.05
    np.testing.assert_allclose(raw / norms[:, None], unit, atol=HALF)


def test_a_projection_follows_the_norm(tmp_path: Path) -> None:
    manifest = tiny_cnn(tmp_path)
    unit = Cnn(manifest=str(manifest)).describe(FACES)
    projection = project(manifest, 7)
    rows = Cnn(manifest=str(manifest)).describe(FACES)
    assert rows.shape == (5, 7)
    np.testing.assert_allclose(rows, unit @ projection.numpy(), atol=5 * HALF)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
def test_a_loaded_network_does_not_need_its_file(tmp_path: Path) -> None:
    """Weights that stay mapped kill the process once somebody truncates the file."""
    manifest = tiny_cnn(tmp_path)
    project(manifest, 7)
    network = Cnn(manifest=str(manifest))
    rows = network.describe(FACES)
    weights = manifest.with_suffix(".safetensors")
    assert str(weights) not in Path("/proc/self/maps").read_text()
    weights.write_bytes(b"")
    np.testing.assert_array_equal(network.describe(FACES), rows)


def test_the_casia_network_has_the_maps_of_its_paper() -> None:
    net, seen = Casia().train(False), []
    for layer in net.layers:
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda _, given, made: seen.append((given[0].shape[2], *made.shape[1:])))
    with torch.no_grad():
        net(torch.zeros(1, 3, 112, 112))
    pairs = ((112, 32, 64), (56, 64, 128), (28, 96, 192), (14, 128, 256), (7, 160, 320))
    assert seen == [(side, wide, side, side) for side, *both in pairs for wide in both]


def test_the_casia_network_sees_grey_alone_and_gives_numbers_of_both_signs() -> None:
    torch.manual_seed(3)
    net = Casia().train(False)
    colour = pictures(torch.from_numpy(FACES))
    grey = (colour * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True).expand(-1, 3, -1, -1)
    with torch.no_grad():
        rows = net(colour)
        torch.testing.assert_close(net(grey), rows, atol=1e-5, rtol=1e-4)
    assert (rows < 0).any()
    assert (rows > 0).any()


def test_the_light_network_has_half_a_million_parameters_at_most() -> None:
    assert sum(p.numel() for p in NETS["light"]().parameters()) < 500_000


def test_pictures_run_from_minus_one_to_one_channels_last() -> None:
    ends = np.array([[[0, 255, 0]]], np.uint8)
    made = pictures(torch.from_numpy(ends[None]))
    assert made.flatten().tolist() == [-1, 1, -1]
    assert pictures(torch.from_numpy(FACES)).is_contiguous(memory_format=torch.channels_last)


def test_more_faces_than_a_batch_are_described_in_order() -> None:
    torch.manual_seed(0)
    net = NETS["light"]().train(False)
    torch.testing.assert_close(features(net, FACES, batch=2), features(net, FACES), atol=1e-5, rtol=1e-4)


def test_threads_share_one_network(tmp_path: Path) -> None:
    recogniser = Cnn(manifest=str(tiny_cnn(tmp_path)))
    alone = recogniser.describe(FACES).tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert {rows.tobytes() for rows in pool.map(lambda _: recogniser.describe(FACES), range(8))} == {alone}
    assert Cnn(manifest=recogniser.manifest)._network is recogniser._network


def test_new_weights_under_an_old_name_are_read_anew(tmp_path: Path) -> None:
    before = Cnn(manifest=str(tiny_cnn(tmp_path, seed=0))).describe(FACES)
    after = Cnn(manifest=str(tiny_cnn(tmp_path, seed=1))).describe(FACES)
    assert np.abs(before - after).max() > 0.01


def test_a_manifest_or_weights_that_are_not_there_say_where_they_were_sought(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no CNN manifest at .*nowhere\.json; docs/research/cnn\.md"):
        Cnn(manifest=str(tmp_path / "nowhere.json"))
    path = tiny_cnn(tmp_path)
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(Unavailable, match=r"cnn\.safetensors is not beside"):
        Cnn(manifest=str(path))


def test_altered_weights_are_corrupt(tmp_path: Path) -> None:
    path = tiny_cnn(tmp_path)
    with path.with_suffix(".safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(Corrupt, match="SHA-256"):
        Cnn(manifest=str(path))


def test_a_pinned_manifest_that_changed_is_corrupt(tmp_path: Path) -> None:
    pin = Cnn(manifest=str(tiny_cnn(tmp_path))).fingerprint
    assert Cnn(manifest=str(tmp_path / "cnn.json"), pin=pin).dim == 128
    with pytest.raises(Corrupt, match="not the one"):
        Cnn(manifest=str(tiny_cnn(tmp_path, seed=1)), pin=pin)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"net": "casia"}, "does not hold the weights of the network 'casia'"),
        ({"net": "deep"}, "does not hold the weights of the network 'deep'"),
        ({"projected": True}, "projection"),
        ({"dim": 64}, "but its manifest states 64"),
        ({"dim": 0}, "dim"),
        ({"net": 3}, "texts"),
        ({"unit": "yes"}, "true or false"),
        ({"colour": "rgb"}, "unknown: colour"),
    ],
    ids=str,
)
def test_a_manifest_that_is_not_of_these_weights_says_why(wrong: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=reason):
        Cnn(manifest=str(tiny_cnn(tmp_path, **wrong)))


def test_asking_for_a_gpu_where_there_is_none_says_what_to_do(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable, match="set device to auto or cpu"):
        Cnn(manifest=str(tiny_cnn(tmp_path)), device="cuda")


@pytest.mark.cuda
def test_a_gpu_gives_the_numbers_of_the_processor(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    manifest = str(tiny_cnn(tmp_path))
    there, here = Cnn(manifest=manifest, device="cuda"), Cnn(manifest=manifest, device="cpu")
    np.testing.assert_allclose(there.describe(FACES), here.describe(FACES), atol=2e-2)


def test_the_manifest_says_what_the_weights_may_be_used_for(tmp_path: Path) -> None:
    says = json.loads(tiny_cnn(tmp_path).read_text())
    assert (says["licence"], says["trained"], says["net"], says["dim"]) == ("CC0", "on nothing", "light", 128)
    torch.manual_seed(0)
    net = NETS["light"]().train(False)
    with torch.no_grad():
        direct = F.normalize(net(pictures(torch.from_numpy(FACES))))
    np.testing.assert_allclose(Cnn(manifest=str(tmp_path / "cnn.json")).describe(FACES), direct, atol=HALF)
