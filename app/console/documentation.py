"""The page /docs: Swagger UI over the OpenAPI document, from files on this server alone.

The page gets no key. It is sandboxed: its scripts run in an origin of their own, from which the storage of the console,
and so the key in it, cannot be read; and it may send no request. It shows the API and does not call it.
"""

import json
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import fastapi_offline
from fastapi import FastAPI

from app.console.fixed_pages import FixedPage

SWAGGER = Path(fastapi_offline.__file__).parent / "static"
"""Swagger UI's files as that package ships them; none of its code is used."""
POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Likeness API</title>
  <link rel="icon" href="/console/icon.svg">
  <link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
  <main id="documentation"></main>
  <noscript>This page needs JavaScript; the document itself is at /openapi.json.</noscript>
  <script type="application/json" id="openapi">%s</script>
  <script src="/docs/swagger-ui-bundle.js"></script>
  <script src="/console/docs.js"></script>
</body>
</html>
"""


def render_page(document: dict[str, Any]) -> str:
    """The HTML page with the OpenAPI document in it, as data that cannot end its own element."""
    return PAGE % json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


PAGES: WeakKeyDictionary[FastAPI, FixedPage] = WeakKeyDictionary()
DOCUMENTS: WeakKeyDictionary[FastAPI, FixedPage] = WeakKeyDictionary()
"""Made at the first request of each: half a second of processor time."""
MAKING = Lock()
"""Whoever comes meanwhile waits: each would take as long again, and FastAPI makes no two documents at once."""


def get_page(app: FastAPI) -> FixedPage:
    """Return the page /docs."""
    with MAKING:
        if app not in PAGES:
            PAGES[app] = FixedPage.make(render_page(app.openapi()), headers={"Content-Security-Policy": POLICY})
        return PAGES[app]


def get_document(app: FastAPI) -> FixedPage:
    """Return the OpenAPI document."""
    with MAKING:
        if app not in DOCUMENTS:
            text = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":"))
            DOCUMENTS[app] = FixedPage.make(text, "application/json")
        return DOCUMENTS[app]
