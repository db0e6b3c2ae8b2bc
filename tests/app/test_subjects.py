"""Subjects over HTTP: create, change, merge and erase."""

from collections.abc import Iterator
from typing import Any
from unicodedata import normalize
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Face, Removal, Subject
from tests.app.test_faces import BASE, enrol, picture, wait_until
from tests.databases import remove_test_data
from tests.service import Service

EARLIER, LATER = "2039-01-01T00:00:00Z", "2040-01-01T00:00:00Z"


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def staff(service: Service) -> httpx.Client:
    """A client of a service that has the collection `staff`."""
    service.client.put(BASE).raise_for_status()
    return service.client


def test_a_subject_can_be_created_and_changed(staff: httpx.Client) -> None:
    path = f"{BASE}/subjects/Ada%20L."
    made = staff.put(path, json={"metadata": {"desk": 1}, "retain_until": "2030-01-01T00:00:00Z"})
    assert made.status_code == 201
    assert made.json() | {"created_at": 0} == {
        "id": "Ada L.",
        "external_id": "Ada L.",
        "metadata": {"desk": 1},
        "consent": None,
        "retain_until": "2030-01-01T00:00:00Z",
        "face_count": 0,
        "created_at": 0,
    }
    assert staff.put(path).status_code == 200
    changed = staff.patch(path, json={"external_id": "nr 7", "consent": True, "retain_until": None}).json()
    assert (changed["external_id"], changed["consent"], changed["retain_until"]) == ("nr 7", True, None)
    assert changed["metadata"] == {"desk": 1}
    assert staff.get(path).json() == changed
    assert staff.patch(path, json={"name": "x"}).status_code == 422
    assert staff.patch(path, json={"external_id": "a\0b"}).status_code == 422
    assert staff.patch(path, json={"retain_until": "2030-01-01T00:00:00"}).status_code == 422
    for number in (0, 1_900_000_000, "1900000000", "-1.5"):
        assert staff.patch(path, json={"retain_until": number}).status_code == 422, "it is no date"
    for moment in ("9999-12-31T00:00:59-23:59", "0001-01-01T00:00:00Z", "0001-01-01T23:59:00+23:59"):
        own = f"{BASE}/subjects/until-{moment}"  # a sweep erases those whose time has passed
        staff.put(own).raise_for_status()
        assert staff.patch(own, json={"retain_until": moment}).status_code == 200
    assert staff.put(f"{BASE}/subjects/{'x' * 256}").status_code == 422
    assert staff.put("/v1/collections/none/subjects/ada").status_code == 404


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    "moment", ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+23:59"]
)
def test_a_moment_without_a_date_in_utc_is_refused(staff: httpx.Client, method: str, moment: str) -> None:
    staff.put(f"{BASE}/subjects/ada").raise_for_status()
    refused = staff.request(method, f"{BASE}/subjects/ada", json={"retain_until": moment})
    assert refused.status_code == 422, refused.text
    assert "from 0001-01-01T00:00:00+00:00 to 9999-12-31T23:59:59+00:00" in refused.text
    assert staff.get(f"{BASE}/subjects/ada").json()["retain_until"] is None


@pytest.mark.parametrize(
    ("name", "character"),
    [
        ("ada ", "U+0020 SPACE"),
        (" ada", "U+0020 SPACE"),
        (" ", "U+0020 SPACE"),
        ("ad\u200ba", "U+200B ZERO WIDTH SPACE"),
        ("ad\u200da", "U+200D ZERO WIDTH JOINER"),
        ("\u200cada", "U+200C ZERO WIDTH NON-JOINER"),
        ("ada\u00ad", "U+00AD SOFT HYPHEN"),
        ("ada\u00a0l", "U+00A0 NO-BREAK SPACE"),
        ("ada\u0085", "U+0085 a control character"),
        ("ada\u2028", "U+2028 LINE SEPARATOR"),
        ("ada\u3164", "U+3164 HANGUL FILLER"),
        ("ada\ufe0f", "U+FE0F VARIATION SELECTOR-16"),
        ("\u845b\U000e0100", "U+E0100 VARIATION SELECTOR-17"),
        ("\u1820\u180b", "U+180B MONGOLIAN FREE VARIATION SELECTOR ONE"),
        ("\u062f\u0627\u200c\u0648\u062f", "U+200C ZERO WIDTH NON-JOINER"),
        ("\u0639\u0644\u06cc\u200c", "U+200C ZERO WIDTH NON-JOINER"),
        ("\u0639\u200d\u0644\u06cc", "U+200D ZERO WIDTH JOINER"),
    ],
)
def test_no_subject_is_made_that_looks_like_another(staff: httpx.Client, name: str, character: str) -> None:
    [face] = enrol(staff, picture()).raise_for_status().json()["face_records"]
    answers = [
        staff.put(f"{BASE}/subjects/{quote(name)}"),
        enrol(staff, picture(1), subject=name),
        staff.patch(f"{BASE}/faces/{face['face_id']}", json={"subject": name}),
        staff.post(f"{BASE}/clusters/1:name", json={"subject": name}),
    ]
    assert [answer.status_code for answer in answers] == [422] * 4
    assert all(character in answer.text for answer in answers)
    assert staff.get(f"{BASE}/subjects").json()["subjects"] == []


@pytest.mark.parametrize("name", ["\u0646\u06cc\u06a9\u200c\u067e\u06cc", "\u0d36\u0d4d\u200d\u0d30\u0d40"])
def test_a_subject_may_have_the_joiners_of_its_script(staff: httpx.Client, name: str) -> None:
    assert staff.put(f"{BASE}/subjects/{quote(name)}").json()["id"] == name


COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"


def test_two_spellings_of_an_id_are_one_subject(staff: httpx.Client) -> None:
    [face] = enrol(staff, picture(), subject=DECOMPOSED).raise_for_status().json()["face_records"]
    assert face["subject"]["id"] == COMPOSED
    assert enrol(staff, picture(), subject=COMPOSED).json()["face_records"] == [face]
    assert staff.put(f"{BASE}/subjects/{quote(DECOMPOSED)}", json={"consent": True}).status_code == 200
    listed = staff.get(f"{BASE}/subjects").json()["subjects"]
    assert [(s["id"], s["consent"], s["face_count"]) for s in listed] == [(COMPOSED, True, 1)]
    assert staff.get(f"{BASE}/subjects/{quote(DECOMPOSED)}").json() == listed[0]
    for params in ({"subject": DECOMPOSED}, {"subject": COMPOSED}):
        assert [f["face_id"] for f in staff.get(f"{BASE}/faces", params=params).json()["faces"]] == [face["face_id"]]
    assert staff.delete(f"{BASE}/subjects/{quote(DECOMPOSED)}").json()["faces"] == 1


def test_a_decomposed_id_of_an_earlier_version_is_the_same_person(service: Service, staff: httpx.Client) -> None:
    with writing(service.resources.database) as session:
        session.add(Subject(collection_id="staff", id=DECOMPOSED, consent=False))
    for spelling in (COMPOSED, DECOMPOSED):
        refused = enrol(staff, picture(), subject=spelling)
        assert (refused.status_code, refused.json()["code"]) == (409, "EnrolmentNotAllowed")
    assert staff.put(f"{BASE}/subjects/{quote(COMPOSED)}", json={"consent": True}).status_code == 200
    [face] = enrol(staff, picture(), subject=COMPOSED).raise_for_status().json()["face_records"]
    assert face["subject"]["id"] == DECOMPOSED
    assert enrol(staff, picture(), subject=DECOMPOSED).json()["face_records"] == [face]


def test_two_spellings_that_an_earlier_version_has_stored_can_be_merged(service: Service, staff: httpx.Client) -> None:
    with writing(service.resources.database) as session:
        session.add_all([Subject(collection_id="staff", id=name) for name in (COMPOSED, DECOMPOSED)])
    [face] = enrol(staff, picture(), subject=DECOMPOSED).raise_for_status().json()["face_records"]
    assert face["subject"]["id"] == COMPOSED, "new faces go to the composed one"
    assert staff.get(f"{BASE}/subjects/{quote(DECOMPOSED)}").json()["id"] == DECOMPOSED
    merged = staff.post(f"{BASE}/subjects/{quote(DECOMPOSED)}:merge", json={"into": COMPOSED})
    assert (merged.status_code, merged.json()["face_count"]) == (200, 1)
    assert [s["id"] for s in staff.get(f"{BASE}/subjects").json()["subjects"]] == [COMPOSED]


def test_an_id_that_is_too_long_once_it_is_composed_is_refused(staff: httpx.Client) -> None:
    grows = "\u0958"  # its composed form has two characters
    assert staff.put(f"{BASE}/subjects/{quote(255 * grows)}").status_code == 422
    assert staff.put(f"{BASE}/subjects/{quote(127 * grows)}").status_code == 201


def test_the_id_of_an_earlier_version_can_be_used_where_nothing_is_made(service: Service, staff: httpx.Client) -> None:
    odd = "ada\u200b "
    with writing(service.resources.database) as session:
        session.add(Subject(collection_id="staff", id=odd))
    path = f"{BASE}/subjects/{quote(odd)}"
    assert staff.get(path).json()["id"] == odd
    assert staff.patch(path, json={"consent": True}).json()["consent"] is True
    staff.put(f"{BASE}/subjects/ada").raise_for_status()
    assert staff.post(f"{path}:merge", json={"into": "ada"}).json()["id"] == "ada"


def test_subjects_are_listed_with_the_number_of_their_faces(staff: httpx.Client) -> None:
    for n in range(5):
        enrol(staff, picture(n), subject="ada" if n % 2 else "bob").raise_for_status()
    staff.put(f"{BASE}/subjects/cleo")
    first = staff.get(f"{BASE}/subjects", params={"limit": 2}).json()
    rest = staff.get(f"{BASE}/subjects", params={"next_token": first["next_token"]}).json()
    face_counts = {s["id"]: s["face_count"] for s in first["subjects"] + rest["subjects"]}
    assert face_counts == {"ada": 2, "bob": 3, "cleo": 0}


def test_two_subjects_can_be_merged(service: Service, staff: httpx.Client) -> None:
    for n in range(3):
        enrol(staff, picture(n), subject="ada" if n else "ada l").raise_for_status()
    staff.patch(f"{BASE}/subjects/ada", json={"metadata": {"desk": 1}})
    staff.patch(f"{BASE}/subjects/ada%20l", json={"metadata": {"desk": 2, "floor": 3}})
    merged = staff.post(f"{BASE}/subjects/ada%20l:merge", json={"into": "ada"})
    assert merged.status_code == 200
    assert (merged.json()["face_count"], merged.json()["metadata"]) == (3, {"desk": 1, "floor": 3})
    assert staff.get(f"{BASE}/subjects/ada%20l").status_code == 404
    with reading(service.resources.database) as session:
        assert sorted(session.scalars(select(Face.change))) == [2, 3, 4]
    assert staff.post(f"{BASE}/subjects/ada:merge", json={"into": "ada"}).status_code == 422
    assert staff.post(f"{BASE}/subjects/ada:merge", json={"into": "none"}).status_code == 404


def test_the_kept_subject_records_all_who_were_merged_into_it(service: Service, staff: httpx.Client) -> None:
    for name in ("ada", "bob", "eve"):
        staff.put(f"{BASE}/subjects/{name}", json={"external_id": f"{name}-1"}).raise_for_status()
    with reading(service.resources.database) as session:
        created_at = {s.id: s.created_at for s in session.scalars(select(Subject))}
    staff.post(f"{BASE}/subjects/ada:merge", json={"into": "bob"}).raise_for_status()
    answer = staff.post(f"{BASE}/subjects/bob:merge", json={"into": "eve"}).raise_for_status()
    assert "ada-1" not in answer.text, "it is not shown"
    with reading(service.resources.database) as session:
        merged = session.scalars(select(Subject.merged_subjects)).one()
    assert [(one["id"], one["external_id"], one["created_at"]) for one in merged] == [
        ("ada", "ada-1", created_at["ada"]),
        ("bob", "bob-1", created_at["bob"]),
    ]
    assert max(created_at.values()) < merged[0]["merged_at"] < merged[1]["merged_at"]


def test_a_merge_keeps_the_limit_of_metadata(staff: httpx.Client) -> None:
    """It had none: a subject into which 150 others were merged had 8 MB."""
    large = {"a": "x" * 40_000}, {"b": "x" * 40_000}, {"a": "y" * 60_000}
    for name, metadata in zip(("ada", "bob", "eve"), large, strict=True):
        staff.put(f"{BASE}/subjects/{name}", json={"metadata": metadata}).raise_for_status()
    refused = staff.post(f"{BASE}/subjects/ada:merge", json={"into": "bob"})
    assert refused.status_code == 422
    assert "at most 65,536 are allowed" in refused.json()["detail"]
    assert staff.get(f"{BASE}/subjects/ada").json()["metadata"] == large[0]
    assert staff.get(f"{BASE}/subjects/bob").json()["metadata"] == large[1]
    merged = staff.post(f"{BASE}/subjects/ada:merge", json={"into": "eve"}).raise_for_status().json()
    assert merged["metadata"] == large[2], "the kept subject's value counts"


def test_a_merge_keeps_the_limit_of_merged_subjects(service: Service, staff: httpx.Client) -> None:
    """Each of them multiplies what an erasure of the kept one looks through, while all others wait for it."""
    for name in ("ada", "bob", "eve"):
        staff.put(f"{BASE}/subjects/{name}").raise_for_status()
    earlier = [{"id": f"x{n}", "external_id": None, "created_at": 1.0 + n, "merged_at": 2.0 + n} for n in range(99)]
    recorded = {"ada": earlier[:49], "bob": earlier[:10] + earlier[49:60], "eve": earlier[60:]}
    with writing(service.resources.database) as session:
        for subject in session.scalars(select(Subject)):
            subject.merged_subjects = recorded[subject.id]
    answer = staff.post(f"{BASE}/subjects/bob:merge", json={"into": "ada"}).raise_for_status()
    with reading(service.resources.database) as session:
        [known] = session.scalars(select(Subject.merged_subjects).where(Subject.id == "ada"))
    assert [one["id"] for one in known] == [f"x{n}" for n in range(60)] + ["bob"], "none is recorded twice"
    refused = staff.post(f"{BASE}/subjects/ada:merge", json={"into": "eve"})
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidParameter")
    assert (
        "would record 101 merged subjects, and at most 100 are allowed: give it the faces of 'ada' one by one"
        in refused.json()["detail"]
    )
    assert staff.get(f"{BASE}/subjects/ada").json() == answer.json(), "it is not merged"


@pytest.mark.parametrize("shared", ["badge_7", 'a "b%" \u00e9\U0001f600'])
def test_a_merge_keeps_the_limit_of_merged_subjects_of_one_name(
    service: Service, staff: httpx.Client, shared: str
) -> None:
    """The erasure of somebody of the name gathers all of them: 15,000 kept all others waiting for 5 s."""
    for name in ("ada", "bob", "eve", "max"):
        staff.put(f"{BASE}/subjects/{name}", json={"external_id": shared}).raise_for_status()
    like = [{"id": f"x{n}", "external_id": shared, "created_at": 1.0 + n, "merged_at": 2.0 + n} for n in range(98)]
    like.append({"id": normalize("NFD", shared), "external_id": None, "created_at": 1.0, "merged_at": 2.0})
    others = [one | {"external_id": f"{shared}!"} for one in like]
    recorded = {"ada": [], "bob": like[:40] + others[:20], "eve": like[40:], "max": []}
    with writing(service.resources.database) as session:
        for subject in session.scalars(select(Subject)):
            subject.merged_subjects = recorded[subject.id]
    staff.post(f"{BASE}/subjects/ada:merge", json={"into": "max"}).raise_for_status()
    refused = staff.post(f"{BASE}/subjects/bob:merge", json={"into": "max"})
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidParameter")
    assert (
        "100 subjects that were merged in this collection have the id or the external id of 'bob', and at most 100 are "
        "allowed: change its external id" in refused.json()["detail"]
    )
    assert staff.get(f"{BASE}/subjects/bob").status_code == 200, "it is not merged"
    staff.patch(f"{BASE}/subjects/bob", json={"external_id": "badge-8"}).raise_for_status()
    staff.post(f"{BASE}/subjects/bob:merge", json={"into": "max"}).raise_for_status()


@pytest.mark.parametrize(
    ("merged", "kept", "consent", "retain_until"),
    [
        ({"consent": True, "retain_until": EARLIER}, {}, True, EARLIER),
        ({"retain_until": EARLIER}, {"consent": True, "retain_until": LATER}, True, EARLIER),
        ({"retain_until": LATER}, {"retain_until": EARLIER}, None, EARLIER),
        ({}, {"retain_until": LATER}, None, LATER),
        ({}, {}, None, None),
    ],
)
def test_a_merge_keeps_consent_and_the_earlier_end_of_retention(
    staff: httpx.Client, merged: dict[str, Any], kept: dict[str, Any], consent: bool | None, retain_until: str | None
) -> None:
    for name, body in (("ada l", merged), ("ada", kept)):
        staff.put(f"{BASE}/subjects/{name}", json=body).raise_for_status()
    answer = staff.post(f"{BASE}/subjects/ada%20l:merge", json={"into": "ada"}).raise_for_status().json()
    assert (answer["consent"], answer["retain_until"]) == (consent, retain_until)


def test_a_deleted_subject_leaves_nothing_but_a_receipt(service: Service, staff: httpx.Client) -> None:
    for n in range(3):
        enrol(staff, picture(n), subject="ada" if n else "bob").raise_for_status()
    receipt = staff.delete(f"{BASE}/subjects/ada").json()
    assert (receipt["faces"], receipt["labels"], receipt["embeddings"]) == (2, 0, 2)
    assert staff.delete(f"{BASE}/subjects/ada").status_code == 404
    assert [f["subject"]["id"] for f in staff.get(f"{BASE}/faces").json()["faces"]] == ["bob"]
    [job] = receipt["jobs"]
    wait_until(lambda: staff.get(job).json()["state"] == "succeeded")
    assert staff.get(job).json()["result"] == {"erasure": receipt["erasure"].removeprefix("/v1/erasures/"), "files": 6}
    assert len(list(service.resources.blobs.names("staff"))) == 3
    with reading(service.resources.database) as session:
        assert len(session.scalars(select(Removal)).all()) == 2
    assert enrol(staff, picture(1), subject="ada").status_code == 201


def test_a_reader_cannot_change_subjects(service: Service, staff: httpx.Client) -> None:
    staff.put(f"{BASE}/subjects/ada")
    with httpx.Client(base_url=service.url, headers=service.key("reader")) as reader:
        assert reader.get(f"{BASE}/subjects/ada").status_code == 200
        for method, path in (("PUT", "ada"), ("PATCH", "ada"), ("DELETE", "ada"), ("POST", "ada:merge")):
            assert reader.request(method, f"{BASE}/subjects/{path}", json={}).status_code == 403


def test_names_that_are_not_utf8_are_refused(staff: httpx.Client) -> None:
    """Latin-1 as in `Zo%EB` and `Zo%E9`: read with a replacement, two people were one, whom each could erase."""
    staff.put(f"{BASE}/subjects/Zo%EF%BF%BD").raise_for_status()
    for refused in (
        staff.put(f"{BASE}/subjects/Zo%EB", json={"consent": False}),
        staff.delete(f"{BASE}/subjects/Zo%E9"),
        staff.get(f"{BASE}/faces?subject=Zo%E9"),
    ):
        assert refused.status_code == 422, refused.text
        assert "not UTF-8" in refused.json()["detail"]
    assert staff.get(f"{BASE}/subjects/Zo%EF%BF%BD").status_code == 200
    assert staff.put(f"{BASE}/subjects/Zo%C3%AB").status_code == 201
