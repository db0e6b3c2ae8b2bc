"""What the document says of the API as a whole."""

from typing import Any

ABOUT = """\
Face retrieval: galleries, search by a face, labels of pairs, and metrics that are learned from them.

- **Keys**: `Authorization: Bearer KEY`, or `x-api-key: KEY`. A role includes those below it: `admin`, `operator`,
  `reader`. A key may be bound to collections.
- **Errors** are `application/problem+json`. `code` is for programs; `Retry-After` says when to try again.
- **Long work** answers 202 with the `Location` of its job.
- **Lists** answer a page and, where there is more, the `next_token` for the page after it.
- **`Idempotency-Key`** on a POST: sent again within 24 hours, it is answered as it was the first time.
- **`X-Request-Id`** of a request is taken over; else one is made.
"""
TAGS = {
    "health": "Probes, figures and versions.",
    "keys": "Who may do what.",
    "collections": "Galleries.",
    "subjects": "People of a gallery.",
    "faces": "Enrolled faces, one photo at a time or many at once.",
    "search": "1:N by photo, by enrolled face and by vector; 1:1.",
    "labels": "Who said what of which pair.",
    "tasks": "The criteria of likeness.",
    "methods": "What a training can name: methods, descriptors and their options.",
    "trainings": "A metric learned from labels, subjects and metadata.",
    "evaluations": "How well a model, or a way of making one, ranks a collection's faces.",
    "models": "What was learned: how it was made, and where it serves.",
    "recognisers": "How faces are described: what can be used, and what each collection uses.",
    "deployments": "Which model serves a task in a collection.",
    "jobs": "Anything that takes long.",
}
KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ONCE: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "of your choice: a repetition with it is answered as the first request was, for 24 hours",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "examples": ["0e5b2f6a-upload-17"]},
}
SUCCESS = {"200": "done", "201": "it is new", "202": "a job does it", "204": "done; there is nothing to tell"}
