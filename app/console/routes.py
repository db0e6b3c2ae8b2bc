"""The operator's page: static files that speak only the public API."""

from pathlib import Path

import plotly
from fastapi import APIRouter
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"
CHARTS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
POLICY = "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"

router = APIRouter(include_in_schema=False)
files = StaticFiles(directory=STATIC)


@router.get("/", summary="The operator's page")
def page() -> FileResponse:
    """It holds no secret: the key is typed in and kept in the browser's tab."""
    return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": POLICY})


@router.get("/console/charts.js", summary="The chart library, as its Python package ships it")
def charts() -> FileResponse:
    """Loaded only by the views that draw."""
    return FileResponse(CHARTS, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})
