"""The rates of a model that was trained on a gallery hold while the sources of that gallery are corrected."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from app.db.session import writing
from app.db.tables import Face, StoredCompensation
from app.resources import Resources
from app.serving.calibration import correction_effect
from app.serving.calibration.gallery_calibration import measure_gallery
from ml.calibration import Calibration, ImpostorDistances, draw_impostor_pairs
from ml.compensation import fit_compensation
from ml.identification.open_set import OpenSetCalibration, PersonThreshold
from ml.model import Model
from ml.types import Rows
from tests.rows import GalleryWriter, make_model, people

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PEOPLE, PHOTOS, SOURCES, DIM = 300, 3, 6, 16
MODEL = make_model("m-sources", dim=DIM)


@pytest.fixture
def rows(resources: Resources) -> Rows:
    """A gallery of six sources, which lie apart: a search finds people of its own source alone, until all are moved."""
    rows, names = people(PEOPLE, PHOTOS, DIM, spread=0.3)
    sources = np.repeat(np.arange(PEOPLE) % SOURCES, PHOTOS)
    rows += np.random.default_rng(1).normal(0.0, 1.0, (SOURCES, DIM))[sources].astype(np.float32)
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    with writing(resources.database) as session:
        for pk, source in zip(gallery.pks, sources, strict=True):
            session.execute(update(Face).where(Face.pk == pk).values(source=f"gate-{source}"))
    return rows


def correct(resources: Resources, rows: Rows) -> None:
    sources = np.array([f"gate-{who % SOURCES}" for who in range(PEOPLE) for _ in range(PHOTOS)])
    data = fit_compensation(rows, sources).to_bytes()
    name = {"collection_id": "staff", "task": "identity", "model_id": MODEL.id}
    with writing(resources.database) as session:
        session.add(StoredCompensation(**name, version=1, data=data))


def measure(resources: Resources, model: Model = MODEL) -> tuple[OpenSetCalibration, Calibration]:
    measured = measure_gallery(resources, "staff", "identity", model)
    return (
        OpenSetCalibration.from_dict(measured["open_set"]["calibration"]),
        Calibration.from_dict(measured["calibration"]),
    )


def train(resources: Resources, rows: Rows) -> Model:
    """A model that was trained here, whose held-out people score as all do in the uncorrected gallery."""
    strangers, calibration = measure(resources)
    held_out = replace(strangers, strangers=tuple(replace(s, source="held-out") for s in strangers.strangers))
    pairs = draw_impostor_pairs(np.repeat(np.arange(PEOPLE), PHOTOS), 50_000, 1)
    impostors = ImpostorDistances.of(MODEL.metric.pair_distances(rows, pairs).astype(np.float64), pairs // PHOTOS)
    provenance: dict[str, Any] = {
        "training": "t",
        "collection": "staff",
        "changes": {"staff": 10},
        "by_held_out": ["identity"],
        "open_set": {"identity": held_out.to_dict()},
    }
    calibrations = {"identity": replace(calibration, impostors=impostors)}
    return replace(MODEL, calibrations=calibrations, provenance=provenance)


def find_threshold(calibration: OpenSetCalibration, fpir: float = 0.1) -> PersonThreshold:
    threshold = calibration.threshold(fpir, PEOPLE * PHOTOS)
    assert threshold is not None
    assert threshold.enough
    return threshold


def test_the_distances_of_people_held_out_are_carried_over_to_the_corrected_gallery(
    resources: Resources, rows: Rows
) -> None:
    model = train(resources, rows)
    before, _ = measure(resources, model)
    assert before.strangers[0].source == "held-out"
    correct(resources, rows)
    strangers, pairs = measure(resources)  # as nobody had learned from them
    trained, trained_pairs = measure(resources, model)
    threshold = find_threshold(trained)
    assert threshold.source == "held-out"
    share = strangers.strangers[0].share_within(threshold.person_distance)
    assert 0.06 <= share <= 0.12
    assert strangers.strangers[0].share_within(find_threshold(before).person_distance) > 0.15, "it must be able to fail"
    for fmr in (0.001, 0.01):
        passed = float(pairs.impostors.fmr(np.array([trained_pairs.impostors.threshold(fmr).distance]))[0])
        assert 0.5 * fmr <= passed <= 1.3 * fmr


def test_rates_are_stated_without_evidence_where_the_effect_of_a_correction_is_not_known(
    resources: Resources, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = train(resources, rows)
    correct(resources, rows)
    monkeypatch.setattr(correction_effect, "MAX_SEARCHES", 10)
    monkeypatch.setattr(correction_effect, "MAX_PAIRS", 10)
    trained, pairs = measure(resources, model)
    assert trained.strangers == ()
    assert not pairs.impostors.threshold(0.01).enough
