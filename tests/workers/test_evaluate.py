"""Evaluations, called as a worker calls them, on drawn faces."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from app.db.session import reading, writing
from app.db.tables import Evaluation, Face, Label, Task
from app.engine.generations import FIRST
from app.errors import Invalid
from app.evaluations.schemas import EvaluationIn
from app.queue.messages import Evaluate
from app.queue.queue import enqueue
from app.resources import Resources
from ml.indexes import build
from ml.types import Rows
from tests.gallery import context, enrol
from tests.rows import generation
from workers import reembedding
from workers.handlers import evaluate

PEOPLE, SHOTS = 12, 5
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def stocked(resources: Resources, **options: Any) -> list[Face]:
    """The faces, named as an import would name them."""
    faces = enrol(resources, "c", range(PEOPLE), shots=SHOTS, **options)
    with writing(resources.database) as session:
        for i, face in enumerate(faces):
            name = f"drawn/Person_{i // SHOTS}/{i % SHOTS}.png"
            session.execute(update(Face).where(Face.pk == face.pk).values(external_image_id=name))
    return faces


def run(resources: Resources, times: int = 1, **asked: Any) -> dict[str, Any]:
    told = EvaluationIn(collection="c", **asked).model_dump(mode="json")
    with writing(resources.database) as session:
        row = Evaluation(request=told)
        session.add(row)
        session.flush()
        message = Evaluate(evaluation=row.id)
        job = enqueue(session, message)
        job.state, job.worker = "running", "test"
    for _ in range(times):
        result = evaluate.run(message, context(resources, job))
    with reading(resources.database) as session:
        assert session.get_one(Evaluation, message.evaluation).report == result["report"]
    return dict(result["report"])


def precision(rows: Rows, query: int, gallery: list[int]) -> float:
    """Average precision, by the book: everybody has SHOTS faces one after another."""
    order = sorted(gallery, key=lambda g: (float(((rows[g] - rows[query]) ** 2).sum()), g))
    hits = [g // SHOTS == query // SHOTS for g in order]
    return float(np.mean([sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit]))


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_is_ranked_over_the_whole_gallery(resources: Resources, times: int) -> None:
    faces = stocked(resources)
    report = run(resources, times, draws=2, model=FIRST)
    assert [d["name"] for d in report["draws"]] == ["retrieval-0", "retrieval-1"]
    assert {(d["queries"], d["gallery"], d["missing"]) for d in report["draws"]} == {(12, 48, 0)}
    assert set(report["mean"]) >= {
        "map",
        "1-call@1",
        "1-call@2",
        "1-call@5",
        "1-call@10",
        "1-call@20",
        "eer",
        "rank_seconds",
    }
    assert report["mean"]["map"] == pytest.approx(np.mean([d["map"] for d in report["draws"]]))
    assert report["sd"]["map"] == pytest.approx(np.std([d["map"] for d in report["draws"]], ddof=1))
    pooled = report["pooled"]["mean_average_precision"]
    assert pooled["low"] <= report["mean"]["map"] <= pooled["high"]
    assert (report["faces"], report["model"]) == (len(faces), FIRST)


@on_sqlite
def test_the_figures_are_those_of_the_book_and_of_a_search_of_every_cell(resources: Resources) -> None:
    faces = stocked(resources)
    model = generation("m1")
    with writing(resources.database) as session:
        resources.generations.keep(session, model)
        job = enqueue(session, Evaluate(evaluation="none"))
    rows = reembedding.embedded(context(resources, job), model, ["identity"], faces)["identity"]
    queries = [i * SHOTS + i % SHOTS for i in range(PEOPLE)]
    gallery = [i for i in range(len(faces)) if i not in queries]
    text = "\n".join(f"Person_{q // SHOTS}/{q % SHOTS}.png" for q in [*queries, 500]) + "\n"
    report = run(resources, files=[{"name": "queries-0.txt", "text": text}], model="m1")
    assert report["mean"]["map"] == pytest.approx(np.mean([precision(rows, q, gallery) for q in queries]), abs=1e-6)
    assert report["draws"][0]["missing_queries"] == ["Person_100/0.png"]
    index = build(np.array(gallery), rows[gallery], p=4)
    first = index.search(rows[queries], 1, m=4).ids[:, 0]
    assert report["mean"]["1-call@1"] == pytest.approx(np.mean(first // SHOTS == np.array(queries) // SHOTS))
    assert report["curve"][-1]["recall"]["value"] == 1.0


@on_sqlite
def test_what_learns_nothing_is_measured_like_the_model_that_learned_nothing(resources: Resources) -> None:
    stocked(resources)
    built_in = run(resources, draws=2, model=FIRST)
    trained = run(resources, draws=2, training={"method": "l2", "descriptor": "lbp"})
    timed = {"fit_seconds", "embed_seconds", "rank_seconds"}
    assert {k: v for k, v in trained["mean"].items() if k not in timed} == pytest.approx(
        {k: v for k, v in built_in["mean"].items() if k not in timed}
    )
    assert trained["pooled"]["ncall"] == built_in["pooled"]["ncall"]


@on_sqlite
def test_a_model_is_made_for_each_draw_from_its_training_side(resources: Resources) -> None:
    stocked(resources)
    enrol(resources, "c", range(100, 108), shots=1, named=False, role="distractor")
    known = "".join(f"train Person_{i}\n" for i in range(6))
    files = [
        {"name": f"disjoint-{d}.txt", "text": known + "".join(f"query Person_{i}/{d}.png\n" for i in range(6, 12))}
        for d in range(2)
    ]
    learned = {"method": "wpca", "descriptor": "lbp", "dim": 8}
    report = run(resources, protocol="disjoint", files=files, training=learned)
    assert {(d["queries"], d["gallery"]) for d in report["draws"]} == {(6, 24)}
    assert [p["distractors"] for p in report["distractor_curve"]] == [0, 2, 4, 6, 8]
    assert report["mean"]["fit_seconds"] > 0
    seen = [d["name"] for d in run(resources, protocol="holdout", draws=2, training=learned)["draws"]]
    assert seen == ["held-out-0.2-0", "held-out-0.2-1"]


@on_sqlite
def test_another_likeness_than_identity_is_told_by_metadata(resources: Resources) -> None:
    stocked(resources, metadata={who: {"age": 20 + 10 * (who % 3)} for who in range(PEOPLE)})
    report = run(resources, model=FIRST, by="metadata.age", tolerance=5)
    assert report["pooled"]["relevant"] == 12 * 16  # of 48 in the gallery a third has the query's age


@on_sqlite
def test_labels_judge_a_model(resources: Resources) -> None:
    faces = stocked(resources)
    with writing(resources.database) as session:
        session.merge(Task(name="identity"))
        session.flush()
        for i in range(0, len(faces), SHOTS):
            for a, b, same in ((i, i + 1, True), (i, (i + SHOTS) % len(faces), False)):
                ends = sorted((faces[a].pk, faces[b].pk))
                session.add(Label(task="identity", face_a=ends[0], face_b=ends[1], same=same, by="ann"))
    report = run(resources, protocol="labels", model=FIRST)
    assert (report["pairs"], report["same"]) == (24, 12)
    assert 0.5 < report["auc"]["low"] <= report["auc"]["value"] <= report["auc"]["high"] <= 1
    assert report["accuracy"]["value"] >= 0.5


@on_sqlite
def test_what_cannot_be_measured_says_why(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    for asked in ({"model": FIRST}, {"files": [{"name": "q.txt", "text": "Nobody/1.jpg\n"}], "model": FIRST}):
        with pytest.raises(Invalid) as refused:
            run(resources, **asked)
        assert refused.value.code == "NothingToEvaluate"
    with pytest.raises(Invalid, match="labelled") as refused:
        run(resources, protocol="labels", model=FIRST)
    assert refused.value.code == "TooFewLabels"
    with pytest.raises(Invalid, match="dim"):
        run(resources, protocol="holdout", training={"method": "wpca", "descriptor": "lbp", "options": {"dims": 3}})
