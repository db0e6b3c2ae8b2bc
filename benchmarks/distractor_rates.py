"""How often strangers are named beside distractors of another kind, in galleries of few people.

    python -m benchmarks.distractor_rates [--people 12 30 100] [--noise 0 0.5 1] [--galleries 20]
        [--recogniser NAME --data DATA --cache DIR]

A gallery holds people with a name, two photos each, and distractors whose embeddings have noise added, as those of a
poorer camera have. It is searched with faces of strangers without noise, and with third photos of the people. Faces
are drawn vectors of 64 numbers, of which people differ in 16, or those of LFW by a recogniser: see
`benchmarks.open_set_rules`. Noise of 1 is as large as the embeddings are, all numbers taken together. "Above" counts
the galleries whose rate of strangers is surely above the interval that is stated with the threshold: the lower end of
its own 95 % interval is.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.nameless_faces import parse_with_recogniser, read_faces
from ml.calibration.rate_intervals import clopper_pearson
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule, find_nearest_people, shortlist
from ml.identification.searches import FACES_PER_SEARCH, GalleryPeople, TemplateCache, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.flat import FlatIndex
from ml.types import Ids, Rows

FPIRS = (0.01, 0.05, 0.1)
PHOTOS, DISTRACTORS, STRANGERS = 2, 1000, 1500
DIM, DIFFERING_DIM, PHOTO_SPREAD = 64, 16, 0.4
COLUMNS = ("people", "noise", "fpir", "galleries", "by searches", "above", "strangers named", "most", "people found")


def draw_people(count: int, seed: int) -> tuple[Rows, Ids]:
    """Draw unit rows of so many people, one photo more than PHOTOS each."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((count, DIM))
    centres[:, :DIFFERING_DIM] = rng.normal(size=(count, DIFFERING_DIM))
    rows = centres.repeat(PHOTOS + 1, axis=0)
    rows += PHOTO_SPREAD * rng.normal(size=rows.shape) * rng.lognormal(sigma=0.7, size=DIM)
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit, np.arange(count).repeat(PHOTOS + 1)


@dataclass(frozen=True, eq=False)
class NoisyGallery:
    """A gallery, what it is searched with, and how strangers score by its own searches.

    strangers: (S, d); probes: (P, d), one photo of each person
    """

    index: FlatIndex
    people: GalleryPeople
    calibration: OpenSetCalibration
    strangers: Rows
    probes: Rows

    @classmethod
    def draw(cls, rows: Rows, subjects: Ids, count: int, noise: float, seed: int) -> "NoisyGallery":
        """Draw a gallery of `count` people from photos: (n, d) unit rows of (n,) subjects."""
        rng = np.random.default_rng(seed)
        photos = {subject: rng.permutation(np.flatnonzero(subjects == subject)) for subject in np.unique(subjects)}
        order = rng.permutation(np.array(list(photos))).tolist()
        named = [subject for subject in order if len(photos[subject]) > PHOTOS][:count]
        others = [photos[subject][0] for subject in order if subject not in set(named)]
        strangers, distractors = others[:STRANGERS], rows[others[STRANGERS : STRANGERS + DISTRACTORS]]
        distractors = distractors + noise / np.sqrt(rows.shape[1]) * rng.normal(size=distractors.shape)
        distractors /= np.linalg.norm(distractors, axis=1, keepdims=True)
        enrolled = np.concatenate([photos[subject][:PHOTOS] for subject in named])
        index = FlatIndex(rows.shape[1])
        index.add(
            np.arange(len(enrolled) + len(distractors)), np.concatenate([rows[enrolled], distractors], dtype="f4")
        )
        owners = np.concatenate([np.arange(count).repeat(PHOTOS), np.full(len(distractors), -1)])
        people = GalleryPeople.from_rows(index.ids(), owners, owners < 0)
        calibration = OpenSetCalibration(DecisionRule(), tuple(cls._measure(index, people)))
        return cls(index, people, calibration, rows[strangers], rows[[photos[subject][PHOTOS] for subject in named]])

    @staticmethod
    def _measure(index: FlatIndex, people: GalleryPeople) -> Iterator[StrangerSearches]:
        for source, chosen in (("leave-one-out", people.is_named), ("distractors", people.is_distractor)):
            probes = people.sample(chosen, len(people.ids), np.random.default_rng(0))
            searches = search_gallery(index, people, probes, DecisionRule())
            yield StrangerSearches.from_distances(source, searches.stranger, searches.owners, len(people.ids))  # type: ignore[arg-type]

    def search(self, queries: Rows) -> tuple[Rows, Ids]:
        """Return of each of (Q, d) queries the nearest person, and the person distance; inf: it is a distractor."""
        neighbours = self.index.search(queries, min(len(self.people.ids), 4 * FACES_PER_SEARCH))
        near = shortlist(np.where(neighbours.ids < 0, -1, self.people.owners[neighbours.ids]), neighbours.distances)
        template = TemplateCache(self.index, self.people).distances(queries, near.people, np.full(len(queries), -1))
        distances, nearest = find_nearest_people(near, template, self.people.is_rival, DecisionRule())
        return np.where(self.people.is_named[nearest], distances, np.inf), nearest


@dataclass(frozen=True)
class RateOutcome:
    """is_above: whether more strangers are surely named than is stated; strangers, found: shares of 0 to 1"""

    is_above: bool
    strangers: float
    found: float


def judge(gallery: NoisyGallery, fpir: float) -> RateOutcome | None:
    """Return what the threshold for a rate names; None if searches tell none, and it would come from pairs."""
    threshold = gallery.calibration.threshold(fpir, len(gallery.people.ids))
    if threshold is None or threshold.high is None:
        return None
    named = gallery.search(gallery.strangers)[0] <= threshold.person_distance
    distances, nearest = gallery.search(gallery.probes)
    found = (distances <= threshold.person_distance) & (nearest == np.arange(len(nearest)))
    surely = clopper_pearson(float(named.sum()), len(named))[0]
    return RateOutcome(surely > threshold.high, float(named.mean()), float(found.mean()))


def describe(outcomes: list[RateOutcome | None]) -> list[str]:
    """Return the last columns of a row."""
    known = [outcome for outcome in outcomes if outcome]
    if not known:
        return [str(len(outcomes)), "0", "", "", "", ""]
    shares = [outcome.strangers for outcome in known]
    return [
        str(len(outcomes)),
        str(len(known)),
        str(sum(outcome.is_above for outcome in known)),
        f"{100 * np.mean(shares):.2f} %",
        f"{100 * max(shares):.2f} %",
        f"{100 * np.mean([outcome.found for outcome in known]):.0f} %",
    ]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, nargs="+", default=[12, 30, 100])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--galleries", type=int, default=20)
    return parse_with_recogniser(parser, arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    print("| " + " | ".join(COLUMNS) + " |")
    lfw = read_faces(args)
    for people in args.people:
        for noise in args.noise:
            outcomes: dict[float, list[RateOutcome | None]] = {fpir: [] for fpir in FPIRS}
            for seed in range(args.galleries):
                rows, subjects = lfw or draw_people(people + STRANGERS + DISTRACTORS, seed)
                gallery = NoisyGallery.draw(rows, subjects, people, noise, seed)
                for fpir in FPIRS:
                    outcomes[fpir].append(judge(gallery, fpir))
            for fpir in FPIRS:
                print("| " + " | ".join([str(people), f"{noise:g}", f"{fpir:g}", *describe(outcomes[fpir])]) + " |")


if __name__ == "__main__":
    main()
