"""`likeness export-embeddings`: so that anyone can score a method with code of their own."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from app.cli import lfw
from app.cli.client import bar, console
from ml import registry
from ml.embedders.base import TaskData, TrainingSet
from ml.evaluation import protocols
from ml.generation import Recipe
from ml.metric import EUCLIDEAN, INNER_PRODUCT
from ml.types import CropKind, Crops, Rows, Spec

BLOCK = 512


def export_embeddings(
    dataset: Annotated[str, typer.Argument(help="lfw")],
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="folder of the data")],
    method: Annotated[str, typer.Option(help="an embedder: l2, cosine, wpca, ldml, clml, ...")],
    protocol: Annotated[str, typer.Option(help="a file queries-K.txt or disjoint-K.txt, or view2:F")],
    out: Annotated[Path, typer.Option(help="FILE.npz: x (n, d) float32, f (n,) names, metric l2 or ip")],
    descriptor: Annotated[str, typer.Option(help="lbp, or the path of an ONNX manifest")] = "lbp",
    dim: Annotated[int | None, typer.Option(help="d; not for l2 and cosine")] = None,
    seed: int = 0,
    cache: Annotated[Path, typer.Option(help="where crops are kept between runs")] = Path(".likeness/cache/lfw"),
) -> None:
    """Fit a method on the training side of a protocol file and write everyone's embedding."""
    if dataset != "lfw":
        raise typer.BadParameter("there is: lfw", param_hint="DATASET")
    if method not in registry.names("embedders"):
        raise typer.BadParameter(f"there are: {', '.join(registry.names('embedders'))}", param_hint="--method")
    names, crops = lfw.crops(lfw.Lfw(data), cache)
    rows = describe(Recipe((_spec(descriptor),)), crops)
    folder = lfw.Lfw(data).protocol if ":" in protocol else Path(protocol).parent
    sides = protocols.read(Path(protocol).name, folder, names)
    embedder = registry.build("embedders", method, seed=seed, **({"dim": dim} if dim else {}))
    with bar() as progress:
        shown = progress.add_task(f"fit {method} on {len(sides.training):,} faces", total=None)
        embedder.fit(
            training_set(rows[sides.training], [names[i] for i in sides.training]),
            progress=lambda step, steps, _: progress.update(shown, completed=step, total=steps),
        )
    metric = embedder.metric
    if metric not in (EUCLIDEAN, INNER_PRODUCT):
        raise typer.BadParameter(f"{method} compares by a score of its own, which a file of vectors cannot carry")
    x = embedder.embed(rows)
    np.savez(out, x=x, f=np.array(names), metric=np.array(metric.kind))
    console.print(f"{out}: {x.shape[0]:,} x {x.shape[1]}, {metric.kind}")


def describe(recipe: Recipe, crops: dict[CropKind, Crops]) -> Rows:
    """(N, dim) under a bar."""
    [kind] = recipe.crops
    count = len(crops[kind])
    rows = np.empty((count, recipe.dim), np.float32)
    with bar() as progress:
        for start in progress.track(range(0, count, BLOCK), description="describe"):
            rows[start : start + BLOCK] = recipe.describe(
                {kind: np.ascontiguousarray(crops[kind][start : start + BLOCK])}
            )
    return rows


def training_set(rows: Rows, names: list[str]) -> TrainingSet:
    """Identity by the first folder of the name."""
    _, people = np.unique([name.split("/")[0] for name in names], return_inverse=True)
    faces = np.arange(len(rows))
    return TrainingSet(rows, (TaskData("identity", faces, people.astype(np.float64), people.astype(np.int64)),))


def _spec(descriptor: str) -> Spec:
    return Spec("onnx", {"manifest": descriptor}) if descriptor.endswith(".json") else Spec(descriptor)
