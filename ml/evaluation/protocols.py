"""Who is fitted on, who is searched for, and among whom. A protocol is index arrays into one list of photos.

Files of a protocol folder, LFW's or one's own, naming photos `Name/Name_0001.jpg`:
    queries-K.txt   one photo a line: the queries; all other photos are gallery *and* training (closed set, 002, 003)
    disjoint-K.txt  `train NAME` and `query PHOTO` lines: fitted on those people alone; the gallery is every other
                    photo of everybody else
    pairs.txt       LFW's view 2, asked for as `view2:F`: the pairs of fold F are judged, all else may be fitted on
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt, WrongShape
from ml.evaluation.verification_pairs import VerificationPairs, read_folds
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class Protocol:
    """Index arrays into the photos, each rising and int64.

    people: (N,) the number of each photo's person, -1 unknown (a distractor)
    training: who may be fitted on; never a query
    queries, gallery: who is searched for, and among whom; apart from one another; both empty for verification
    pairs, training_pairs: verification only; those judged and those that thresholds may be chosen on
    missing: photos that the protocol names and the list does not hold (a face that was not found, say)
    open_set: whether some queries are of people who are not in the gallery, on purpose
    """

    name: str
    people: Ids
    training: Ids
    queries: Ids
    gallery: Ids
    pairs: VerificationPairs = field(default_factory=VerificationPairs)
    training_pairs: VerificationPairs = field(default_factory=VerificationPairs)
    missing: tuple[str, ...] = ()
    open_set: bool = False

    @property
    def training_mask(self) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.people), bool)
        mask[self.training] = True
        return mask

    def narrowed(self, training: Ids) -> "Protocol":
        """With these alone of the training side, and the pairs that lie whole among them."""
        kept = np.intersect1d(self.training, training)
        inside = np.isin(self.training_pairs.index, kept).all(axis=1)
        pairs = VerificationPairs(self.training_pairs.index[inside], self.training_pairs.same[inside])
        return replace(self, training=kept, training_pairs=pairs)


def person_of(photo: str) -> str:
    """`Name` of `Name/Name_0001.jpg`."""
    return photo.split("/", 1)[0]


def people_of(photos: Sequence[str]) -> Ids:
    """(N,) the number of each photo's person, by the sorted names; -1 for a photo that lies in no folder."""
    names = {name: i for i, name in enumerate(sorted({person_of(p) for p in photos if "/" in p}))}
    return np.array([names[person_of(p)] if "/" in p else -1 for p in photos], np.int64)


def read(protocol: str, folder: Path, photos: Sequence[str]) -> Protocol:
    """The protocol of that name (`queries-0`, `disjoint-0.txt`, `view2:3`) for these photos.

    Raises Corrupt where the file cannot be read or names nothing that is here.
    """
    if protocol.startswith("view2:"):
        return _view2(protocol, folder, photos)
    path = folder / f"{protocol.removesuffix('.txt')}.txt"
    try:
        lines = [row.strip() for row in path.read_text("utf-8").splitlines() if row.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"the protocol {path.name} cannot be read: {error}") from error
    fitted = {row.removeprefix("train ") for row in lines if row.startswith("train ")}
    named = [row.removeprefix("query ") for row in lines if not row.startswith("train ")]
    return _retrieval(path.stem, photos, named, fitted)


def _retrieval(name: str, photos: Sequence[str], named: Sequence[str], fitted: set[str]) -> Protocol:
    number_of = {photo: i for i, photo in enumerate(photos)}
    queries = np.unique(np.array([number_of[q] for q in named if q in number_of], np.int64))
    if not len(queries):
        raise Corrupt(f"{name} names {len(named)} queries and none of them is among these {len(photos)} photos")
    others = np.setdiff1d(np.arange(len(photos)), queries)
    inside = np.array([person_of(p) in fitted for p in photos], bool)
    if inside[queries].any():
        raise Corrupt(f"{name} names people both to fit on and to search for")
    return Protocol(
        name,
        people_of(photos),
        training=others[inside[others]] if fitted else others,
        queries=queries,
        gallery=others[~inside[others]],
        missing=tuple(q for q in named if q not in number_of),
    )


def _view2(protocol: str, folder: Path, photos: Sequence[str]) -> Protocol:
    folds = read_folds(folder / "pairs.txt", photos)
    number = protocol.removeprefix("view2:")
    if not number.isdigit() or not int(number) < len(folds):
        raise Corrupt(f"{protocol} is none of the folds view2:0 to view2:{len(folds) - 1}")
    fold = folds.pop(int(number))
    judged = {person_of(name) for name in fold.named}
    training = np.flatnonzero([person_of(p) not in judged for p in photos])
    empty = np.empty(0, np.int64)
    return Protocol(
        protocol,
        people_of(photos),
        training,
        queries=empty,
        gallery=empty,
        pairs=fold.pairs,
        training_pairs=VerificationPairs.of([f.pairs for f in folds]),
        missing=fold.missing,
    )


def held_out_people(
    people: Ids, fraction: float, *, seed: int = 0, photos: int = 2, distractors: Ids | None = None
) -> Protocol:
    """Splits by person for a training's report: nobody who is searched for was fitted on.

    people: (N,) numbers, -1 unknown: those stay in training. About `fraction` of the people who have `photos` or
    more is held out; one random photo of each is a query, the rest of theirs and the `distractors` (indexes) the
    gallery. Raises WrongShape where that holds out nobody, or everybody.
    """
    numbers, counts = np.unique(people[people >= 0], return_counts=True)
    eligible = numbers[counts >= max(photos, 2)]
    draw = np.random.default_rng(seed)
    out = draw.permutation(eligible)[: round(fraction * len(eligible))]
    if not len(out) or len(out) == len(numbers):
        raise WrongShape("people with enough photos", f"such that {fraction:.0%} is some but not all", len(eligible))
    queries = np.sort([draw.choice(np.flatnonzero(people == person)) for person in out])
    held = np.flatnonzero(np.isin(people, out))
    extra = np.empty(0, np.int64) if distractors is None else distractors
    gallery = np.union1d(np.setdiff1d(held, queries), extra)
    training = np.setdiff1d(np.arange(len(people)), np.union1d(held, extra))
    return Protocol(f"held-out-{fraction:g}-{seed}", people, training, queries, gallery)


def open_set_people(people: Ids, fraction: float, *, seed: int = 0) -> Protocol:
    """`held_out_people`, and then half of those held out are not enrolled: a photo of each searches for nobody.

    Raises WrongShape where fewer than four people are held out.
    people: (N,).
    """
    closed = held_out_people(people, fraction, seed=seed)
    if len(closed.queries) < 4:
        raise WrongShape("people held out", "four or more, half to be enrolled", len(closed.queries))
    strangers = np.random.default_rng((seed, 1)).permutation(people[closed.queries])[: len(closed.queries) // 2]
    gallery = closed.gallery[~np.isin(people[closed.gallery], strangers)]
    return replace(closed, name=f"open-set-{fraction:g}-{seed}", gallery=gallery, open_set=True)
