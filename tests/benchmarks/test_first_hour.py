"""The benchmark of a new user's first hour: what it draws, counts and writes; its searches need a service."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.first_hour_client import SearchOutcome, search
from benchmarks.first_hour_photos import DISTRACTORS, FULL, Photo, PhotoSets, Size, write_tar
from benchmarks.first_hour_table import MISSED, NOT_MEASURED, REACHED, STRETCH, rows, show, within_stated
from benchmarks.first_hour_user import ACTIONS, first_match

SMALL = Size(people=6, queries=4, lfw_strangers=3, distractors=5)
ROOT = Path(__file__).resolve().parents[2]


def write_photos(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Photos whose bytes are their names."""
    people = [(f"Person_{i}", 4 if i < 8 else 2) for i in range(12)]
    write_photos(tmp_path / "lfw-deepfunneled-1.tar", [f"{n}/{n}_{k:04d}.jpg" for n, c in people for k in range(c)])
    write_photos(tmp_path / DISTRACTORS, [f"{i}.jpg" for i in range(9)])
    return tmp_path


def owner(photo: Photo) -> str:
    return photo.data.decode().split("/")[0]


def test_queries_are_other_photos_of_people_enrolled_and_strangers_are_not(data: Path) -> None:
    draw = PhotoSets(data).draw(0, SMALL)
    enrolled = {owner(p): p.person for p in draw.gallery}
    assert len(enrolled) == SMALL.people
    assert len(draw.queries) == SMALL.queries
    assert all(enrolled[owner(q)] == q.person for q in draw.queries)
    assert not {p.data for p in draw.gallery} & {q.data for q in draw.queries}
    assert not {owner(s) for s in draw.lfw_strangers} & enrolled.keys()
    assert (len(draw.lfw_strangers), len(draw.distractors)) == (3, 5)


def test_a_draw_is_decided_by_its_seed_and_stays_the_same_with_everybody(data: Path) -> None:
    photos = PhotoSets(data)
    first, again, everybody = photos.draw(3, SMALL), photos.draw(3, SMALL), photos.draw(3, SMALL, everybody=True)
    assert first == again
    assert first != photos.draw(4, SMALL)
    assert [(q.person, owner(q)) for q in everybody.queries] == [(q.person, owner(q)) for q in first.queries]
    assert len({owner(p) for p in everybody.gallery}) == 12 - SMALL.lfw_strangers


def test_no_name_is_sent(data: Path, tmp_path: Path) -> None:
    draw = PhotoSets(data).draw(0, SMALL)
    assert write_tar(draw.gallery, tmp_path / "out.tar") == len(draw.gallery)
    with tarfile.open(tmp_path / "out.tar") as tar:
        names = tar.getnames()
    assert len(set(names)) == len(draw.gallery)
    assert all(name.startswith("person-0") for name in names)


def answering(status: int, body: dict[str, Any]) -> httpx.Client:
    return httpx.Client(
        base_url="http://test", transport=httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    )


def test_a_search_is_read_by_its_decision_and_its_first_person() -> None:
    matches = [{"subject": None}, {"subject": {"id": "1", "external_id": "person-0001"}}]
    face = {"decision": "possible", "subject": None, "matches": matches}
    outcome = search(answering(200, {"faces": [face]}), Photo("person-0002", b""))
    assert (outcome.person, outcome.first, outcome.decision, outcome.named) == (
        "person-0002",
        "person-0001",
        "possible",
        None,
    )


def test_a_photo_without_a_face_is_counted_and_other_errors_end_the_run() -> None:
    outcome = search(answering(422, {"code": "NoFace"}), Photo("", b""))
    assert outcome.no_face
    assert outcome.decision is None
    with pytest.raises(httpx.HTTPStatusError):
        search(answering(500, {"code": "InternalServerError"}), Photo("", b""))
    assert SearchOutcome("x").no_face is False


def phase(named: float, strangers: float, **more: Any) -> dict[str, Any]:
    rates = dict.fromkeys(
        ("named_wrongly", "possible", "strangers_named_lfw", "strangers_named_distractors", "strangers_possible"), 0.0
    )
    threshold = {"low": 0.005, "high": 0.02}
    return rates | {"faces": 3000, "right_first": 0.975, "named_rightly": named, "strangers_named": strangers,
                    "threshold": threshold, **more}  # fmt: skip


def test_each_goal_is_judged_by_the_mean_over_seeds(tmp_path: Path) -> None:
    results = {
        "seed-0/default": phase(0.90, 0.010), "seed-1/default": phase(0.86, 0.030),
        "seed-0/onnx": phase(0.99, 0.005, commands=[["likeness"]]),
    }  # fmt: skip
    rows_by_name = {row.what: row for row in rows(results)}
    named = rows_by_name["default decision: queries named rightly"]
    assert named.value == pytest.approx(0.88)
    assert named.verdict == REACHED
    assert named.low is not None
    assert named.low < 0.88
    assert rows_by_name["default installation, right person first"].verdict == REACHED
    assert rows_by_name["default decision: strangers named"].verdict == REACHED
    assert rows_by_name["with the ONNX file: queries named rightly"].verdict == STRETCH
    assert rows_by_name["commands from an ONNX file to serving it"].verdict == STRETCH
    assert rows_by_name["LBP alone: strangers named"].verdict == NOT_MEASURED
    assert within_stated(results, "seed/default") == (1, 2)
    show(results, FULL, tmp_path / "out.json", tmp_path / "out.md")
    assert json.loads((tmp_path / "out.json").read_text())["phases"] == results
    assert "| default decision: queries named rightly | 39 % | at least 84 %, 91 % | 88.0" in (
        tmp_path / "out.md").read_text()  # fmt: skip


def test_what_is_worse_than_the_goal_is_missed() -> None:
    rows_by_name = {
        row.what: row for row in rows({"seed-0/default": phase(0.5, 0.021), "seed-0/lbp": phase(0.1, 0.03)})
    }
    assert rows_by_name["default decision: queries named rightly"].verdict == MISSED
    assert rows_by_name["default decision: strangers named"].verdict == MISSED
    assert rows_by_name["LBP alone: strangers named"].verdict == MISSED


def test_the_first_match_of_an_answer_is_found_in_its_text() -> None:
    answer = (
        '{"faces": [{"matches": [{"subject": {"id": "a", "external_id": "p1"}}, {"subject": {"external_id": "p2"}}]}]}'
    )
    assert '"external_id":"p1"' in first_match(answer)
    assert "p2" not in first_match(answer)
    assert first_match("{}") == ""


@pytest.mark.parametrize("action", ACTIONS[1:])
def test_every_action_of_a_new_user_is_in_the_readme(action: str) -> None:
    readme = (ROOT / "README.md").read_text()
    if action.startswith("make"):
        assert "make run" in readme
        return
    method, path = action.split(" -X ")[1].split()[:2]
    assert f"-X {method}" in readme
    assert path.split("{port}")[1] in readme
