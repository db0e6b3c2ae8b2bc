"""Galleries with too little evidence: measuring them never fails, and the answer states what is unknown."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from app.resources import Resources
from app.serving.calibration import gallery_calibration
from app.serving.scores import Scores
from ml.calibration import Calibration
from ml.identification.open_set import OpenSetCalibration
from ml.model import Model
from tests.rows import GalleryWriter, make_model, people

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
REFERENCE = Calibration.fit(0.6 * np.random.default_rng(0).chisquare(8, 900) / 8, np.linspace(4, 40, 50_000))


def measure(
    resources: Resources, faces: Sequence[tuple[str | None, str]], calibrated: bool = False
) -> tuple[dict[str, Any], Scores]:
    """Measure a gallery of (subject, role) faces; return the measurements and the scores made of them."""
    model = make_model("m-odd")
    if calibrated:
        model = Model(model.id, model.recipe, model.embedder_name, model.embedder, {"identity": REFERENCE})
    gallery = GalleryWriter(resources).make(model)
    rows = people(len(faces), 1)[0]
    for role in ("gallery", "distractor"):
        chosen = [i for i, (_, own) in enumerate(faces) if own == role]
        if chosen:
            gallery.add({model.id: rows[chosen]}, [faces[i][0] for i in chosen], role=role)
    measured = gallery_calibration.measure_gallery(resources, "staff", "identity", model)
    return measured, Scores.of(measured, model, "identity")


ODD = {
    "nobody": [],
    "one face": [("ann", "gallery")],
    "one person": [("ann", "gallery")] * 12,
    "one face each": [(f"p{i}", "gallery") for i in range(40)],
    "nobody with a name": [(None, "gallery")] * 30,
    "distractors alone": [(None, "distractor")] * 40,
    "one person among distractors": [("ann", "gallery")] * 3 + [(None, "distractor")] * 40,
}


@on_sqlite
@pytest.mark.parametrize("faces", ODD.values(), ids=ODD.keys())
def test_a_gallery_without_evidence_gets_no_thresholds(
    resources: Resources, faces: list[tuple[str | None, str]]
) -> None:
    measured, scores = measure(resources, faces)
    assert measured["faces"] == len(faces)
    threshold = scores.person_threshold(0.01, max(1, len(faces)))
    if threshold is None:
        assert scores.calibration is None
        assert scores.similarity(np.array([0.1])) is None
    else:
        assert (threshold.enough, threshold.low, threshold.source) == (False, None, "pairs")
        assert threshold.more_people > 0


@on_sqlite
@pytest.mark.parametrize("faces", ODD.values(), ids=ODD.keys())
def test_a_gallery_without_evidence_uses_the_calibration_of_its_model(
    resources: Resources, faces: list[tuple[str | None, str]]
) -> None:
    _, scores = measure(resources, faces, calibrated=True)
    threshold = scores.person_threshold(0.01, max(1, len(faces)))
    assert threshold is not None
    assert (threshold.enough, threshold.source) == (False, "pairs")
    stricter = scores.person_threshold(0.001, max(1, len(faces)))
    larger = scores.person_threshold(0.01, 1000 + len(faces))
    assert stricter is not None
    assert larger is not None
    assert max(stricter.person_distance, larger.person_distance) < threshold.person_distance
    assert threshold.person_distance <= threshold.possible_distance


@on_sqlite
def test_a_gallery_of_one_face_per_person_measures_strangers_only(resources: Resources) -> None:
    measured, scores = measure(resources, [(f"p{i}", "gallery") for i in range(400)])
    [strangers] = OpenSetCalibration.from_dict(measured["open_set"]["calibration"]).strangers
    assert (strangers.source, strangers.people) == ("leave-one-out", 400)
    threshold = scores.person_threshold(0.05, 400)
    assert threshold is not None
    assert threshold.enough
    assert {rate["named_rightly"] for rate in measured["open_set"]["rates"]} == {None}


@on_sqlite
def test_faces_without_a_name_are_counted_when_it_is_decided_how_near_they_match(resources: Resources) -> None:
    named: list[tuple[str | None, str]] = [(f"p{i % 200}", "gallery") for i in range(400)]
    _, few = measure(resources, [*named, *[(None, "gallery")] * 10])
    threshold = few.person_threshold(0.05, 410)
    assert threshold is not None
    assert threshold.enough
    thousand_more = few.person_threshold(0.05, 1410)
    assert thousand_more is not None
    assert thousand_more.nameless_distance < threshold.nameless_distance, "who came since may have no name"
    fewer = few.person_threshold(0.05, 210)
    assert fewer is not None
    assert fewer.nameless_distance == threshold.nameless_distance, "who went since may have had one"
