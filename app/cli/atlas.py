"""`likeness atlas`: draw the map of a collection's faces, say how far it can be believed, and save a picture of it."""

from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer

from app.cli.client import connect, console, read_answer, wait_for_job
from ml.atlas.picture import MapPicture

MAX_POINTS = 10_000
BINS = 128
Colour = Literal["subject", "role", "source", "cluster"]


def atlas(
    collection: Annotated[str, typer.Argument(help="id of the collection")],
    task: Annotated[str, typer.Option(help="the task of the deployment")] = "identity",
    method: Annotated[
        Literal["pca", "tsne"] | None, typer.Option(help="how to draw it; default: as it was drawn, else pca")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of everything random")] = 0,
    redraw: Annotated[bool, typer.Option(help="draw it anew")] = False,
    svg: Annotated[Path | None, typer.Option(help="write a picture")] = None,
    colour: Annotated[Colour, typer.Option(help="what the colours of the picture show")] = "subject",
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Draw the map of a collection's faces, or take the one that is there. Prints what it shows."""
    path = f"/v1/collections/{collection}/deployments/{task}/atlas"
    with connect(url) as client:
        shown = _find_atlas(client, path)
        if redraw or shown is None or method not in (None, shown["method"]):
            body = {"method": method or (shown or {}).get("method", "pca"), "seed": seed}
            wait_for_job(client, client.post(f"{path}:draw", json=body), "atlas")
            shown = read_answer(client.get(path))
        _print_atlas(shown)
        if svg is not None:
            svg.write_text(_draw_picture(client, path, shown, colour))
            console.print(f"picture: {svg}")


def _find_atlas(client: httpx.Client, path: str) -> dict[str, Any] | None:
    answer = client.get(path)
    return None if answer.status_code == httpx.codes.NOT_FOUND else read_answer(answer)


def _print_atlas(atlas: dict[str, Any]) -> None:
    state = "" if atlas["is_current"] else "; faces or the model have changed since"
    console.print(f"{atlas['faces']:,} faces by {atlas['method']} of model {atlas['model']}{state}")
    console.print(_explain(atlas))


def _explain(atlas: dict[str, Any]) -> str:
    """Say how far the map can be believed."""
    neighbours, variance = atlas["neighbours"], atlas["explained_variance"]
    shown = f"the axes show {100 * sum(variance):.1f} % of the variance; " if variance else ""
    return (
        f"{shown}{100 * neighbours['kept']:.1f} % of the {neighbours['neighbours']} nearest faces are nearest on the "
        f"map ({100 * neighbours['chance']:.2f} % by chance), trustworthiness {neighbours['trustworthiness']:.2f}"
    )


def _draw_picture(client: httpx.Client, path: str, atlas: dict[str, Any], colour: Colour) -> str:
    points = read_answer(client.get(f"{path}/points", params={"limit": MAX_POINTS}))
    is_sample = points["faces"] > len(points["points"])
    counts = read_answer(client.get(f"{path}/density", params={"bins": BINS}))["counts"] if is_sample else ()
    window = tuple(points["window"][name] for name in ("x_min", "x_max", "y_min", "y_max"))
    faces = (
        f"{len(points['points']):,} of {points['faces']:,} faces as points"
        if is_sample
        else f"{points['faces']:,} faces"
    )
    title = f"{atlas['collection']}, {atlas['task']}: {faces}, coloured by {colour}"
    described = [(point["x"], point["y"], _find_group(point, colour)) for point in points["points"]]
    return MapPicture(window, described, counts, title, _explain(atlas)).to_svg()


def _find_group(point: dict[str, Any], colour: Colour) -> str | None:
    value = (point["subject"] or {}).get("id") if colour == "subject" else point[colour]
    return None if value is None else f"cluster {value}" if colour == "cluster" else str(value)
