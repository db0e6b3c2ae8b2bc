"""The texts of the OpenAPI document about the API as a whole."""

from typing import Any

API_DESCRIPTION = """\
Face retrieval: galleries, search by face, labels of pairs of faces, and metrics that are learned from them.

- **Keys**: `Authorization: Bearer KEY`, or `x-api-key: KEY`. A role includes those below it: `admin`, `operator`,
  `reader`. A key may be bound to collections. Tokens of an OpenID Connect issuer can be accepted like keys.
- **Errors** are `application/problem+json`. `code` is for programs; `Retry-After` says when to try again.
  A parameter of the query that an operation does not know is refused with 422.
- **Long work** is answered with 202 and the `Location` of its job.
- **Lists** return a page and, if there is more, the `next_token` of the next page. A page of long `metadata` has
  fewer entries than its `limit`.
- **`Idempotency-Key`** on a POST: if it is sent again within 24 hours, it gets the same answer as the first time.
  Searches and suggestions, which change nothing, are carried out anew.
- **`X-Request-Id`** of a request is returned in the answer; without it, the service makes one.
"""
TAG_DESCRIPTIONS = {
    "health": "Probes, metrics and versions.",
    "keys": "The keys of clients, with their roles.",
    "audit": "Who did what, when, on what.",
    "collections": "Sets of enrolled faces that are searched as one.",
    "subjects": "The people in a collection.",
    "faces": "Enrolled faces, from single photos or from archives.",
    "clusters": "Faces without a name, grouped by person, to be named, merged or dismissed.",
    "examinations": "What is wrong in a collection: duplicates, mix-ups, poor faces, and what mending them changes.",
    "forecasts": "How many strangers a collection will name, and how many people it will find, as it grows.",
    "search": "Search 1:N by photo, by enrolled face and by vector, and verify 1:1.",
    "labels": "Statements of people that two faces are the same or not.",
    "tasks": "The criteria of likeness, such as identity or age.",
    "methods": "The methods and descriptors that a training can name, with their options.",
    "trainings": "Runs that learn a metric from labels, subjects and metadata.",
    "evaluations": "Measurements of how well a model, or a method, ranks a collection's faces.",
    "models": "Models: how they were made, and where they serve.",
    "recognisers": "Ways to describe faces: which are installed, and which each collection uses.",
    "deployments": "The models that serve a task in a collection.",
    "atlases": "Maps of the faces of a deployment: two coordinates for each face.",
    "jobs": "Long work that a request started.",
    "snapshots": "Copies of the service or of a collection that are kept in its home.",
    "erasures": "Receipts of deleted faces, subjects and collections.",
}
SECURITY_SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a text of your choice: for 24 hours, a repeated request with it gets the answer of the first one",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "examples": ["0e5b2f6a-upload-17"]},
}
SUCCESS_DESCRIPTIONS = {"200": "done", "201": "created", "202": "accepted; a job does it", "204": "done; no content"}
