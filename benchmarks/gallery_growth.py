"""Compare what a tenth of a gallery predicts for the whole gallery with what is measured there.

    python -m benchmarks.gallery_growth --data DATA --cache DIR [--seeds 10] [--embeddings DIR] [--markdown FILE]

All photos of a set are enrolled. A random tenth of its people is enrolled in a gallery of its own, which sets
thresholds for 1 and 5 % of strangers named and predicts, at these thresholds, the rates of the whole gallery. They are
measured by searches for all people of the whole gallery. The method was chosen on CelebA10k.
`--distractors N` also enrols so many distractors in both. `--embeddings DIR` reads `SET_RECOGNISER.npz`, as
`benchmarks.open_set_rules` does.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.growth_methods import OTHER_METHODS
from benchmarks.open_set_rules import FaceSets
from ml import indexes
from ml.distances import EUCLIDEAN
from ml.evaluation.intervals import Interval
from ml.identification.growth_forecast import GrowthForecast
from ml.identification.growth_measurement import GrowthSearches, draw_part
from ml.identification.open_set import PersonThreshold
from ml.identification.person_distance import DecisionRule
from ml.identification.rival_lists import read_rival_lists
from ml.identification.searches import GalleryPeople
from ml.indexes.base import Index
from ml.types import Rows
from papers.harness.photos import Photos

SETS = ("celeba", "lfw")
RECOGNISERS = ("mobilefacenet", "dlib_resnet", "lbp")
RATES = (0.01, 0.05)
FRACTION = 0.1
LBP_AXES = 200
MARKER = "<!-- tables: written by python -m benchmarks.gallery_growth --markdown FILE -->"
HEAD = (
    "| set, recogniser, people | threshold for | named at a tenth | predicted | measured | ratio (spread) | "
    "inside the interval | found: predicted | measured | inside |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW, CelebA10k and the distractors")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    parser.add_argument("--embeddings", type=Path, help="folder of existing embeddings")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--distractors", type=int, default=0, help="distractors to enrol")
    parser.add_argument("--set", action="append", choices=SETS, help="default: both")
    parser.add_argument("--recogniser", action="append", choices=RECOGNISERS, help="default: all three")
    parser.add_argument("--json", type=Path, default=Path(".likeness/gallery_growth.json"))
    parser.add_argument("--markdown", type=Path, help="page whose tables are replaced")
    options = parser.parse_args()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    sets = FaceSets(Photos(options.data, options.cache), options.embeddings)
    for recogniser in options.recogniser or RECOGNISERS:
        for photo_set in options.set or SETS:
            key = f"{photo_set}, {recogniser}" + (f", {options.distractors:,} distractors" * bool(options.distractors))
            if key not in results:
                index, people = enrol(sets, photo_set, recogniser, options.distractors)
                results[key] = measure(index, people, options.seeds)
                options.json.write_text(json.dumps(results, indent=1) + "\n")
            print("\n".join(write_rows(key, results[key])), flush=True)
    if options.markdown is not None:
        before = options.markdown.read_text().split(MARKER)[0] if options.markdown.exists() else ""
        options.markdown.write_text(f"{before}{MARKER}\n\n" + "\n".join(write_tables(results)) + "\n")


def enrol(sets: FaceSets, photo_set: str, recogniser: str, distractors: int) -> tuple[Index, GalleryPeople]:
    """Enrol all photos of a set, and so many distractors after them."""
    rows, subjects = sets.embed(photo_set, recogniser)
    if recogniser == "lbp":
        rows = reduce_by_pca(rows)
    if distractors:
        rows = np.concatenate([rows, sets.embed("distractors", recogniser)[0][:distractors]])
        subjects = np.concatenate([subjects, np.full(len(rows) - len(subjects), -1)])
    ids = np.arange(len(rows))
    return indexes.build(ids, rows, EUCLIDEAN), GalleryPeople.from_rows(ids, subjects, subjects < 0)


def reduce_by_pca(rows: Rows) -> Rows:
    """Project LBP on its first axes, which are fitted to a sample, and scale to unit length."""
    sample = rows[np.random.default_rng(0).permutation(len(rows))[:2000]]
    mean = sample.mean(0)
    axes = np.linalg.svd(sample - mean, full_matrices=False)[2][:LBP_AXES]
    reduced: Rows = (rows - mean) @ axes.T
    return reduced / np.linalg.norm(reduced, axis=1, keepdims=True)


def measure(index: Index, people: GalleryPeople, seeds: int) -> dict[str, Any]:
    """Return, by rate, what each seed's tenth predicts and what is measured."""
    rule, rng = DecisionRule(), np.random.default_rng(0)
    lists = read_rival_lists(index, people, people.sample(people.is_named, int(people.is_named.sum()), rng), rule)
    whole = GrowthForecast(lists, rule), GrowthForecast(lists.select(np.isfinite(lists.own)), rule)
    draws = [draw for seed in range(seeds) for draw in predict_from_part(index, people, whole, seed)]
    return {
        "people": int(people.is_named.sum()),
        "faces": len(people.ids),
        "seeds": seeds,
        "rates": {f"{rate:g}": [draw for draw in draws if draw["rate"] == rate] for rate in RATES},
    }


def predict_from_part(
    index: Index, people: GalleryPeople, whole: tuple[GrowthForecast, GrowthForecast], seed: int
) -> Iterator[dict[str, Any]]:
    part = draw_part(people, FRACTION, seed)
    searches = GrowthSearches.run(indexes.build(part.ids, index.rows(part.ids), EUCLIDEAN), part, DecisionRule())
    growth = float(people.is_named.sum() / part.is_named.sum())
    for rate in RATES:
        distance = find_distance(searches, rate)
        point, now = searches.predict(distance, growth), searches.measure(distance, 1.0)
        assert point.strangers_named is not None
        assert now.strangers_named is not None
        assert searches.enrolled is not None
        yield {
            "rate": rate,
            "at_part": now.strangers_named.value,
            "named": list_ends(point.strangers_named),
            "named_measured": whole[0].measure_named(distance, 1.0).value,
            "found": list_ends(point.people_found) if point.people_found else None,
            "found_measured": whole[1].measure_found(distance, 1.0).value,
            "others": {name: predict(searches.enrolled, distance, growth) for name, predict in OTHER_METHODS.items()},
        }


def find_distance(searches: GrowthSearches, rate: float) -> float:
    """Return the threshold that the service would set in the part, or, with too few people, its order statistic."""
    threshold: PersonThreshold | None = searches.find_threshold(rate)
    if threshold is not None:
        return threshold.person_distance
    assert searches.enrolled is not None
    return float(np.quantile(searches.enrolled.person_distances(1.0), rate))


def list_ends(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def write_tables(results: dict[str, Any]) -> Iterator[str]:
    yield from ("### Predicted from a tenth, and measured", "", HEAD, "|---" * 10 + "|")
    for key, result in results.items():
        yield from write_rows(key, result)
    names = list(OTHER_METHODS)
    yield from ("", "### Other methods: predicted over measured, geometric mean (spread of the logarithm)", "")
    yield f"| | threshold for | this method | {' | '.join(names)} |"
    yield "|---" * (3 + len(names)) + "|"
    for key, result in results.items():
        for rate, draws in result["rates"].items():
            own = compare([draw["named"][0] for draw in draws], draws)
            others = [compare([draw["others"][name] for draw in draws], draws) for name in names]
            yield f"| {key} | {float(rate):.0%} | {own} | {' | '.join(others)} |"


def write_rows(key: str, result: dict[str, Any]) -> Iterator[str]:
    for rate, draws in result["rates"].items():
        named, found = summarise(draws, "named"), summarise([d for d in draws if d["found"]], "found")
        at_part = 100 * np.mean([draw["at_part"] for draw in draws])
        ratio = compare([draw["named"][0] for draw in draws], draws)
        yield (
            f"| {key}, {result['people']:,} | {float(rate):.0%} | {at_part:.2f} | {named[0]:.2f} | {named[1]:.2f} | "
            f"{ratio} | {named[2]} | {found[0]:.1f} | {found[1]:.1f} | {found[2]} |"
        )


def summarise(draws: list[dict[str, Any]], name: str) -> tuple[float, float, str]:
    """Return the mean prediction and measurement in percent, and how many intervals hold the measurement."""
    predicted: NDArray[np.float64] = np.array([draw[name] for draw in draws]).reshape(-1, 3)
    measured = np.array([draw[f"{name}_measured"] for draw in draws])
    inside = int(((predicted[:, 1] <= measured) & (measured <= predicted[:, 2])).sum())
    return 100 * float(predicted[:, 0].mean()), 100 * float(measured.mean()), f"{inside} of {len(draws)}"


def compare(predicted: list[float], draws: list[dict[str, Any]]) -> str:
    """Format the geometric mean of predicted over measured shares of strangers named, and its spread."""
    measured = np.array([draw["named_measured"] for draw in draws])
    logarithms = np.log(np.maximum(predicted, 1e-4) / np.maximum(measured, 1e-4))
    return f"{np.exp(logarithms.mean()):.2f} ({logarithms.std():.2f})"


if __name__ == "__main__":
    main()
