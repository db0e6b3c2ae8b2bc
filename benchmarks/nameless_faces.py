"""How often strangers match faces without a name, by two rules, at a rate of 1 %.

    python -m benchmarks.nameless_faces [--people 300] [--nameless 400 1000 4000] [--seeds 5]
        [--recogniser NAME --data DATA --cache DIR]

A gallery holds people with a name, three photos each, and nameless faces of others. It is searched with faces of 1,500
strangers, and with second photos of the nameless. Somebody with a name who passes comes first. Otherwise a nameless
face matches by the person distance, as people with a name do, or by its own distance (`PersonThreshold`). Faces are
drawn vectors of 64 numbers, or those of LFW by a recogniser: see `benchmarks.open_set_rules`.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.open_set_rules import RECOGNISERS, FaceSets
from ml.calibration import ImpostorDistances, sample_impostors
from ml.identification.open_set import NameCounts, OpenSetCalibration, PersonThreshold
from ml.identification.person_distance import DecisionRule, shortlist
from ml.identification.searches import FACES_PER_SEARCH, GalleryPeople, TemplateCache, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.base import Index
from ml.indexes.flat import FlatIndex
from ml.types import Ids, Rows
from papers.harness.photos import Photos

FPIR, STRANGERS, PHOTOS, PAIRS = 0.01, 1500, 3, 200_000
MAX_LEFT_OUT = 3000
DIM, NOISE = 64, 0.6
NAMED, AS_NAMED, BY_OWN_DISTANCE = "named", "nameless, as people with a name", "nameless, by their own distance"


@dataclass(frozen=True, eq=False)
class Trial:
    """A gallery, and what it is searched with.

    rows: (n, d) of the gallery; subjects: (n,) the person of each face, -1 for one without a name
    strangers: (S, d); second: (U, d) further photos of those who are there without a name
    """

    rows: Rows
    subjects: Ids
    strangers: Rows
    second: Rows


def draw_faces(people: int, seed: int) -> tuple[Rows, Ids]:
    """Draw unit rows of so many people, PHOTOS each, around centres of a normal distribution."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(people, DIM)), PHOTOS, axis=0)
    rows += NOISE * rng.normal(size=rows.shape)
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit, np.arange(people).repeat(PHOTOS)


def draw_trial(rows: Rows, people: Ids, named: int, nameless: int, seed: int) -> Trial:
    """Draw a gallery from photos. Strangers are those with the fewest photos, so that others have a second one."""
    rng = np.random.default_rng(seed)
    photos = {person: rng.permutation(np.flatnonzero(people == person)) for person in np.unique(people).tolist()}
    order = rng.permutation(np.array(list(photos), np.int64)).tolist()
    with_name = [person for person in order if len(photos[person]) >= PHOTOS][:named]
    others = sorted(set(order) - set(with_name), key=lambda person: (len(photos[person]), order.index(person)))
    strangers, without_name = others[:STRANGERS], others[STRANGERS:][::-1][:nameless]
    enrolled = [photos[person][:PHOTOS] for person in with_name]
    return Trial(
        rows[np.concatenate([*enrolled, [photos[person][0] for person in without_name]])],
        np.concatenate([np.repeat(with_name, PHOTOS), np.full(len(without_name), -1)]).astype(np.int64),
        rows[[photos[person][0] for person in strangers]],
        rows[[photos[person][1] for person in without_name if len(photos[person]) > 1]],
    )


@dataclass(frozen=True, eq=False)
class MeasuredGallery:
    """A gallery with the threshold that was measured in it."""

    index: Index
    people: GalleryPeople
    rule: DecisionRule
    threshold: PersonThreshold

    @classmethod
    def measure(cls, trial: Trial) -> "MeasuredGallery":
        """Measure the threshold as the service does: by searches without a person's own faces, and by pairs."""
        ids, named, rule = np.arange(len(trial.rows)), trial.subjects >= 0, DecisionRule()
        index = FlatIndex(trial.rows.shape[1])
        index.add(ids, trial.rows)
        people = GalleryPeople.from_rows(ids, trial.subjects, np.zeros(len(ids), np.bool_))
        probes = people.sample(people.is_named, MAX_LEFT_OUT, np.random.default_rng(0))
        searches = search_gallery(index, people, probes, rule)
        strangers = StrangerSearches.from_distances("leave-one-out", searches.stranger, searches.owners, len(ids))
        pairs = ImpostorDistances.of(sample_impostors(trial.rows[named], trial.subjects[named], PAIRS, 0))
        known = OpenSetCalibration(rule, (strangers,))
        threshold = known.threshold(FPIR, len(ids), (pairs,), NameCounts(int(named.sum()), int((~named).sum())))
        assert threshold is not None
        return cls(index, people, rule, threshold)

    def judge(self, queries: Rows) -> dict[str, NDArray[np.bool_]]:
        """Return for each of (Q, d) queries whether somebody is named, and whether a nameless face matches instead."""
        neighbours = self.index.search(queries, min(len(self.people.ids), FACES_PER_SEARCH))
        near = shortlist(np.where(neighbours.ids < 0, -1, self.people.owners[neighbours.ids]), neighbours.distances)
        nobody = np.full(len(queries), -1)
        template = TemplateCache(self.index, self.people).distances(queries, near.people, nobody)
        is_there, is_named = near.people >= 0, self.people.is_named[near.people]
        base = self.rule.base_distances(near.nearest, template)
        distances = self.rule.person_distances(base, is_there & is_named)
        passes = distances <= self.threshold.person_distance
        named = (passes & is_there & is_named).any(1)
        own = near.nearest <= self.threshold.nameless_distance
        return {
            NAMED: named,
            AS_NAMED: np.logical_and(~named, (passes & is_there & ~is_named).any(1)),
            BY_OWN_DISTANCE: np.logical_and(~named, (own & is_there & ~is_named).any(1)),
        }


def measure(trial: Trial) -> list[float]:
    """Return in percent: strangers who are named, or match by either rule, and second photos that match by either."""
    gallery = MeasuredGallery.measure(trial)
    strangers, second = gallery.judge(trial.strangers), gallery.judge(trial.second)
    shares = [strangers[NAMED], *(kind[rule] for kind in (strangers, second) for rule in (AS_NAMED, BY_OWN_DISTANCE))]
    return [100 * float(share.mean()) for share in shares]


def parse_with_recogniser(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Parse arguments with those that choose LFW by a recogniser in place of drawn vectors: see `read_faces`."""
    parser.add_argument("--recogniser", choices=RECOGNISERS, help="describes LFW; default: drawn vectors")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    return parser.parse_args(arguments)


def read_faces(args: argparse.Namespace) -> tuple[Rows, Ids] | None:
    """Return LFW's embeddings, (n, d), and (n,) people by the chosen recogniser; None for drawn vectors."""
    return FaceSets(Photos(args.data, args.cache), None).embed("lfw", args.recogniser) if args.recogniser else None


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=300)
    parser.add_argument("--nameless", type=int, nargs="+", default=[400, 1000, 4000])
    parser.add_argument("--seeds", type=int, default=5)
    return parse_with_recogniser(parser, arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    print("% of strangers: named | nameless, as people with a name; by their own distance | second photos: as; by")
    lfw = read_faces(args)
    for nameless in args.nameless:
        figures = []
        for seed in range(args.seeds):
            rows, people = lfw or draw_faces(args.people + nameless + STRANGERS, seed)
            figures.append(measure(draw_trial(rows, people, args.people, nameless, seed)))
        named, *shares = np.mean(figures, axis=0).tolist()
        texts = (f"{named:.2f}", f"{shares[0]:.2f}; {shares[1]:.2f}", f"{shares[2]:.1f}; {shares[3]:.1f}")
        print(f"{nameless:6d} nameless faces: " + " | ".join(texts))


if __name__ == "__main__":
    main()
