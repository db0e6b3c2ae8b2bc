"""`likeness recognisers train-cnn`: a network of your own, from photos of people that you may learn from."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from joblib import cpu_count
from rich.progress import Progress, TaskID

from app.cli.client import console, open_progress, print_problem
from app.threads import set_threads
from ml.errors import LikenessError

if TYPE_CHECKING:
    from ml.cnn_training.recipe import Head
    from ml.cnn_training.train import TrainingProgress

UNSAID = "unknown: what the owners of the photos allow"
TICKS = 1000
"""A training's bar has so many parts."""


def train_cnn(
    data: Annotated[Path, typer.Option(exists=True, file_okay=False, help="folder of person/photo")],
    out: Annotated[Path, typer.Option(file_okay=False, help="folder for weights, manifest and checkpoints")],
    identities: Annotated[
        Path | None, typer.Option(exists=True, help="lines `photo person`, for other folders")
    ] = None,
    crops: Annotated[Path | None, typer.Option(help="keeps the aligned crops; without it OUT/crops.npy")] = None,
    licence: Annotated[str, typer.Option(help="of the weights, for the manifest")] = UNSAID,
    net: Annotated[str, typer.Option(help="light (128 numbers) or casia (320)")] = "light",
    head: Annotated[str, typer.Option(help="softmax, pairs; behind a trained network: qconv, stiefel")] = "softmax",
    start: Annotated[Path | None, typer.Option(exists=True, help="manifest of the network to begin with")] = None,
    width: Annotated[int, typer.Option(help="numbers a face of qconv and stiefel; 0: the network's")] = 0,
    hours: Annotated[float, typer.Option(help="the steps grow small and end by then; 0: no such end")] = 1.0,
    steps: Annotated[int, typer.Option(help="or after so many steps, if that is sooner; 0: no such end")] = 0,
    batch: Annotated[int, typer.Option(help="photos a step, of each process")] = 64,
    margin: Annotated[float, typer.Option(help="of the softmax, between cosines; 0: none")] = 0.2,
    every: Annotated[float, typer.Option(help="minutes between checkpoints, each judged by people held out")] = 5.0,
    patience: Annotated[int, typer.Option(help="end after so many that are no better; 0: never early")] = 0,
    resume: Annotated[bool, typer.Option(help="go on from the checkpoint in OUT")] = False,
    bf16: Annotated[bool, typer.Option(help="half-precision arithmetic, where the processor has it")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int, typer.Option(help="of each process; 0: its share of the cores")] = 0,
    seed: Annotated[int, typer.Option(help="of the start, the order and the changes made to the photos")] = 0,
) -> None:
    """Align the photos once, then teach a network whose they are. Under torchrun: on several GPUs or machines."""
    from ml.cnn_training.crops import load_crops, prepare_crops
    from ml.cnn_training.process_group import join_process_group
    from ml.cnn_training.recipe import CnnRecipe
    from ml.cnn_training.train import train  # torch takes two seconds, for which no other command should wait

    set_threads(threads or max(1, cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    path = crops or out / "crops.npy"
    try:
        recipe = CnnRecipe(
            net=net, head=cast("Head", head), width=width, batch=batch, margin=margin, bf16=bf16, seed=seed,
            hours=hours, steps=steps, every=every, patience=patience,
        )  # fmt: skip
        with join_process_group(device) as group, open_progress(group.rank == 0) as shown:
            if group.rank == 0:
                prepare_crops(data, path, identities, _aligning(shown))
            group.broadcast(0)  # wait until the first process has written the crops
            training_crops = load_crops(path)
            words = f"{len(training_crops.people)} photos of {data.name}"
            manifest = train(
                training_crops, recipe, out, group, licence=licence, trained=words, start=start, resume=resume,
                report=_learning(shown),
            )  # fmt: skip
    except LikenessError as error:
        print_problem(type(error).__name__, str(error))
        raise typer.Exit(1) from error
    if group.rank == 0:
        console.print(f"{manifest}: next: likeness recognisers add {manifest} --yes", soft_wrap=True)


def _aligning(shown: Progress) -> Callable[[int, int], None]:
    task = shown.add_task("align")
    return lambda done, of: shown.update(task, completed=done, total=of)


def _learning(shown: Progress) -> Callable[["TrainingProgress"], None]:
    """A bar, and a line that stays for each judgement."""
    tasks: list[TaskID] = []

    def report(progress: "TrainingProgress") -> None:
        if not tasks:
            tasks.append(shown.add_task("learn", total=TICKS))
        text = f"step {progress.state.step:,}, {progress.rate:.0f} photos/s, loss {progress.state.loss:.2f}"
        shown.update(tasks[0], completed=round(TICKS * progress.done), description=text)
        if progress.score is not None:
            people = (
                f"people held out: mAP {100 * progress.score.map:.1f}, nearest right {100 * progress.score.first:.1f} %"
            )
            console.print(f"{progress.state.seconds / 60:.0f} min, {text}; {people}", soft_wrap=True)

    return report
