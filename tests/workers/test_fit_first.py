"""The first learned model, which is fitted automatically once a collection has enough faces."""

import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Face, Job, ModelRecord, now
from app.errors import Busy
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst, Publish
from app.resources import Resources
from app.storage.model_cache import HOLDOUT_SUFFIX
from ml.evaluation.comparisons.models import Difference, ModelComparison
from ml.evaluation.intervals import Interval
from ml.model import MANIFEST
from tests.gallery import context, enrol
from workers.context import JobContext
from workers.handlers import fit_first
from workers.training.exposure import HELD_OUT_FACES


def begin(resources: Resources) -> JobContext:
    with writing(resources.database) as session:
        job = enqueue(session, FitFirst(collection="c"))
        job.state, job.worker = "running", "test"
    return context(resources, job)


def published(resources: Resources) -> list[dict[str, object]]:
    with reading(resources.database) as session:
        return [dict(j.body) for j in session.scalars(select(Job).where(Job.kind == Publish.kind))]


def kept(resources: Resources) -> list[str]:
    with reading(resources.database) as session:
        return sorted(session.scalars(select(ModelRecord.id)))


def test_a_better_first_model_is_fitted_once_and_published_once(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_first, "why_not_better", lambda report: None)
    enrol(resources, "c", range(20), shots=3)
    result = fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))
    made = resources.models.get(result["model"])
    assert made.embedder.learned["projection"].shape == (15, 9860)
    assert made.calibrations["identity"].slope > 0
    assert list(made.provenance["changes"]) == ["c"]
    assert made.provenance["read_at"] <= now()
    assert result["report"]["current"]["protocol"] == "held-out-0.2"
    assert fit_first.fit_first_model(FitFirst(collection="c"), begin(resources)) == {"model": result["model"]}
    [publish] = published(resources)
    assert (publish["model"], publish["by"]) == (result["model"], "service")
    assert publish["reason"] == "the first 60 faces: measured to be better than lbp-l2"
    assert publish["override"] is False


def test_the_files_of_a_run_that_failed_are_not_kept_for_the_next_one(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has the same name for its model, and may read other faces."""
    monkeypatch.setattr(fit_first, "why_not_better", lambda report: None)
    enrol(resources, "c", range(20), shots=3)
    with monkeypatch.context() as patched:
        patched.setattr(fit_first, "enqueue", raise_busy)
        with pytest.raises(Busy):
            fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))
    [path] = resources.models.folder.glob(f"first-*{HOLDOUT_SUFFIX}")
    erased = read_held_out_faces(resources, path.name)[0]
    with writing(resources.database) as session:
        session.delete(session.get_one(Face, erased))
        session.get_one(Collection, "c").change += 1
    name = fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))["model"]
    with reading(resources.database) as session:
        facts = session.get_one(ModelRecord, name).manifest["facts"]
    assert read_facts(resources, name)["changes"] == facts["changes"]
    assert erased not in read_held_out_faces(resources, path.name)


def test_a_model_of_the_first_faces_notes_the_last_that_it_has_read(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_first, "why_not_better", lambda report: None)
    monkeypatch.setattr(fit_first, "MAX_FACES", 60)
    settings = resources.settings.model_copy(update={"wpca_after_faces": 1})
    enrol(resources, "c", range(25), shots=3)
    name = fit_first.fit_first_model(FitFirst(collection="c"), begin(replace(resources, settings=settings)))["model"]
    with reading(resources.database) as session:
        pks = session.scalars(select(Face.pk).order_by(Face.pk)).all()
    assert resources.models.get(name).provenance["last_read"] == pks[59]


def raise_busy(*args: object) -> None:
    raise Busy("the database is locked")


def read_facts(resources: Resources, model: str) -> dict[str, Any]:
    """Read what the files of a model say of it."""
    facts: dict[str, Any] = json.loads((resources.models.folder / model / MANIFEST).read_bytes())["facts"]
    return facts


def read_held_out_faces(resources: Resources, holdout_model: str) -> list[int]:
    faces: list[int] = read_facts(resources, holdout_model)[HELD_OUT_FACES]
    return faces


def test_a_first_model_that_is_not_significantly_better_is_not_kept(resources: Resources) -> None:
    enrol(resources, "c", range(20), shots=3)
    result = fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))
    assert result["model"] is None
    assert "not measured to be better than lbp-l2" in result["why"]
    assert result["report"]["tasks"]["identity"]["current_model"] == "lbp-l2"
    assert kept(resources) == ["lbp-l2"]
    assert published(resources) == []


def test_without_names_the_first_model_is_neither_measured_nor_published(resources: Resources) -> None:
    enrol(resources, "c", range(20), shots=1, named=False)
    result = fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))
    assert result["model"] is None
    assert result["why"].startswith("it could not be measured")
    assert kept(resources) == ["lbp-l2"]
    assert published(resources) == []


def report_of(gain: float, low: float, first: float, people: int = 100) -> dict[str, Any]:
    difference = {
        "mAP": {"value": gain, "low": low, "high": 2 * gain - low, "p": 0.5},
        "1-call@1": {"value": first, "low": first - 0.04, "high": first + 0.04, "p": 0.5},
    }
    gains = {name: Difference(**report) for name, report in difference.items()}
    share = {name: Interval(0.5, 0.4, 0.6) for name in difference}
    comparison = {"comparison": ModelComparison(share, share, gains, people=people).to_dict()}
    return {"tasks": {"identity": {"difference": difference, "current_model": "lbp-l2", "comparison": comparison}}}


@pytest.mark.parametrize(
    ("gain", "low", "first", "better"),
    [
        (0.05, 0.01, 0.02, True),
        (0.05, 0.01, 0.0, True),
        (0.05, -0.01, 0.02, False),
        (0.05, 0.0, 0.02, False),
        (0.05, 0.01, -0.01, False),
        (-0.05, -0.1, 0.0, False),
    ],
)
def test_a_model_is_better_if_its_gain_is_significant_and_rank_one_does_not_fall(
    gain: float, low: float, first: float, better: bool
) -> None:
    assert (fit_first.why_not_better(report_of(gain, low, first)) is None) == better


def test_a_first_model_that_the_gate_would_refuse_is_not_published() -> None:
    assert "people to measure on" in str(fit_first.why_not_better(report_of(0.05, 0.01, 0.02, people=9)))
    report = report_of(0.05, 0.01, 0.02)
    report["tasks"]["identity"]["comparison"] = None
    assert fit_first.why_not_better(report) is not None


def test_a_report_without_a_comparison_shows_nothing() -> None:
    for report in ({"tasks": {}}, {"tasks": {"identity": {"difference": None}}}):
        assert "could not be measured" in str(fit_first.why_not_better(report))


def test_no_first_model_is_fitted_where_another_model_serves(resources: Resources) -> None:
    enrol(resources, "c", range(4), shots=1)
    assert fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))["model"] is None, "too few faces"
    enrol(resources, "c", range(10, 30), shots=1)
    with writing(resources.database) as session:
        session.add(ModelRecord(id="other", manifest={}))
        session.flush()
        session.get_one(Deployment, ("c", "identity")).champion = "other"
    assert fit_first.fit_first_model(FitFirst(collection="c"), begin(resources))["model"] is None
    assert fit_first.fit_first_model(FitFirst(collection="gone"), begin(resources))["model"] is None
    assert published(resources) == []
