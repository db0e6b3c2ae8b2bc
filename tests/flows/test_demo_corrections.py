"""The story of `likeness demo corrections`, on few flat vectors; the training between its points is left out."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cli.demo import corrections
from app.cli.demo.gallery import COLLECTION
from app.config import Settings
from tests.rows import GalleryWriter, make_model
from tests.service import Service, run_service

PEOPLE, PHOTOS_PER_PERSON = 10, 4


@pytest.fixture
def story(tmp_path: Path) -> Iterator[corrections.Story]:
    with run_service(Settings(home=tmp_path / "home", poll_seconds=0.05, default_recogniser="lbp")) as service:
        fill_gallery(service)
        yield corrections.prepare(service.client, labels=8)


def fill_gallery(service: Service) -> None:
    """Enrol people on a line, ten apart, and two strangers between them."""
    places = np.repeat(10 * np.arange(PEOPLE), PHOTOS_PER_PERSON) + np.tile(range(PHOTOS_PER_PERSON), PEOPLE)
    places = np.append(places, [5.5, 15.5])
    names = [f"p{number}" for number in np.repeat(range(PEOPLE), PHOTOS_PER_PERSON)] + ["single-1", "single-2"]
    rows = np.stack([places, np.zeros(len(places))], axis=1).astype(np.float32)
    GalleryWriter(service.resources, COLLECTION).make(make_model("m", dim=2)).add({"m": rows}, names)
    service.wait_for_indexes()


def test_pairs_that_are_not_the_same_stay_away_and_confirmed_faces_are_found(story: corrections.Story) -> None:
    assert len(story.different_pairs) == 8
    assert len(story.strangers) == 2
    assert story.nameless
    story.look("before")
    assert len(corrections.label_everything(story)) == 8
    story.look("labelled")
    corrections.withdraw(story)
    story.look("withdrawn")
    corrections.name_again(story)
    before, labelled, withdrawn = story.states
    assert (before.returned, labelled.returned, withdrawn.returned) == (8, 0, 0)
    assert (before.joined, labelled.joined, withdrawn.joined) == (0.0, 1.0, 0.0), (
        "without calibration, labels alone name"
    )
    assert not story.nameless
