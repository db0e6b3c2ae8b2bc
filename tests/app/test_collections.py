from tests.service import Service


def test_a_collection_is_created_once_and_can_be_read(service: Service) -> None:
    assert service.client.put("/v1/collections/staff", json={"description": "door"}).status_code == 201
    assert service.client.put("/v1/collections/staff").status_code == 200
    shown = service.client.get("/v1/collections/staff").json()
    assert (shown["description"], shown["face_count"], shown["subject_count"]) == ("door", 0, 0)


def test_collections_are_listed_in_pages(service: Service) -> None:
    for name in "abcde":
        service.client.put(f"/v1/collections/{name}")
    first = service.client.get("/v1/collections?limit=3").json()
    rest = service.client.get("/v1/collections", params={"limit": 3, "next_token": first["next_token"]}).json()
    assert [c["id"] for c in first["collections"] + rest["collections"]] == list("abcde")
    assert rest.get("next_token") is None
    assert service.client.get("/v1/collections?next_token=broken").status_code == 422


def test_a_deleted_collection_is_not_found(service: Service) -> None:
    service.client.put("/v1/collections/a")
    assert service.client.delete("/v1/collections/a").status_code == 204
    assert service.client.get("/v1/collections/a").status_code == 404
    assert service.client.delete("/v1/collections/a").status_code == 404


def test_an_invalid_collection_id_is_refused(service: Service) -> None:
    assert service.client.put("/v1/collections/a b").status_code == 422
    assert service.client.put("/v1/collections/" + "a" * 256).status_code == 422
