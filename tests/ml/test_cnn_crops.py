"""Photos become crops once, of the people that the folders or a list say."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from ml.cnn_training.crops import list_photos, load_crops, prepare_crops
from ml.errors import Corrupt, Unavailable
from ml.synthetic_faces import draw, person


def photos(folder: Path, people: range, shots: int) -> Path:
    """Drawn people, as person/photo."""
    for who in people:
        (folder / f"p{who}").mkdir(parents=True)
        for shot in range(shots):
            cv2.imwrite(str(folder / f"p{who}" / f"{shot}.png"), draw(person(who), shot, strength=0.5)[..., ::-1])
    return folder


@pytest.fixture(scope="module")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = photos(tmp_path_factory.mktemp("photos"), range(3), 2)
    (folder / "p0" / "broken.png").write_bytes(b"no picture")
    cv2.imwrite(str(folder / "p1" / "nobody.png"), np.full((160, 160, 3), 90, np.uint8))
    (folder / "p2" / "notes.txt").write_text("no photo")
    return folder


def test_photos_become_crops_once_and_what_shows_nobody_is_left_out(photo_folder: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = tmp_path / "kept" / "crops.npy"
    made = prepare_crops(photo_folder, path, report=lambda *counts: reports.append(counts))
    assert reports == [(n, 8) for n in range(1, 9)]
    assert made.crops.shape == (6, 112, 112, 3)
    assert made.crops.dtype == np.uint8
    assert made.people.tolist() == [0, 0, 1, 1, 2, 2]
    reports.clear()
    again = prepare_crops(photo_folder, path, report=lambda *counts: reports.append(counts))
    assert reports == []
    assert np.array_equal(again.crops, made.crops)
    assert sorted(p.name for p in path.parent.iterdir()) == ["crops.json", "crops.npy"]


def test_another_list_makes_other_crops(photo_folder: Path, tmp_path: Path) -> None:
    people = tmp_path / "people.txt"
    people.write_text("p0/0.png ann\np2/1.png ben\n\np1/1.png ann\n")
    made = prepare_crops(photo_folder, tmp_path / "crops.npy", people)
    assert made.people.tolist() == [0, 1, 0]
    people.write_text("p2/1.png ben\n")
    fewer = prepare_crops(photo_folder, tmp_path / "crops.npy", people)
    assert np.array_equal(fewer.crops[0], made.crops[1])


def test_lists_and_folders_without_photos_say_what_is_wanted(photo_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="a folder of its own"):
        list_photos(tmp_path)
    (tmp_path / "people.txt").write_text("p0/0.png\n")
    with pytest.raises(Corrupt, match=r"people\.txt: each line is a photo's path and its person"):
        list_photos(photo_folder, tmp_path / "people.txt")
    with pytest.raises(Unavailable, match="no crops"):
        load_crops(tmp_path / "crops.npy")


@pytest.mark.parametrize("note", ["{", "{}", json.dumps({"people": ["one"]})])
def test_crops_without_their_people_are_corrupt(note: str, tmp_path: Path) -> None:
    np.save(tmp_path / "crops.npy", np.zeros((2, 112, 112, 3), np.uint8))
    (tmp_path / "crops.json").write_text(note)
    with pytest.raises(Corrupt, match=r"crops\.npy"):
        load_crops(tmp_path / "crops.npy")
