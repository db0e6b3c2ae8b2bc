"""People among faces without a name: found by a job, then named, merged and dismissed over HTTP."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, event, select
from sqlalchemy.orm import Session

from app.clusters.service import list_clusters as read_clusters
from app.clusters.service import list_faces
from app.collections.service import delete_collection
from app.db.session import reading, writing
from app.db.tables import ClusteredFace, Deployment, Face, FaceCluster, PeopleSearch, Subject
from app.errors import NotFound
from app.galleries import subjects
from app.publishing import pointers
from tests.databases import remove_test_data
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service
from workers.context import JobContext
from workers.discovery.cluster_store import NewCluster
from workers.discovery.gallery import ClusterGallery
from workers.discovery.suggestions import confirm_suggestions
from workers.handlers.discover_people import LINKS_END, MERGED_END
from workers.progress import ProgressReporter

BASE = "/v1/collections/staff/clusters"
CENTRES = 12
on_sqlite = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def make_gallery(service: Service, *, calibrated: bool = True, dim: int = 8) -> GalleryWriter:
    gallery = GalleryWriter(service.resources).make(make_model("m", dim))
    if calibrated:
        rows, who = people(40, 6, dim)
        distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        same = np.equal.outer(who, who)
        upper = np.triu(np.ones_like(same), 1).astype(bool)
        gallery.calibrate("m", distances[same & upper], distances[~same & upper])
    return gallery


def faces_of(seed: int, photos: int, first: int = 0, last: int = CENTRES) -> np.ndarray:
    """Photos of the people `first` to `last` - 1, in the order of the people. Each seed gives other photos."""
    centres = people(CENTRES, 1, seed=77, spread=0.0)[0][first:last].repeat(photos, axis=0)
    return (centres + 0.2 * np.random.default_rng(seed).standard_normal(centres.shape)).astype(np.float32)


def discover(service: Service, **body: Any) -> dict[str, Any]:
    job = service.wait(service.client.post(f"{BASE}:discover", json=body or None))
    assert job["state"] == "succeeded", job["problem"]
    return dict(job["result"])


def list_clusters(service: Service, **query: Any) -> list[dict[str, Any]]:
    answer = service.client.get(BASE, params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["clusters"])


def faces_in(service: Service, cluster: dict[str, Any]) -> set[str]:
    return set(service.client.get(f"{BASE}/{cluster['id']}", params={"limit": 1000}).json()["faces"])


def test_faces_without_a_name_are_grouped_by_person(service: Service) -> None:
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 8, 0, 5)}, [None] * 40)
    gallery.add({"m": faces_of(1, 1, 5, 9)}, [None] * 4)
    gallery.add({"m": faces_of(2, 3, 0, 5)}, [None] * 15, role="distractor")
    result = discover(service)
    assert result == {"faces": 44, "new_faces": 44, "clusters": 5, "with_suggested_subject": 0}
    clusters = list_clusters(service)
    assert {frozenset(faces_in(service, c)) for c in clusters} == {frozenset(faces[i : i + 8]) for i in range(0, 40, 8)}
    for cluster in clusters:
        assert (cluster["face_count"], cluster["state"], cluster["suggested_subject"]) == (8, "open", None)
        assert cluster["sample_faces"] == [f for f in faces if f in faces_in(service, cluster)][:6]
    assert [c["probability"] for c in clusters] == sorted((c["probability"] for c in clusters), reverse=True)
    page = service.client.get(BASE, params={"limit": 2}).json()
    rest = service.client.get(BASE, params={"next_token": page["next_token"]}).json()["clusters"]
    assert [*page["clusters"], *rest] == clusters


def test_the_progress_moves_while_faces_are_merged(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.progress.REPORT_SECONDS", 0.0)
    written, write = list[int](), ProgressReporter._write

    def note_progress(reporter: ProgressReporter, done: int) -> None:
        written.append(done)
        write(reporter, done)

    monkeypatch.setattr(ProgressReporter, "_write", note_progress)
    make_gallery(service).add({"m": faces_of(0, 8)}, [None] * 8 * CENTRES)
    discover(service)
    assert written == sorted(written)
    assert len({done for done in written if LINKS_END < done < MERGED_END}) > 3


def test_a_cluster_can_be_named(service: Service) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 4, 0, 2)}, [None] * 8)
    discover(service)
    first, second = list_clusters(service)
    faces = faces_in(service, first)
    named = service.client.post(f"{BASE}/{first['id']}:name", json={"subject": "ada"})
    assert (named.status_code, named.json()) == (200, {"subject": "ada", "faces": 4})
    assert [c["id"] for c in list_clusters(service)] == [second["id"]]
    listed = service.client.get("/v1/collections/staff/faces", params={"subject": "ada"}).json()["faces"]
    assert {face["face_id"] for face in listed} == faces
    service.wait_for_indexes()
    query = f"/v1/collections/staff/faces/{min(faces)}/search"
    answer = service.client.post(query, params={"limit": 1}).json()
    assert answer["faces"][0]["matches"][0]["subject"]["id"] == "ada"
    assert service.client.get(f"{BASE}/{first['id']}").status_code == 404


def test_a_face_that_was_made_a_distractor_is_not_named_with_its_cluster(service: Service) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 4, 0, 1)}, [None] * 4)
    discover(service)
    [cluster] = list_clusters(service)
    faces = faces_in(service, cluster)
    path = f"/v1/collections/staff/faces/{min(faces)}"
    service.client.patch(path, json={"role": "distractor"}).raise_for_status()
    assert [one["face_count"] for one in list_clusters(service)] == [3]
    assert faces_in(service, cluster) == faces - {min(faces)}
    named = service.client.post(f"{BASE}/{cluster['id']}:name", json={"subject": "ada"}).json()
    assert named == {"subject": "ada", "faces": 3}
    assert service.client.get(path).json()["subject"] is None


@on_sqlite
def test_new_faces_join_clusters_and_open_others(service: Service) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 4, 0, 3)}, [None] * 12)
    discover(service)
    before = list_clusters(service)
    gallery.add({"m": faces_of(1, 2, 2, 5)}, [None] * 6)
    assert discover(service)["new_faces"] == 6
    after = {cluster["id"]: cluster["face_count"] for cluster in list_clusters(service)}
    assert {c["id"] for c in before} <= after.keys()
    assert sorted(after.values()) == [2, 2, 4, 4, 6]
    assert discover(service)["new_faces"] == 0
    assert {cluster["id"]: cluster["face_count"] for cluster in list_clusters(service)} == after


@on_sqlite
def test_merged_and_dismissed_clusters_stay_so(service: Service) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 3, 0, 4)}, [None] * 12)
    discover(service)
    first, second, third, _ = list_clusters(service)
    merged = service.client.post(f"{BASE}/{first['id']}:merge", json={"into": second["id"]}).json()
    assert (merged["id"], merged["face_count"]) == (second["id"], 6)
    dismissed = service.client.post(f"{BASE}/{third['id']}:dismiss").json()
    assert dismissed["state"] == "dismissed"
    gallery.add({"m": faces_of(1, 1, 0, 4)}, [None] * 4)
    for min_probability in (0.986, 0.97):  # the second one searches anew
        discover(service, min_probability=min_probability)
        assert sorted(c["face_count"] for c in list_clusters(service)) == [4, 6]  # nobody is like two merged people
        [hidden] = list_clusters(service, state="dismissed")
        assert (hidden["id"], hidden["face_count"]) == (third["id"], 4)
        assert second["id"] in {c["id"] for c in list_clusters(service)}


@on_sqlite
@pytest.mark.parametrize("min_probability", [0.986, 0.97])  # the second one searches anew
def test_clusters_that_are_edited_during_a_search_stay_as_they_were_left(
    service: Service, monkeypatch: pytest.MonkeyPatch, min_probability: float
) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 3, 0, 4)}, [None] * 12)
    discover(service)
    first, second, third, fourth = list_clusters(service)
    service.client.post(f"{BASE}/{second['id']}:merge", json={"into": first["id"]}).raise_for_status()
    gallery.add({"m": faces_of(1, 1, 0, 4)}, [None] * 4)

    def edit(context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster]) -> list[NewCluster]:
        service.client.post(f"{BASE}/{first['id']}:merge", json={"into": third["id"]}).raise_for_status()
        service.client.post(f"{BASE}/{fourth['id']}:dismiss").raise_for_status()
        return confirm_suggestions(context, gallery, clusters)

    with monkeypatch.context() as patch:
        patch.setattr("workers.handlers.discover_people.confirm_suggestions", edit)
        discover(service, min_probability=min_probability)
    for _ in range(2):
        [merged], [hidden] = list_clusters(service), list_clusters(service, state="dismissed")
        assert (merged["id"], merged["face_count"]) == (third["id"], 10), "first and second together are like nobody"
        assert (hidden["id"], hidden["face_count"]) == (fourth["id"], 4)
        discover(service, min_probability=min_probability)


@on_sqlite
def test_a_cluster_that_is_named_during_a_search_is_not_offered_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 3, 0, 2)}, [None] * 6)
    discover(service)
    first, second = list_clusters(service)
    gallery.add({"m": faces_of(1, 1, 0, 2)}, [None] * 2)

    def name(context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster]) -> list[NewCluster]:
        service.client.post(f"{BASE}/{first['id']}:name", json={"subject": "ada"}).raise_for_status()
        return confirm_suggestions(context, gallery, clusters)

    with monkeypatch.context() as patch:
        patch.setattr("workers.handlers.discover_people.confirm_suggestions", name)
        discover(service)
    assert [(c["id"], c["face_count"]) for c in list_clusters(service)] == [(second["id"], 4)], (
        "a face forms no cluster"
    )
    discover(service)
    suggested = {c["face_count"]: (c["suggested_subject"] or {}).get("id") for c in list_clusters(service)}
    assert suggested == {4: None, 1: "ada"}


@on_sqlite
def test_a_face_of_somebody_who_is_deleted_during_a_search_forms_no_cluster(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 4, 0, 2)}, ["ada"] * 3 + [None] + ["bob"] * 3 + [None])

    def delete(context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster]) -> list[NewCluster]:
        confirmed = confirm_suggestions(context, gallery, clusters)
        service.client.delete("/v1/collections/staff/subjects/bob").raise_for_status()
        return confirmed

    monkeypatch.setattr("workers.handlers.discover_people.confirm_suggestions", delete)
    discover(service)
    assert [(c["suggested_subject"] or {}).get("id") for c in list_clusters(service)] == ["ada"]


@on_sqlite
def test_labels_are_heeded(service: Service) -> None:
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 4, 0, 3)}, [None] * 12)
    labels = [
        {"face_a": faces[0], "face_b": faces[1], "same": False},
        {"face_a": faces[4], "face_b": faces[8], "same": True},
    ]
    service.client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    discover(service)
    clusters = [faces_in(service, cluster) for cluster in list_clusters(service)]
    assert not any({faces[0], faces[1]} <= cluster for cluster in clusters)
    assert any({faces[4], faces[8]} <= cluster for cluster in clusters)


@on_sqlite
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_label_parts_two_faces_of_a_cluster_unless_it_was_merged(service: Service, is_merged: bool) -> None:
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 4, 0, 3)}, [None] * 12)
    discover(service)
    clusters = {cluster["id"]: faces_in(service, cluster) for cluster in list_clusters(service)}
    [parted] = [number for number, members in clusters.items() if faces[0] in members]
    [other] = [members for members in clusters.values() if faces[4] in members]
    if is_merged:
        others = [number for number in clusters if number != parted]
        service.client.post(f"{BASE}/{others[0]}:merge", json={"into": parted}).raise_for_status()
    members = sorted(clusters[parted])
    label = {"face_a": members[0], "face_b": members[1], "same": False}
    service.client.post("/v1/labels", json={"labels": [label]}).raise_for_status()
    discover(service)
    found = [faces_in(service, cluster) for cluster in list_clusters(service)]
    assert any(set(members[:2]) <= cluster for cluster in found) == is_merged
    assert is_merged or other in found


@on_sqlite
def test_a_named_person_is_suggested_for_their_other_faces(service: Service) -> None:
    gallery = make_gallery(service)
    named = ["ada"] * 3 + [None] + ["bob"] * 3 + [None]
    faces = gallery.add({"m": faces_of(0, 4, 0, 2)}, named)
    result = discover(service)
    assert (result["faces"], result["clusters"], result["with_suggested_subject"]) == (2, 2, 2)
    suggestions = {c["suggested_subject"]["id"]: c["sample_faces"] for c in list_clusters(service)}
    assert suggestions == {"ada": [faces[3]], "bob": [faces[7]]}
    service.client.patch(f"/v1/collections/staff/faces/{faces[3]}", json={"subject": "ada"}).raise_for_status()
    assert [c["suggested_subject"]["id"] for c in list_clusters(service)] == ["bob"]
    service.client.delete("/v1/collections/staff/subjects/bob").raise_for_status()
    assert [c["suggested_subject"] for c in list_clusters(service)] == [None]


@pytest.fixture
def suggested(service: Service) -> list[str]:
    """Two clusters of one face, for whom ada and bob are suggested. Returns the ids of these faces."""
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 4, 0, 2)}, ["ada"] * 3 + [None] + ["bob"] * 3 + [None])
    discover(service)
    return [faces[3], faces[7]]


@contextmanager
def call_after_counting(service: Service, change: Callable[[], object]) -> Iterator[None]:
    """Call this once, after a request has counted the faces of clusters."""
    changes = [change]

    def call(_: object, __: object, statement: str, *___: object) -> None:
        while changes and "count(" in statement and "clustered_faces" in statement:
            changes.pop()()

    event.listen(service.resources.database, "after_cursor_execute", call)
    try:
        yield
    finally:
        event.remove(service.resources.database, "after_cursor_execute", call)
    assert changes == []


@on_sqlite
def test_whoever_is_erased_while_faces_are_counted_is_not_named(service: Service, suggested: list[str]) -> None:
    """To count the faces of large clusters takes seconds."""
    [ada] = [c["id"] for c in list_clusters(service) if c["suggested_subject"]["id"] == "ada"]

    def erase() -> None:
        with writing(service.resources.database) as session:
            locked = pointers.lock_collection(session, "staff")
            subjects.erase_subject(session, locked, subjects.get_subject(session, "staff", "ada"))

    with call_after_counting(service, erase), reading(service.resources.database) as session:
        clusters = read_clusters(session, "staff", "open", 100, None).clusters
    names = [c.suggested_subject and c.suggested_subject["id"] for c in clusters]
    assert (names, [c.sample_faces for c in clusters]) == ([None, "bob"], [[suggested[0]], [suggested[1]]])

    def erase_face() -> None:
        with writing(service.resources.database) as session:
            subjects.erase_faces(session, pointers.lock_collection(session, "staff"), Face.face_id == suggested[0])

    with call_after_counting(service, erase_face), reading(service.resources.database) as session:
        page = list_faces(session, "staff", ada, 100, None)
    assert (page.faces, page.cluster.sample_faces, page.cluster.suggested_subject) == ([], [], None)


@on_sqlite
@pytest.mark.parametrize("is_list", [True, False])
def test_a_collection_that_is_deleted_while_faces_are_counted_has_no_clusters(
    service: Service, suggested: list[str], is_list: bool
) -> None:
    cluster = list_clusters(service)[0]["id"]

    def delete_staff() -> None:
        with writing(service.resources.database) as session:
            delete_collection(session, "staff")

    def read(session: Session) -> object:
        if is_list:
            return read_clusters(session, "staff", "open", 100, None)
        return list_faces(session, "staff", cluster, 100, None)

    with (
        call_after_counting(service, delete_staff),
        reading(service.resources.database) as session,
        pytest.raises(NotFound),
    ):
        read(session)


@on_sqlite
def test_samples_are_the_first_faces_of_each_cluster(service: Service) -> None:
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 9, 0, 2)}, [None] * 18)
    discover(service)
    assert {tuple(c["sample_faces"]) for c in list_clusters(service)} == {tuple(faces[:6]), tuple(faces[9:15])}


@on_sqlite
def test_a_search_that_was_interrupted_starts_anew(service: Service) -> None:
    gallery = make_gallery(service)
    gallery.add({"m": faces_of(0, 3, 0, 4)}, [None] * 12)
    discover(service)
    with writing(service.resources.database) as session:
        session.execute(delete(PeopleSearch))
        session.execute(delete(ClusteredFace).where(ClusteredFace.face_pk.in_(gallery.pks[:5])))
    assert discover(service)["new_faces"] == 12
    assert sorted(c["face_count"] for c in list_clusters(service)) == [3, 3, 3, 3]
    with reading(service.resources.database) as session:
        assert len(session.scalars(select(FaceCluster)).all()) == 4


@on_sqlite
def test_deleted_faces_and_collections_leave_nothing_behind(service: Service) -> None:
    gallery = make_gallery(service)
    faces = gallery.add({"m": faces_of(0, 2, 0, 2)}, [None] * 4)
    discover(service)
    for face in faces[:2]:
        service.client.delete(f"/v1/collections/staff/faces/{face}").raise_for_status()
    assert len(list_clusters(service)) == 1
    service.client.delete("/v1/collections/staff").raise_for_status()
    with reading(service.resources.database) as session:
        for row in (FaceCluster, ClusteredFace, PeopleSearch, Subject, Face, Deployment):
            assert session.scalars(select(row)).first() is None


@on_sqlite
def test_wrong_requests_are_refused(service: Service) -> None:
    gallery = make_gallery(service, calibrated=False)
    gallery.add({"m": faces_of(0, 3, 0, 2)}, [None] * 6)
    job = service.wait(service.client.post(f"{BASE}:discover"))
    assert (job["state"], job["problem"]["code"]) == ("failed", "NotCalibrated")
    for body in ({"min_probability": 1.0}, {"min_probability": 0.4}, {"probability": 0.9}):
        assert service.client.post(f"{BASE}:discover", json=body).status_code == 422
    assert service.client.post("/v1/collections/nobody/clusters:discover").status_code == 404
    assert service.client.get("/v1/collections/nobody/clusters").status_code == 404
    for verb, body in (("name", {"subject": "x"}), ("merge", {"into": 8}), ("dismiss", None)):
        assert service.client.post(f"{BASE}/7:{verb}", json=body).status_code == 404
    with writing(service.resources.database) as session:
        session.add(FaceCluster(pk=7, collection_id="staff", probability=0.9))
    assert service.client.post(f"{BASE}/7:merge", json={"into": 7}).status_code == 422
    assert list_clusters(service) == [], "it has no faces"
    reader = service.key("reader")
    assert service.client.post(f"{BASE}:discover", headers=reader).status_code == 403
    assert service.client.get(BASE, headers=reader).status_code == 200


@on_sqlite
def test_suggestions_outlast_a_search_without_new_faces(service: Service, suggested: list[str]) -> None:
    before = [(c["suggested_subject"]["id"], c["sample_faces"]) for c in list_clusters(service)]
    assert {face for _, faces in before for face in faces} == set(suggested)
    for _ in range(2):
        discover(service)
        assert [(c["suggested_subject"]["id"], c["sample_faces"]) for c in list_clusters(service)] == before


@on_sqlite
def test_faces_that_were_dismissed_are_not_offered_as_part_of_a_larger_cluster(service: Service) -> None:
    """The label is what joins the two clusters of one person."""
    gallery = make_gallery(service)
    apart = np.concatenate([faces_of(0, 2, 0, 1), faces_of(1, 4, 1, 2)])
    faces = gallery.add({"m": apart}, [None] * 6)
    discover(service)
    [small] = [cluster for cluster in list_clusters(service) if cluster["face_count"] == 2]
    service.client.post(f"{BASE}/{small['id']}:dismiss").raise_for_status()
    label = {"face_a": faces[0], "face_b": faces[2], "same": True}
    service.client.post("/v1/labels", json={"labels": [label]}).raise_for_status()
    discover(service)
    assert list_clusters(service) == []
    [hidden] = list_clusters(service, state="dismissed")
    assert (hidden["id"], faces_in(service, hidden)) == (small["id"], set(faces))
