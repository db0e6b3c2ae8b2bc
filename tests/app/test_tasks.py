"""Tasks over HTTP."""

from tests.service import Service


def test_identity_is_built_in_and_sensitive_tasks_are_disabled(service: Service) -> None:
    tasks = {t["name"]: t["enabled"] for t in service.client.get("/v1/tasks").json()["tasks"]}
    assert tasks == {"identity": True, "age": False, "expression": False}
    answer = service.client.put("/v1/tasks/identity", json={"enabled": False})
    assert answer.status_code == 409


def test_an_administrator_can_enable_a_task(service: Service) -> None:
    refused = service.client.put("/v1/tasks/age", json={"enabled": True}, headers=service.key("operator"))
    assert refused.status_code == 403
    answer = service.client.put("/v1/tasks/age", json={"enabled": True})
    assert answer.status_code == 200
    assert answer.json()["enabled"]
    assert answer.json()["description"], "it keeps what was not told"


def test_a_client_can_define_a_task(service: Service) -> None:
    answer = service.client.put("/v1/tasks/glasses", json={"description": "both wear glasses"})
    assert answer.status_code == 201
    assert service.client.get("/v1/tasks/glasses").json()["enabled"]
    assert service.client.put("/v1/tasks/Not%20a%20name", json={}).status_code == 422
    assert service.client.get("/v1/tasks/height").status_code == 404
