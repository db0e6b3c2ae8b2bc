"""The operator's page: static files that speak only the public API; and the documentation of that API."""

import os
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.staticfiles import NotModifiedResponse, PathLike
from starlette.types import Scope

from app.console import documentation
from app.console.fixed_pages import FixedPage
from app.console.whole_files import WholeFile


def find_package(name: str) -> Path:
    """Return the folder of a package without importing it. Raises ModuleNotFoundError."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no package {name!r}", name=name)
    return Path(spec.origin).parent


STATIC = Path(__file__).parent / "static"
CHARTS = find_package("plotly") / "package_data" / "plotly.min.js"
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts come from this server alone, none is in the page. The chart library sets styles of its own."""
A_DAY = {"Cache-Control": "max-age=86400"}
REVALIDATED = {"Cache-Control": "no-cache"}
"""Kept by a browser, which asks each time whether the file has changed: a new version may have been installed."""


class KnownFiles(StaticFiles):
    """The static files, sent without a thread. Other paths are not looked for: that costs more the longer they are."""

    names = frozenset(str(file.relative_to(STATIC)) for file in STATIC.rglob("*") if file.is_file())

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer with the file. Raises HTTPException."""
        if scope["method"] not in ("GET", "HEAD"):
            return await super().get_response(path, scope)
        if path not in self.names:
            raise HTTPException(404)
        return self.file_response(STATIC / path, os.stat(STATIC / path), scope)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Answer with the file, or with 304 if the client has it."""
        file = WholeFile(full_path, status_code, REVALIDATED, stat_result=stat_result)
        is_known = self.is_not_modified(file.headers, Headers(scope=scope))
        return NotModifiedResponse(file.headers) if is_known else file


router = APIRouter(include_in_schema=False)
files = KnownFiles(directory=STATIC)


@router.get("/", summary="The operator's page")
def page(request: Request) -> Response:
    """It holds no secret: the key is typed in and kept in the browser's tab."""
    return FixedPage.read(STATIC / "index.html", {"Content-Security-Policy": POLICY}).answer(request)


@router.get("/console/charts.js", summary="The chart library, as its Python package ships it")
async def charts() -> WholeFile:
    """Loaded only by the views that draw."""
    return WholeFile(CHARTS, media_type="text/javascript", headers=A_DAY)


@router.get("/docs", summary="The API, to read")
def documentation_page(request: Request) -> Response:
    """Swagger UI without a CDN, and without access to the key."""
    return documentation.get_page(request.app).answer(request)


@router.get("/openapi.json", summary="The API, for programs")
def openapi_document(request: Request) -> Response:
    """The OpenAPI document."""
    return documentation.get_document(request.app).answer(request)


@router.get("/docs/swagger-ui-bundle.js", summary="Swagger UI, as its Python package ships it")
async def swagger_script() -> WholeFile:
    """The script of the page /docs."""
    return _swagger_file("swagger-ui-bundle.js", "text/javascript")


@router.get("/docs/swagger-ui.css", summary="Swagger UI's style, as its Python package ships it")
async def swagger_style() -> WholeFile:
    """The style of the page /docs."""
    return _swagger_file("swagger-ui.css", "text/css")


def _swagger_file(name: str, media_type: str) -> WholeFile:
    return WholeFile(documentation.SWAGGER / name, media_type=media_type, headers=A_DAY)
