"""When the gate measures, when it takes a report or an excuse instead, and what it says. Nothing is measured here."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import delete, select

from app.db.session import writing
from app.db.tables import Collection, Deployment, Face, Job, ModelRecord
from app.errors import Busy, Conflict, NotFound
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst, ImportArchive, Publish
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from ml.errors import Unavailable
from ml.evaluation.comparisons.models import Difference, ModelComparison
from ml.evaluation.intervals import Interval
from tests.workers.test_erase import context
from workers.context import JobContext
from workers.publishing import gate
from workers.publishing.gate import describe_missing_evidence, judge_publication, make_not_measured
from workers.publishing.model_comparison import ModelMeasurement

CREATED_AT = 1_000.0
EVIDENCE = {
    "collection": "c", "people": 1200, "unseen_people": 3, "needed_people": 10, "seen_people": {"old": 0, "new": 1197},
    "labelled_pairs": {"same": 1000, "different": 2}, "needed_pairs_of_a_kind": None,
}  # fmt: skip


def compare(value: float, half: float = 0.001, people: int = 500, **more: Any) -> ModelComparison:
    """A comparison whose mAP differs by so much."""
    difference = {"mAP": Difference(value, value - half, value + half, 0.01)}
    return ModelComparison(
        {"mAP": Interval(0.5, 0.4, 0.6)}, {"mAP": Interval(0.5 + value, 0.4, 0.6)}, difference, people=people, **more
    )


BETTER, WORSE, UNCLEAR = compare(0.1), compare(-0.2), compare(0.0, half=0.2)
WORSE_SENTENCE = "mAP 30.0%, now 50.0%: 20.0 points worse (95 % interval of the difference -20.1 to -19.9, p 0.01)"


class Measuring:
    """Stands in for `measure_models`. outcomes: task -> what is measured, or the error that is raised

    calls: (collection, task, models) of each measurement
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []

    def __call__(self, given: JobContext, collection: str, task: str, models: Any) -> ModelMeasurement:
        assert isinstance(given, JobContext)
        self.calls.append((collection, task, tuple(models)))
        outcome = self.outcomes[task]
        if isinstance(outcome, Exception):
            raise outcome
        return ModelMeasurement(outcome, EVIDENCE, (*models[:-1], "new-holdout"))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    stand_in = Measuring()
    monkeypatch.setattr(gate, "measure_models", stand_in)
    return stand_in


@pytest.fixture
def resources(lasting_sqlite: Resources) -> Iterator[Resources]:
    """A collection with 100 gallery faces, served by the model `old`. The candidate is `new`."""
    with writing(lasting_sqlite.database) as session:
        session.add(Collection(id="c", change=0, created_at=CREATED_AT))
        session.add_all(ModelRecord(id=name, manifest={}, created_at=CREATED_AT + 5) for name in ("old", "new"))
        session.flush()
        session.add(Deployment(collection_id="c", task="identity", champion="old"))
        session.add_all(make_face(n) for n in range(100))
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        for table in (Job, Face, Deployment, Collection):
            session.execute(delete(table))
        session.execute(delete(ModelRecord).where(ModelRecord.id != LBP_MODEL))


def make_face(number: int, role: str = "gallery", collection: str = "c") -> Face:
    blank: dict[str, Any] = {"bounding_box": {}, "landmarks": [], "quality": {}, "change": 0}
    return Face(collection_id=collection, image_id=f"{role}-{number}", role=role, **blank)


def keep_faces(resources: Resources, count: int) -> None:
    with writing(resources.database) as session:
        for face in session.scalars(select(Face).where(Face.role == "gallery")).all()[count:]:
            session.delete(face)


def judge(
    resources: Resources, champions: Mapping[str, str | None] = {"identity": "old"}, **values: Any
) -> dict[str, Any]:
    message = Publish(collection="c", tasks=tuple(champions), model="new", **values)
    return judge_publication(context(resources), message, champions)


def refuse(
    resources: Resources, champions: Mapping[str, str | None] = {"identity": "old"}, **values: Any
) -> tuple[str | None, str, dict[str, Any]]:
    """Return code, detail and extra fields of a refusal."""
    with pytest.raises(Conflict) as refused:
        judge(resources, champions, **values)
    return refused.value.code, refused.value.detail, refused.value.extra


def test_a_candidate_that_is_measured_and_not_worse_passes(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": BETTER}
    verdict = judge(resources)
    assert measuring.calls == [("c", "identity", ("old", "new"))]
    measured = verdict["measured"].pop("identity")
    assert verdict == {"passed": True, "reasons": [], "compared_with": {"identity": "old"}, "measured": {}}
    assert (measured["by"], measured["measured_as"]) == ("this publication", ["old", "new-holdout"])
    assert measured["measured_on"] == EVIDENCE
    assert measured["difference"]["mAP"]["value"] == 0.1


def test_a_candidate_without_a_champion_is_measured_alone(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": ModelComparison({}, {}, {}, people=50)}
    assert judge(resources, {"identity": None})["compared_with"] == {"identity": None}
    assert measuring.calls == [("c", "identity", ("new",))]


def test_a_worse_candidate_is_refused_with_its_figures(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": WORSE}
    code, detail, extra = refuse(resources)
    assert (code, detail) == ("GateRefused", f"the gate keeps new from being published: {WORSE_SENTENCE}")
    assert (extra["reasons"], extra["compared_with"]) == ([WORSE_SENTENCE], {"identity": "old"})
    assert extra["measured"]["identity"]["people"] == 500


def test_what_is_unclear_is_refused_as_not_measured(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": UNCLEAR}
    code, detail, extra = refuse(resources)
    [sentence] = extra["reasons"]
    assert (code, detail) == ("NotMeasured", f"nothing shows that new does no harm here: {sentence}")
    assert sentence.startswith("mAP: the difference is 0.0 points")
    assert extra["compared_with"] == {"identity": "old"}
    assert list(extra["measured"]) == ["identity"]


def test_an_override_publishes_with_the_verdict_on_record(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": WORSE}
    verdict = judge(resources, override=True, reason="known")
    assert (verdict["passed"], verdict["reasons"]) == (False, [WORSE_SENTENCE])


def test_each_task_is_judged_and_named_where_there_are_several(resources: Resources, measuring: Measuring) -> None:
    champions = {"identity": "old", "age": "old", "pose": "new", "smile": "old"}
    measuring.outcomes = {"identity": WORSE, "age": UNCLEAR, "smile": WORSE}
    code, detail, extra = refuse(resources, champions)
    assert [call[1] for call in measuring.calls] == ["identity", "age", "smile"], "the champion itself is not measured"
    shown = f"identity: {WORSE_SENTENCE}; smile: {WORSE_SENTENCE}"
    assert (code, detail) == ("GateRefused", f"the gate keeps new from being published: {shown}")
    assert extra["reasons"][:2] == [f"identity: {WORSE_SENTENCE}", f"smile: {WORSE_SENTENCE}"]
    assert extra["reasons"][2].startswith("age: mAP: the difference")
    assert extra["compared_with"] == {"identity": "old", "age": "old", "smile": "old"}
    measuring.outcomes = dict.fromkeys(champions, UNCLEAR)
    code, detail, extra = refuse(resources, champions)
    assert (code, len(extra["reasons"])) == ("NotMeasured", 3)
    assert detail == f"nothing shows that new does no harm here: {'; '.join(extra['reasons'])}"


def test_of_two_tasks_each_is_named(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": WORSE, "age": BETTER}
    assert refuse(resources, {"identity": "old", "age": "old"})[2]["reasons"] == [f"identity: {WORSE_SENTENCE}"]


def test_a_challenger_and_the_champion_itself_pass_unmeasured(resources: Resources, measuring: Measuring) -> None:
    passed = {"passed": True, "reasons": [], "compared_with": {}, "measured": {}}
    assert judge(resources, pointer="challenger") == passed
    assert judge(resources, {"identity": "new"}) == passed
    assert measuring.calls == []


def test_a_figure_that_is_not_finite_is_stored_as_null(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": compare(float("nan"))}
    extra = refuse(resources)[2]
    assert extra["measured"]["identity"]["difference"]["mAP"]["value"] is None


@pytest.mark.parametrize(("gallery", "is_excused"), [(0, True), (9, True), (10, False)])
def test_a_collection_with_too_few_gallery_faces_is_not_measured(
    resources: Resources, measuring: Measuring, gallery: int, is_excused: bool
) -> None:
    keep_faces(resources, gallery)
    with writing(resources.database) as session:
        session.add(Collection(id="other", change=0))
        session.flush()
        session.add_all(make_face(n, "distractor") for n in range(20))
        session.add_all(make_face(n, collection="other") for n in range(20))
    measuring.outcomes = {"identity": BETTER}
    verdict = judge(resources)
    assert verdict["passed"]
    assert (measuring.calls == []) == is_excused
    if is_excused:
        excuse = f"the collection has {gallery} faces, too few to measure anything or to serve anybody"
        assert verdict["measured"] == {"identity": {"unmeasured": excuse}}
        assert verdict["compared_with"] == {}


@pytest.mark.parametrize(
    ("message", "state", "is_running"),
    [
        (ImportArchive(collection="c", path="x"), "queued", True),
        (ImportArchive(collection="c", path="x"), "running", True),
        (ImportArchive(collection="c", path="x"), "succeeded", False),
        (ImportArchive(collection="other", path="x"), "queued", False),
        (FitFirst(collection="c"), "queued", False),
    ],
    ids=str,
)
def test_a_small_collection_is_measured_while_an_import_fills_it(
    resources: Resources, measuring: Measuring, message: Any, state: str, is_running: bool
) -> None:
    keep_faces(resources, 5)
    with writing(resources.database) as session:
        enqueue(session, message).state = state
    measuring.outcomes = {"identity": None}
    if not is_running:
        assert judge(resources)["passed"]
        return
    code, detail, extra = refuse(resources)
    assert (code, detail.endswith("; an import is running: try again when it has ended")) == ("NotMeasured", True)
    assert extra["measured"]["identity"]["unmeasured"] in detail


def test_what_cannot_be_measured_says_why(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": None}
    code, detail, extra = refuse(resources)
    why = describe_missing_evidence(EVIDENCE)
    assert (code, detail) == ("NotMeasured", f"nothing shows that new does no harm here: {why}")
    assert extra == {
        "reasons": [why],
        "compared_with": {},
        "measured": {"identity": {"unmeasured": why, "measured_on": EVIDENCE}},
    }


@pytest.mark.parametrize("error", [NotFound("no model 'old'"), Unavailable("no weights")], ids=str)
def test_a_model_that_fails_is_not_measured_and_logged(
    resources: Resources, measuring: Measuring, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    measuring.outcomes = {"identity": error}
    with caplog.at_level(logging.WARNING, "likeness.gate"):
        code, _, extra = refuse(resources)
    assert (code, extra["reasons"]) == ("NotMeasured", [f"it cannot be measured: {error}"])
    assert extra["measured"] == {"identity": {"unmeasured": str(error)}}
    assert caplog.messages == [f"gate.cannot_measure model=new champion=old error={error}"]


def test_a_database_that_is_away_is_not_a_verdict(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": Busy("away")}
    with pytest.raises(Busy):
        judge(resources)


def test_the_previous_champion_comes_back_unmeasured_if_it_was_measured_here(
    resources: Resources, measuring: Measuring
) -> None:
    measuring.outcomes = {"identity": BETTER}
    for previous, measurements, calls in (
        ("new", {"new": {}}, 0), ("new", {"old": {}}, 1), ("old", {"new": {}}, 2), (None, {"new": {}}, 3)
    ):  # fmt: skip
        with writing(resources.database) as session:
            here = session.get_one(Deployment, ("c", "identity"))
            here.previous, here.measurements = previous, measurements
        verdict = judge(resources)
        assert len(measuring.calls) == calls
        if not calls:
            assert verdict["measured"] == {"identity": {"unmeasured": "it served here before"}}


def write_report(
    resources: Resources, comparison: ModelComparison = BETTER, task: str = "identity", **more: Any
) -> None:
    """Have the training of the candidate report a comparison with the champion, in the collection as it is."""
    usual = {"collection": "c", "champion": "old", "faces": 100, "collection_created_at": CREATED_AT}
    reported = usual | {"comparison": comparison.to_dict()} | more
    with writing(resources.database) as session:
        session.get_one(ModelRecord, "new").report = {"tasks": {task: {"comparison": reported}}}


def test_the_report_of_the_training_is_taken_where_it_applies(resources: Resources, measuring: Measuring) -> None:
    write_report(resources)
    verdict = judge(resources)
    assert (verdict["passed"], measuring.calls) == (True, [])
    measured = verdict["measured"]["identity"]
    assert (measured["by"], measured["people"]) == ("the report of its training", 500)
    assert "measured_on" not in measured
    write_report(resources, WORSE)
    assert refuse(resources)[0] == "GateRefused"
    assert measuring.calls == []


def test_a_report_applies_to_exactly_a_tenth_fewer_faces(resources: Resources, measuring: Measuring) -> None:
    write_report(resources)
    measuring.outcomes = {"identity": BETTER}
    for faces, calls in ((90, 0), (89, 1)):
        keep_faces(resources, faces)
        judge(resources)
        assert len(measuring.calls) == calls


def test_an_unclear_report_is_measured_again(resources: Resources, measuring: Measuring) -> None:
    write_report(resources, UNCLEAR)
    measuring.outcomes = {"identity": BETTER}
    assert judge(resources)["measured"]["identity"]["by"] == "this publication"


@pytest.mark.parametrize(
    ("values", "applies"),
    [
        ({}, True),
        ({"collection": "other"}, False),
        ({"champion": "older"}, False),
        ({"faces": 111}, True),
        ({"faces": 112}, False),  # more than a tenth are gone
        ({"faces": 91}, True),
        ({"faces": 90}, False),  # more than a tenth are new
        ({"collection_created_at": CREATED_AT - 1}, False),
        ({"collection_created_at": None}, True),
        ({"task": "age"}, False),
    ],
    ids=str,
)
def test_a_report_applies_to_the_same_collection_champion_and_number_of_faces(
    resources: Resources, measuring: Measuring, values: dict[str, Any], applies: bool
) -> None:
    write_report(resources, **values)
    measuring.outcomes = {"identity": BETTER}
    judge(resources)
    assert (measuring.calls == []) == applies


@pytest.mark.parametrize(
    ("trained_at", "applies"), [(CREATED_AT - 1, False), (CREATED_AT, True), (CREATED_AT + 1, True)]
)
def test_an_old_report_applies_to_a_collection_that_was_there_before_the_model(
    resources: Resources, measuring: Measuring, trained_at: float, applies: bool
) -> None:
    write_report(resources, collection_created_at=None)
    with writing(resources.database) as session:
        session.get_one(ModelRecord, "new").created_at = trained_at
    measuring.outcomes = {"identity": BETTER}
    judge(resources)
    assert (measuring.calls == []) == applies


def test_a_model_or_collection_that_is_gone_has_no_report(resources: Resources, measuring: Measuring) -> None:
    measuring.outcomes = {"identity": NotFound("gone")}
    write_report(resources, faces=0)
    with writing(resources.database) as session:
        for table in (Face, Deployment, Collection):
            session.execute(delete(table))
        enqueue(session, ImportArchive(collection="c", path="x"))
    assert refuse(resources)[0] == "NotMeasured"
    with writing(resources.database) as session:
        session.delete(session.get_one(ModelRecord, "new"))
    assert refuse(resources)[0] == "NotMeasured"
    assert len(measuring.calls) == 2


def test_missing_evidence_is_described_in_figures() -> None:
    assert describe_missing_evidence(EVIDENCE) == (
        "1,200 people of c have what a search needs (two photos or more); new has learned from 1,197 of them, which "
        "leaves 3; 10 are needed. Name or label more people, or publish with `override` and a `reason`; a training "
        "with a `holdout` leaves people to judge by"
    )
    nobody = EVIDENCE | {"seen_people": {"old": 0, "new": 0}, "people": 4, "needed_people": 1000}
    assert describe_missing_evidence(nobody | {"needed_pairs_of_a_kind": 2000}) == (
        "4 people of c have what a search needs (two photos or more); 1,000 are needed, or 2,000 labelled pairs of "
        "each kind: there are 1,000 the same and 2 not. Name or label more people, or publish with `override` and a "
        "`reason`"
    )
    both = EVIDENCE | {"seen_people": {"old": 5, "new": 1192}}
    assert "; old has learned from 5 of them, new has learned from 1,192 of them, which" in describe_missing_evidence(
        both
    )


def test_what_is_not_measured_is_a_problem_with_its_evidence() -> None:
    problem = make_not_measured("cannot compare", EVIDENCE)
    assert (problem.code, problem.extra) == ("NotMeasured", {"evidence": EVIDENCE})
    assert problem.detail == f"cannot compare: {describe_missing_evidence(EVIDENCE)}"
