"""`likeness export-embeddings`: fit a method and write its embeddings, to be scored by other programs."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from app.cli.client import console, open_progress
from app.cli.datasets import features, lfw
from ml import registry
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation import protocols
from ml.types import Rows


def export_embeddings(
    dataset: Annotated[str, typer.Argument(help="lfw")],
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="folder of the data")],
    protocol: Annotated[str, typer.Option(help="a file queries-K.txt or disjoint-K.txt, or view2:F")],
    out: Annotated[
        Path, typer.Option(help="FILE.npz: x (n, d) float32, f (n,) names, metric: l2, ip, or a description")
    ],
    method: Annotated[
        str, typer.Option(help="an embedder: auto, which chooses one, l2, cosine, wccn, wpca, ldml, clml, ...")
    ] = "auto",
    descriptor: Annotated[
        str, typer.Option(help="lbp, sift, fisher, ..., the path of a manifest, or several: lbp+sift")
    ] = "lbp",
    dim: Annotated[int | None, typer.Option(help="d; for methods that have this option, unlike l2 and cosine")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="an option of the method, NAME=VALUE; may be repeated")
    ] = None,
    seed: int = 0,
    cache: Annotated[Path, typer.Option(help="where crops are kept between runs")] = Path(".likeness/cache/lfw"),
) -> None:
    """Fit a method on the training side of a protocol file, and write the embeddings of all faces for identity."""
    if dataset != "lfw":
        raise typer.BadParameter("there is: lfw", param_hint="DATASET")
    embedder = _build_embedder(method, seed, ({"dim": dim} if dim else {}) | _parse_options(option or []))
    names, crops = lfw.load_crops(lfw.LfwDataset(data), cache)
    folder = lfw.LfwDataset(data).protocol if ":" in protocol else Path(protocol).parent
    sides = protocols.read(Path(protocol).name, folder, names)
    recipe = features.build_recipe(descriptor, crops, sides.training, cache.resolve(), seed)
    rows = features.describe_crops(recipe, crops, cache)
    learned = build_training_set(rows[sides.training], [names[i] for i in sides.training], recipe.blocks)
    with open_progress() as progress:
        shown = progress.add_task(f"fit {method} on {len(sides.training):,} faces", total=None)
        embedder.fit(learned, progress=lambda step, steps, _: progress.update(shown, completed=step, total=steps))
    if "choice" in embedder.notes:
        console.print(embedder.notes["choice"]["reason"])
    exported = embedder.metric.to_portable(embedder.embed(rows))
    np.savez(out, x=exported.rows, f=np.array(names), metric=np.array(exported.metric), **exported.extra)  # type: ignore[arg-type]
    console.print(f"{out}: {exported.rows.shape[0]:,} x {exported.rows.shape[1]}, {exported.metric}")
    if exported.max_error:
        [exact] = exported.extra
        console.print(
            f"{method} has its own score: ip equals it and a constant, within {exported.max_error:.1g}; exact: {exact}"
        )


def build_training_set(rows: Rows, names: list[str], blocks: tuple[int, ...] = ()) -> TrainingSet:
    """Build the training data of (n, d) rows, with the first folder of each name as its person."""
    _, people = np.unique([name.split("/")[0] for name in names], return_inverse=True)
    task = TaskData("identity", np.arange(len(rows)), people.astype(np.float64), people.astype(np.int64))
    return TrainingSet(rows, (task,), blocks)


def _build_embedder(method: str, seed: int, options: dict[str, Any]) -> Embedder:
    if method not in registry.names("embedders"):
        raise typer.BadParameter(f"there are: {', '.join(registry.names('embedders'))}", param_hint="--method")
    try:
        made: Embedder = registry.build("embedders", method, seed=seed, **options)
    except TypeError as error:
        raise typer.BadParameter(f"{method}: {error}", param_hint="--option or --dim") from error
    return made


def _parse_options(given: list[str]) -> dict[str, Any]:
    """Parse options such as `k=16`, `unit=true` and `start=wpca`. A value that is not JSON is text."""
    parts = [one.partition("=")[::2] for one in given]
    return {name: _parse_value(text) for name, text in parts}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
