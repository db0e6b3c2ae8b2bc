"""The check of a recogniser that is being added: which preprocessing suits it, how well it does, and what is told."""

from dataclasses import replace
from pathlib import Path

from app.cli.client import console
from app.storage.recognisers import manifests
from app.storage.recognisers.catalogue import Accuracy
from ml.descriptors.common.file_backed import find_descriptor
from ml.descriptors.common.manifest import DescriptorManifest, OnnxManifest
from ml.errors import LikenessError
from ml.recogniser_check import MIN_AUC, PEOPLE, PHOTOS_A_PERSON, SyntheticCheck, check_recogniser
from ml.registry import build

PREPROCESSINGS = ((127.5, 127.5), (0.0, 255.0), (0.0, 1.0))
"""(mean, scale) that recognisers are commonly trained with; an earlier one is taken unless a later is clearly better"""
CLEARLY_BETTER_AUC = 0.03


def check_staged(manifest: DescriptorManifest, staged: Path) -> SyntheticCheck:
    """Write the manifest beside the staged model and check both. Raises Corrupt, WrongShape, NotFinite, Unavailable."""
    path = staged / manifests.MANIFEST
    manifest.write(path)
    return check_recogniser(build("descriptors", find_descriptor(path), manifest=str(path)))


def choose_preprocessing(manifest: OnnxManifest, staged: Path) -> tuple[tuple[float, float], float]:
    """The (mean, scale) by which it tells synthetic people apart best, and the AUC reached so."""
    aucs = {pair: _measure_auc(manifest, pair, staged) for pair in PREPROCESSINGS}
    return next((pair, auc) for pair, auc in aucs.items() if auc > max(aucs.values()) - CLEARLY_BETTER_AUC)


def _measure_auc(manifest: OnnxManifest, preprocessing: tuple[float, float], staged: Path) -> float:
    """0 where what it gives is no description at all."""
    mean, scale = preprocessing
    try:
        return check_staged(replace(manifest, mean=(mean,) * 3, scale=(scale,) * 3), staged).auc
    except LikenessError:
        return 0.0


def describe_manifest(manifest: OnnxManifest, batch: int | None) -> str:
    """What the network takes and gives, in a line."""
    runs = "any number of pictures" if batch is None else f"{batch} at a time"
    mean, scale = (_format_numbers(numbers) for numbers in (manifest.mean, manifest.scale))
    return (
        f"takes {manifest.size[0]} x {manifest.size[1]} {manifest.colour} ({manifest.layout}), {runs}, "
        f"(pixel - {mean}) / {scale}; gives {manifest.dim} numbers ({manifest.output}); licence: {manifest.licence}"
    )


def print_check(result: SyntheticCheck) -> None:
    console.print(
        f"check on {PEOPLE} synthetic people: two photos of one person are more alike than photos of two people "
        f"{result.auc:.1%} of the time (needed {MIN_AUC:.0%}; bare pixels {result.pixels_auc:.1%}, chance 50 %); "
        f"median cosine {result.same:.2f} against {result.other:.2f}; the most alike photo is of the right person for "
        f"{result.right_first:.1%}",
        soft_wrap=True,
    )


def explain_failure(result: SyntheticCheck, manifest: DescriptorManifest, staged: Path) -> str:
    """Why it is refused, and the preprocessing that does better where one does."""
    why = f"it does not tell people apart ({result.auc:.1%}, needed {MIN_AUC:.0%})"
    if not result.repeatable:
        why = "it gives other numbers for the same photo each time"
    hint = ""
    if isinstance(manifest, OnnxManifest):
        (mean, scale), auc = choose_preprocessing(manifest, staged)
        if auc > result.auc + CLEARLY_BETTER_AUC:
            hint = f"With --mean {mean:g} --scale {scale:g} it is {auc:.1%}. "
    return (
        f"{why}. {hint}Either --mean, --scale, --colour or --output is wrong, or it is no face recogniser; "
        "--force registers it all the same"
    )


def rate(result: SyntheticCheck) -> Accuracy:
    """The check, as it is kept and listed."""
    data = f"{PEOPLE} synthetic people, {PHOTOS_A_PERSON} photos each"
    return Accuracy(data, "us", right_first=round(result.right_first, 4), auc=round(result.auc, 4))


def _format_numbers(numbers: tuple[float, float, float]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{n:g}" for n in numbers)
