"""Evaluations as a worker runs them, on synthetic faces."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sqlalchemy import update

from app.db.session import reading, writing
from app.db.tables import Evaluation, Face, Label, Task
from app.errors import Conflict, Invalid
from app.learning.evaluation_request import EvaluationRequest, make_public_report
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from app.storage.stored_faces import read_crops
from ml.clustering.gaussian_mixture import fit_mixture
from ml.descriptors.common import vocabulary_fit
from ml.descriptors.fisher import Fisher
from ml.indexes import build
from ml.types import Rows
from tests.gallery import context, enrol
from tests.rows import make_model
from workers.embedding import embed_batch
from workers.evaluating import embeddings
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


def run(resources: Resources, times: int = 1, **fields: Any) -> dict[str, Any]:
    request = EvaluationRequest(collection="c", **fields).model_dump(mode="json")
    with writing(resources.database) as session:
        row = Evaluation(request=request)
        session.add(row)
        session.flush()
        message = Evaluate(evaluation=row.id)
        job = enqueue(session, message)
        job.state, job.worker = "running", "test"
    for _ in range(times):
        result = evaluate.run_evaluation(message, context(resources, job))
    with reading(resources.database) as session:
        row = session.get_one(Evaluation, message.evaluation)
        assert make_public_report(row.report) == result["report"]
    return dict(result["report"]) | {"id": row.id}


def precision(rows: Rows, query: int, gallery: list[int]) -> float:
    """Compute average precision by its definition. Everybody has SHOTS faces in succession."""
    order = sorted(gallery, key=lambda g: (float(((rows[g] - rows[query]) ** 2).sum()), g))
    hits = [g // SHOTS == query // SHOTS for g in order]
    return float(np.mean([sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit]))


def queries_file(queries: Iterable[int]) -> dict[str, str]:
    """Write a file of queries, by the numbers of the faces."""
    text = "\n".join(f"Person_{q // SHOTS}/{q % SHOTS}.png" for q in queries) + "\n"
    return {"name": "queries-0.txt", "text": text}


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_is_ranked_over_the_whole_gallery(resources: Resources, times: int) -> None:
    faces = stocked(resources)
    report = run(resources, times, draws=2, model=LBP_MODEL)
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
    assert (report["faces"], report["model"]) == (len(faces), LBP_MODEL)
    assert "outcomes" not in report


@on_sqlite
def test_the_figures_equal_their_definition_and_those_of_an_exhaustive_search(resources: Resources) -> None:
    faces = stocked(resources)
    model = make_model("m1")
    with writing(resources.database) as session:
        resources.models.keep(session, model)
        job = enqueue(session, Evaluate(evaluation="none"))
    rows = embed_batch(context(resources, job), model, ["identity"], faces)["identity"]
    queries = [i * SHOTS + i % SHOTS for i in range(PEOPLE)]
    gallery = [i for i in range(len(faces)) if i not in queries]
    report = run(resources, files=[queries_file([*queries, 500])], model="m1")
    assert report["mean"]["map"] == pytest.approx(np.mean([precision(rows, q, gallery) for q in queries]), abs=1e-6)
    assert report["draws"][0]["missing_queries"] == ["Person_100/0.png"]
    index = build(np.array(gallery), rows[gallery], p=4)
    first = index.search(rows[queries], 1, m=4).ids[:, 0]
    assert report["mean"]["1-call@1"] == pytest.approx(np.mean(first // SHOTS == np.array(queries) // SHOTS))
    assert report["curve"][-1]["recall"]["value"] == report["curve"][-1]["fraction"]["value"] == 1.0


@on_sqlite
def test_a_method_that_learns_nothing_is_measured_like_the_built_in_model(resources: Resources) -> None:
    stocked(resources)
    built_in = run(resources, draws=2, model=LBP_MODEL)
    trained = run(resources, draws=2, training={"method": "l2", "descriptor": "lbp"})
    timed = {"fit_seconds", "embed_seconds", "rank_seconds"}
    assert {k: v for k, v in trained["mean"].items() if k not in timed} == pytest.approx(
        {k: v for k, v in built_in["mean"].items() if k not in timed}
    )
    assert trained["pooled"]["ncall"] == built_in["pooled"]["ncall"]


@on_sqlite
def test_a_learned_descriptor_is_fitted_before_it_describes(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_fit, "fit_mixture", lambda z, k, seed: fit_mixture(z, 4, seed))
    faces = stocked(resources)
    fields = {"method": "l2", "descriptor": {"name": "fisher", "options": {"stride": 9}}}
    report = run(resources, files=[queries_file(range(0, len(faces), SHOTS))], training=fields)
    request = json.loads((resources.settings.home / "vocabularies" / "fisher.json").read_text())
    assert request["faces"] == len(faces)
    vocabulary = Fisher(**request["options"], stride=9)
    assert vocabulary.dim == 2 * 4 * 66
    rows = vocabulary.describe(read_crops(resources.blobs, faces, "grey"))
    gallery = [i for i in range(len(faces)) if i % SHOTS]
    distances = [precision(rows, q, gallery) for q in range(0, len(faces), SHOTS)]
    assert report["mean"]["map"] == pytest.approx(np.mean(distances), abs=1e-6)


@on_sqlite
def test_each_draw_fits_a_model_on_its_training_side(resources: Resources) -> None:
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
def test_a_task_other_than_identity_is_read_from_metadata(resources: Resources) -> None:
    stocked(resources, metadata={who: {"age": 20 + 10 * (who % 3)} for who in range(PEOPLE)})
    report = run(resources, model=LBP_MODEL, by="metadata.age", tolerance=5)
    assert report["pooled"]["relevant"] == 12 * 16  # of 48 in the gallery a third has the query's age


@on_sqlite
def test_a_model_can_be_evaluated_on_labels(resources: Resources) -> None:
    faces = stocked(resources)
    with writing(resources.database) as session:
        session.merge(Task(name="identity"))
        session.flush()
        for i in range(0, len(faces), SHOTS):
            for a, b, same in ((i, i + 1, True), (i, (i + SHOTS) % len(faces), False)):
                ends = sorted((faces[a].pk, faces[b].pk))
                session.add(Label(task="identity", face_a=ends[0], face_b=ends[1], same=same, by="ann"))
    report = run(resources, protocol="labels", model=LBP_MODEL)
    assert (report["pairs"], report["same"]) == (24, 12)
    assert report["mean"]["auc"] == report["auc"]["value"]
    assert 0 <= report["auc"]["low"] <= report["auc"]["value"] <= report["auc"]["high"] <= 1
    assert report["auc"]["value"] > 0.5
    assert report["accuracy"]["value"] >= 0.5


def pairs_file(folds: int = 3, people: int = 4, turned: int | None = None) -> dict[str, str]:
    """Each fold of `people` people of its own: two shots of each the same, neighbouring people not; the fold `turned`
    has other photos of strangers."""
    lines = [f"{folds}\t{people}"]
    for fold in range(folds):
        who = [fold * people + i for i in range(people)]
        other = [*who[1:], who[0]]
        same = [(w, 0, w, 1) for w in who]
        differ = [(w, 2, o, 3) for w, o in zip(who, other, strict=True)]
        if fold == turned:
            differ = [(w, 0, o, 1) for w, o in zip(who, other, strict=True)]
        lines += [f"Person_{a}\t{i}\t{j}" for a, i, _, j in same]
        lines += [f"Person_{a}\t{i}\tPerson_{b}\t{j}" for a, i, b, j in differ]
    return {"name": "pairs.txt", "text": "\n".join(lines) + "\n"}


def as_lfw_names_them(resources: Resources) -> list[Face]:
    faces = stocked(resources)
    with writing(resources.database) as session:
        for i, face in enumerate(faces):
            name = f"drawn/Person_{i // SHOTS}/Person_{i // SHOTS}_{i % SHOTS:04d}.jpg"
            session.execute(update(Face).where(Face.pk == face.pk).values(external_image_id=name))
    return faces


@on_sqlite
def test_pairs_are_evaluated_fold_by_fold(resources: Resources) -> None:
    faces, model = as_lfw_names_them(resources), make_model("m1")
    with writing(resources.database) as session:
        resources.models.keep(session, model)
        job = enqueue(session, Evaluate(evaluation="none"))
    rows = embed_batch(context(resources, job), model, ["identity"], faces)["identity"]
    report = run(resources, protocol="verification", files=[pairs_file()], model="m1")
    assert [(d["name"], d["pairs"], d["missing"]) for d in report["draws"]] == [(f"view2:{f}", 8, 0) for f in range(3)]
    assert report["mean"]["accuracy"] == pytest.approx(np.mean([d["accuracy"] for d in report["draws"]]))
    assert report["sd"]["accuracy"] == pytest.approx(report["se"]["accuracy"] * 3**0.5)
    assert report["accuracy"]["low"] <= report["mean"]["accuracy"] <= report["accuracy"]["high"]
    distances = []
    for first in range(0, PEOPLE, 4):
        near = [(SHOTS * w, SHOTS * w + 1) for w in range(first, first + 4)]
        far = [(SHOTS * (first + w) + 2, SHOTS * (first + (w + 1) % 4) + 3) for w in range(4)]
        distances.append([((rows[a] - rows[b]) ** 2).sum() for a, b in near + far])
    truth = np.repeat([1, 0], 4)
    assert report["auc"]["value"] == pytest.approx(
        np.mean([roc_auc_score(truth, [-d for d in one]) for one in distances])
    )
    assert report["dispersion"]["friends"]["value"] == pytest.approx(
        np.mean([np.sqrt(one[:4]) for one in distances]), rel=1e-5
    )


BY_FOLDS = {"protocol": "verification", "training": {"method": "wpca", "descriptor": "lbp", "dim": 4}}


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the training set of every fit from now on."""
    fits: list[Any] = []
    fit_embedder = embeddings.fit_embedder

    def watch(method: str, options: Any, data: Any, progress: Any) -> Any:
        fits.append(data)
        return fit_embedder(method, options, data, progress)

    monkeypatch.setattr(embeddings, "fit_embedder", watch)
    return fits


@on_sqlite
@pytest.mark.parametrize("setting", ["restricted", "unrestricted"])
def test_the_model_and_threshold_of_a_fold_do_not_depend_on_its_own_pairs(
    resources: Resources, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fold 1 poisoned: what its own model is fitted on stays the same to the bit, and so does its threshold."""
    as_lfw_names_them(resources)
    fits, fields = watched(monkeypatch), BY_FOLDS | {"setting": setting}
    runs = [run(resources, files=[pairs_file(turned=turned)], **fields) for turned in (None, 1)]
    clean, poisoned = fits[:3], fits[3:]
    assert [len(data.rows) for data in clean] == ([32] * 3 if setting == "restricted" else [40] * 3)
    assert np.array_equal(clean[1].rows, poisoned[1].rows)
    assert np.array_equal(clean[1].tasks[0].pairs, poisoned[1].tasks[0].pairs)
    thresholds = [report["draws"][1]["threshold"] for report in runs]
    assert thresholds[0] == thresholds[1]
    request = clean[0].tasks[0]
    if setting == "restricted":
        assert np.isnan(request.values).all()
        assert (len(request.pairs), request.same.sum(), len(np.unique(request.people))) == (16, 8, 16)
        assert not np.array_equal(clean[0].tasks[0].pairs, poisoned[0].tasks[0].pairs)
    else:
        assert (np.unique(request.people, return_counts=True)[1] == SHOTS).all()


@on_sqlite
@pytest.mark.parametrize("setting", ["restricted", "unrestricted"])
def test_the_threshold_of_a_fold_comes_from_a_fit_without_either_fold(
    resources: Resources, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_lfw_names_them(resources)
    fits, fields = watched(monkeypatch), BY_FOLDS | {"setting": setting}
    clean, poisoned = (run(resources, files=[pairs_file(4, 3, turned=turned)], **fields) for turned in (None, 1))
    sizes = [len(data.rows) for data in fits[:6]]
    both, one = (24, 36) if setting == "restricted" else (30, 45)
    assert sorted(sizes) == [both] * 2 + [one] * 4
    thresholds = [[d["threshold"] for d in report["draws"]] for report in (clean, poisoned)]
    others_stay = setting == "unrestricted"
    assert [a == b for a, b in zip(*thresholds, strict=True)] == [False, True, others_stay, others_stay]


@on_sqlite
def test_an_evaluation_is_compared_with_an_earlier_one_of_the_same_protocol(resources: Resources) -> None:
    as_lfw_names_them(resources)
    first = run(resources, draws=2, model=LBP_MODEL)
    again = run(resources, draws=2, training={"method": "l2", "descriptor": "lbp"}, against=first["id"])
    request = again["against"]["difference"]
    assert again["against"]["evaluation"] == first["id"]
    assert set(request) == {"map", "1-call@1", "1-call@10"}
    assert {k: request["map"][k] for k in ("value", "low", "high", "p", "groups")} == {
        "value": 0, "low": 0, "high": 0, "p": 1, "groups": 12,
    }  # fmt: skip
    other = run(resources, draws=2, training={"method": "wpca", "descriptor": "lbp", "dim": 1}, against=first["id"])
    worse = other["against"]["difference"]["map"]
    assert worse["value"] == pytest.approx(other["mean"]["map"] - first["mean"]["map"], abs=1e-5)
    assert worse["high"] < 0
    assert worse["p"] < 0.05
    with pytest.raises(Invalid, match="same queries"):
        run(resources, draws=3, model=LBP_MODEL, against=first["id"])


@on_sqlite
def test_folds_are_compared_with_folds(resources: Resources) -> None:
    as_lfw_names_them(resources)
    first = run(resources, protocol="verification", files=[pairs_file()], model=LBP_MODEL)
    again = run(resources, protocol="verification", files=[pairs_file()], model=LBP_MODEL, against=first["id"])
    assert again["against"]["difference"]["accuracy"]["p"] == 1
    with pytest.raises(Invalid, match="same pairs"):
        run(resources, protocol="verification", files=[pairs_file(turned=0)], model=LBP_MODEL, against=first["id"])


@on_sqlite
def test_strangers_of_an_open_set_are_not_enrolled(resources: Resources) -> None:
    stocked(resources)
    report = run(resources, protocol="openset", draws=2, model=LBP_MODEL)
    assert [d["name"] for d in report["draws"]] == ["open-set-0.4-0", "open-set-0.4-1"]
    assert {(d["queries"], d["gallery"]) for d in report["draws"]} == {(3, 12)}
    assert 0 <= report["pooled"]["fnir"]["0.1"]["value"] <= 1


@on_sqlite
def test_an_evaluation_whose_faces_are_removed_as_it_begins_fails_with_the_reason(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces, original = stocked(resources), embeddings.make_plan

    def remove_one(*arguments: Any) -> Any:
        with writing(resources.database) as session:
            session.delete(session.get_one(Face, faces[4].pk))
        return original(*arguments)

    monkeypatch.setattr(embeddings, "make_plan", remove_one)
    training = {"method": "wpca", "descriptor": "lbp", "options": {"dim": 3}}
    with pytest.raises(Conflict, match="removed while the evaluation began"):
        run(resources, protocol="holdout", training=training)


@on_sqlite
def test_an_evaluation_that_cannot_be_measured_fails_with_the_reason(resources: Resources) -> None:
    enrol(resources, "c", range(3), shots=2)
    for fields in ({"model": LBP_MODEL}, {"files": [{"name": "q.txt", "text": "Nobody/1.jpg\n"}], "model": LBP_MODEL}):
        with pytest.raises(Invalid) as refused:
            run(resources, **fields)
        assert refused.value.code == "NothingToEvaluate"
    with pytest.raises(Invalid, match="labelled") as refused:
        run(resources, protocol="labels", model=LBP_MODEL)
    assert refused.value.code == "TooFewLabels"
    with pytest.raises(Invalid, match="dim"):
        run(resources, protocol="holdout", training={"method": "wpca", "descriptor": "lbp", "options": {"dims": 3}})
