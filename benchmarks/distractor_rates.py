"""How often strangers are named beside distractors of another kind, in galleries of few people.

    python -m benchmarks.distractor_rates [--people 12 30 100] [--noise 0 0.5 1] [--galleries 20]
        [--recogniser NAME --data DATA --cache DIR [--utkface | --degradation "12 pixels" ...]]

A gallery holds people with a name, two photos each, and distractors of a poorer camera. It is searched with faces of
strangers of the good one, and with third photos of the people. Faces are drawn vectors of 64 numbers, of which people
differ in 16, or photos of LFW by a recogniser: see `benchmarks.open_set_rules`. Embeddings of distractors have noise
added, 1 of which is as large as the embeddings are, all numbers taken together; with --degradation, crops of their
photos are degraded in place of this, and with --utkface they are UTKFace's. "Above" counts the galleries whose rate of
strangers is surely above what is stated: the lower end of its own 95 % interval is above the interval of a threshold
from searches, or above the rate that is asked for, of one from pairs.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.serving.calibration.gallery_pairs import fit_gallery_pairs
from benchmarks.nameless_faces import parse_with_recogniser, read_faces
from benchmarks.open_set_rules import FaceSets
from ml.calibration import ImpostorDistances, NamedPairs
from ml.calibration.rate_intervals import clopper_pearson
from ml.compensation import DEGRADATIONS
from ml.distances import EUCLIDEAN
from ml.identification.open_set import NameCounts, OpenSetCalibration
from ml.identification.person_distance import DecisionRule, find_nearest_people, shortlist
from ml.identification.searches import FACES_PER_SEARCH, GalleryPeople, TemplateCache, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.flat import FlatIndex
from ml.types import Ids, Rows
from papers.harness.photos import Photos

FPIRS = (0.01, 0.05, 0.1)
PHOTOS, DISTRACTORS, STRANGERS = 2, 1000, 1500
DIM, DIFFERING_DIM, PHOTO_SPREAD = 64, 16, 0.4
COLUMNS = (
    "people",
    "distractors",
    "fpir",
    "galleries",
    "by searches",
    "above",
    "strangers named",
    "most",
    "people found",
)


def draw_people(count: int, seed: int) -> tuple[Rows, Ids]:
    """Draw unit rows of so many people, one photo more than PHOTOS each."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((count, DIM))
    centres[:, :DIFFERING_DIM] = rng.normal(size=(count, DIFFERING_DIM))
    rows = centres.repeat(PHOTOS + 1, axis=0)
    rows += PHOTO_SPREAD * rng.normal(size=rows.shape) * rng.lognormal(sigma=0.7, size=DIM)
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit, np.arange(count).repeat(PHOTOS + 1)


def add_noise(rows: Rows, noise: float, seed: int) -> Rows:
    """Return unit rows with normal noise, 1 of which is as long as they are."""
    noisy = rows + noise / np.sqrt(rows.shape[1]) * np.random.default_rng((seed, 1)).normal(size=rows.shape)
    return np.asarray(noisy / np.linalg.norm(noisy, axis=1, keepdims=True), np.float32)


@dataclass(frozen=True, eq=False)
class NoisyGallery:
    """A gallery, what it is searched with, and how strangers score by its own searches and its pairs.

    strangers: (S, d); probes: (P, d), one photo of each person
    """

    index: FlatIndex
    people: GalleryPeople
    calibration: OpenSetCalibration
    pairs: tuple[ImpostorDistances, ...]
    strangers: Rows
    probes: Rows

    @classmethod
    def draw(cls, rows: Rows, poor: Rows, subjects: Ids, count: int, seed: int) -> "NoisyGallery":
        """Draw a gallery of `count` people from photos of (n,) subjects.

        rows: (n, d) unit rows; poor: (n, d), what a poorer camera makes of the same photos
        """
        rng = np.random.default_rng(seed)
        photos = {subject: rng.permutation(np.flatnonzero(subjects == subject)) for subject in np.unique(subjects)}
        order = rng.permutation(np.array(list(photos))).tolist()
        named = [subject for subject in order if len(photos[subject]) > PHOTOS][:count]
        others = [photos[subject][0] for subject in order if subject not in set(named)]
        strangers, distractors = others[:STRANGERS], poor[others[STRANGERS : STRANGERS + DISTRACTORS]]
        enrolled = np.concatenate([photos[subject][:PHOTOS] for subject in named])
        index = FlatIndex(rows.shape[1])
        index.add(
            np.arange(len(enrolled) + len(distractors)), np.concatenate([rows[enrolled], distractors], dtype="f4")
        )
        owners = np.concatenate([np.arange(count).repeat(PHOTOS), np.full(len(distractors), -1)])
        people = GalleryPeople.from_rows(index.ids(), owners, owners < 0)
        named_pairs = NamedPairs.measure(rows[enrolled], owners[: len(enrolled)], distractors, EUCLIDEAN)
        calibration = OpenSetCalibration(DecisionRule(), tuple(cls._measure(index, people)), named_pairs=named_pairs)
        numbers, stored = np.where(owners < 0, np.arange(len(owners)) + count, owners), index.rows(index.ids())
        of_people = stored[: len(enrolled)], owners[: len(enrolled)]
        pairs = fit_gallery_pairs(stored, numbers, owners < 0, *of_people, EUCLIDEAN)
        impostors = (pairs.impostors,) if pairs else ()
        probes = rows[[photos[subject][PHOTOS] for subject in named]]
        return cls(index, people, calibration, impostors, rows[strangers], probes)

    @staticmethod
    def _measure(index: FlatIndex, people: GalleryPeople) -> Iterator[StrangerSearches]:
        for source, chosen in (("leave-one-out", people.is_named), ("distractors", people.is_distractor)):
            probes = people.sample(chosen, len(people.ids), np.random.default_rng(0))
            searches = search_gallery(index, people, probes, DecisionRule())
            yield StrangerSearches.from_distances(source, searches.stranger, searches.owners, len(people.ids))  # type: ignore[arg-type]

    def search(self, queries: Rows, rule: DecisionRule) -> tuple[Rows, Ids]:
        """Return of each of (Q, d) queries the nearest person, and the person distance; inf: it is a distractor."""
        neighbours = self.index.search(queries, min(len(self.people.ids), 4 * FACES_PER_SEARCH))
        near = shortlist(np.where(neighbours.ids < 0, -1, self.people.owners[neighbours.ids]), neighbours.distances)
        template = TemplateCache(self.index, self.people).distances(queries, near.people, np.full(len(queries), -1))
        distances, nearest = find_nearest_people(near, template, self.people.is_rival, rule)
        return np.where(self.people.is_named[nearest], distances, np.inf), nearest


@dataclass(frozen=True)
class RateOutcome:
    """What a threshold does to strangers and to people.

    by_searches: whether it comes from searches; otherwise from pairs, which state no interval
    is_above: whether more strangers are surely named than the interval allows, or than are asked for if there is none
    strangers, found: shares of 0 to 1
    """

    by_searches: bool
    is_above: bool
    strangers: float
    found: float


def judge(gallery: NoisyGallery, fpir: float) -> RateOutcome | None:
    """Return what the threshold for a rate names; None if there is none."""
    owners, is_named = gallery.people.owners, gallery.people.is_named
    named = int(is_named[owners].sum())
    counts = NameCounts(named, len(owners) - named)
    threshold = gallery.calibration.threshold(fpir, len(owners), gallery.pairs, counts)
    if threshold is None:
        return None
    named = gallery.search(gallery.strangers, threshold.rule)[0] <= threshold.person_distance
    distances, nearest = gallery.search(gallery.probes, threshold.rule)
    found = (distances <= threshold.person_distance) & (nearest == np.arange(len(nearest)))
    surely = clopper_pearson(float(named.sum()), len(named))[0]
    stated = fpir if threshold.high is None else threshold.high
    return RateOutcome(threshold.high is not None, surely > stated, float(named.mean()), float(found.mean()))


def describe(outcomes: Sequence[RateOutcome | None]) -> list[str]:
    """Return the last columns of a row."""
    known = [outcome for outcome in outcomes if outcome]
    if not known:
        return [str(len(outcomes)), "0", "", "", "", ""]
    shares = [outcome.strangers for outcome in known]
    return [
        str(len(outcomes)),
        str(sum(outcome.by_searches for outcome in known)),
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
    parser.add_argument("--degradation", nargs="+", choices=DEGRADATIONS, help="of photos, in place of noise")
    parser.add_argument("--utkface", action="store_true", help="as distractors, in place of noise")
    args = parse_with_recogniser(parser, arguments)
    if (args.degradation or args.utkface) and not args.recogniser:
        parser.error("--degradation and --utkface need photos: give --recogniser and --data")
    return args


def draw_photos(args: argparse.Namespace, people: int) -> Iterator[tuple[str, list[tuple[Rows, Rows, Ids]]]]:
    """Yield for each kind of distractors its name, and for each gallery good rows, poor rows and subjects."""
    lfw, sets = read_faces(args), FaceSets(Photos(args.data, args.cache), None)
    if lfw and args.utkface:
        others = sets.embed("distractors", args.recogniser)[0]
        chosen = [np.random.default_rng((seed, 2)).permutation(len(lfw[0])) for seed in range(args.galleries)]
        yield "UTKFace", [(lfw[0], others[numbers % len(others)], lfw[1]) for numbers in chosen]
        return
    if lfw and args.degradation:
        for name in args.degradation:
            yield name, [(lfw[0], sets.embed_degraded("lfw", args.recogniser, name), lfw[1])] * args.galleries
        return
    for noise in args.noise:
        drawn = [lfw or draw_people(people + STRANGERS + DISTRACTORS, seed) for seed in range(args.galleries)]
        yield f"noise {noise:g}", [(rows, add_noise(rows, noise, seed), s) for seed, (rows, s) in enumerate(drawn)]


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    print("| " + " | ".join(COLUMNS) + " |")
    for people in args.people:
        for distractors, photos in draw_photos(args, people):
            galleries = (NoisyGallery.draw(*drawn, people, seed) for seed, drawn in enumerate(photos))
            outcomes = [[judge(gallery, fpir) for fpir in FPIRS] for gallery in galleries]
            for fpir, judged in zip(FPIRS, zip(*outcomes, strict=True), strict=True):
                print("| " + " | ".join([str(people), distractors, f"{fpir:g}", *describe(judged)]) + " |", flush=True)


if __name__ == "__main__":
    main()
