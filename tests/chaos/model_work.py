"""Work with models: trainings, publications, evaluations, atlases and the discovery of people."""

from typing import Any

from tests.chaos.workload import COLLECTION, ON_TRAINING, Work, Workload, read_job_path

BASE = f"/v1/collections/{COLLECTION}"
DEPLOYMENT = f"{BASE}/deployments/identity"


def start_training(workload: Workload, method: str = "") -> Work:
    """Train a model. A method that is not named is drawn."""
    method = method or workload.rng.choice(["wpca", "ldml"])
    options = {"steps": 150} if method == "ldml" else {}
    body = {"collection": COLLECTION, "method": method, "descriptor": "lbp", "dim": 8, "options": options}
    answer = workload.send("training.start", "POST", "/v1/trainings", json=body)

    def check(job: dict[str, Any]) -> None:
        assert job["state"] == "succeeded", job
        workload.models += [job["result"]["model"]] if method == "wpca" else []
        training = job["result"]["training"]
        assert workload.count("select count(*) from models where training_id = ?", training) == 1, "one model each"

    return Work(check, read_job_path(answer), ON_TRAINING)


def start_publication(workload: Workload) -> Work:
    """Publish a model other than the champion."""
    [(champion,)] = workload.service.query("select champion from deployments where collection_id = ?", COLLECTION)
    model = workload.rng.choice([m for m in (*workload.models, "lbp-l2") if m != champion])
    body = {"model": model, "override": True, "reason": "chaos"}
    answer = workload.send("model.publish", "POST", f"{DEPLOYMENT}:publish", json=body)

    def check(job: dict[str, Any]) -> None:
        assert job["state"] == "succeeded", job
        assert workload.service.client.get(DEPLOYMENT).json()["champion"] == model

    return Work(check, read_job_path(answer))


def start_evaluation(workload: Workload) -> Work:
    """Measure the champion on random draws of everybody; too few people are held out to measure on these alone."""
    before = workload.count("select count(*) from evaluations")
    body = {"collection": COLLECTION, "seed": workload.rng.randrange(1000)}
    answer = workload.send("evaluation.start", "POST", "/v1/evaluations", json=body)
    path = f"/v1/evaluations/{answer.json()['evaluation']}"

    def check(job: dict[str, Any]) -> None:
        assert job["state"] == "succeeded", job
        assert 0 < job["result"]["report"]["mean"]["map"] <= 1
        assert workload.service.client.get(path).json()["report"] == job["result"]["report"]
        assert workload.count("select count(*) from evaluations") == before + 1

    return Work(check, read_job_path(answer), ON_TRAINING)


def start_atlas(workload: Workload) -> Work:
    """Draw the map of all faces anew."""
    body = {"method": "pca", "seed": workload.rng.randrange(1000)}
    answer = workload.send("atlas.draw", "POST", f"{DEPLOYMENT}/atlas:draw", json=body)

    def check(job: dict[str, Any]) -> None:
        assert job["state"] == "succeeded", job
        assert job["result"]["faces"] == workload.count_faces()
        on_map = "select count(*) from face_coordinates where atlas_pk = (select max(pk) from atlases)"
        assert workload.count(on_map) == workload.count_faces()
        assert workload.count("select count(*) from atlases") == 1, "an unfinished map is left"

    return Work(check, read_job_path(answer), ON_TRAINING)


def start_discovery(workload: Workload) -> Work:
    """Look for people among the faces without a name. It is refused until the champion is calibrated."""
    answer = workload.send("cluster.discover", "POST", f"{BASE}/clusters:discover")

    def check(job: dict[str, Any]) -> None:
        if job["state"] == "failed":
            assert job["problem"]["code"] == "NotCalibrated", job
            return
        assert job["state"] == "succeeded", job
        nameless = "select count(*) from faces where subject_pk is null and collection_id = ?"
        assert job["result"]["faces"] == workload.count(nameless, COLLECTION)
        assert job["result"]["clusters"] == workload.count("select count(*) from face_clusters")
        empty = "select count(*) from face_clusters where pk not in (select cluster_pk from clustered_faces)"
        assert workload.count(empty) == 0

    return Work(check, read_job_path(answer), ON_TRAINING)
