"""Evaluation protocols: which photos may be learned from, which are queries, and which are the gallery.

A protocol holds indexes into one list of photos. A protocol folder has these files, in which photos are named
`Name/Name_0001.jpg`:
    queries-K.txt   one query per line; all other photos are both gallery *and* training set (closed set, 002, 003)
    disjoint-K.txt  lines `train NAME` and `query PHOTO`: only those people may be learned from; the gallery is every
                    other photo of all other people
    pairs.txt       LFW's view 2; fold F has the name `view2:F`. Its pairs are tested, all other photos may be learned
                    from.
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
    """A protocol: int64 indexes into the photos, each array rising.

    people: (N,) person of each photo, -1 if unknown (a distractor)
    training: photos that may be learned from; never a query
    queries, gallery: photos that are searched for, and among which; disjoint; both empty for verification
    pairs, training_pairs: for verification, the pairs that are tested, and those on which thresholds may be chosen
    missing: photos that the protocol names but the list lacks, such as photos in which no face was found
    open_set: whether some queries are of people who are left out of the gallery on purpose
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
        """Return the protocol with only these (n,) training photos, and the training pairs among them."""
        kept = np.intersect1d(self.training, training)
        inside = np.isin(self.training_pairs.index, kept).all(axis=1)
        pairs = VerificationPairs(self.training_pairs.index[inside], self.training_pairs.same[inside])
        return replace(self, training=kept, training_pairs=pairs)


def person_of(photo: str) -> str:
    """Return `Name` for the photo `Name/Name_0001.jpg`."""
    return photo.split("/", 1)[0]


def number_people(photos: Sequence[str]) -> Ids:
    """Number the people of N photos in the order of their names: (N,). -1 for a photo that is not in a folder."""
    names = {name: i for i, name in enumerate(sorted({person_of(p) for p in photos if "/" in p}))}
    return np.array([names[person_of(p)] if "/" in p else -1 for p in photos], np.int64)


def read(protocol: str, folder: Path, photos: Sequence[str]) -> Protocol:
    """Read the protocol of this name (`queries-0`, `disjoint-0.txt`, `view2:3`) for these photos.

    Raises Corrupt if the file cannot be read, or names none of the photos.
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
        raise Corrupt(f"{name} names {len(named)} queries, and none of them is among these {len(photos)} photos")
    others = np.setdiff1d(np.arange(len(photos)), queries)
    inside = np.array([person_of(p) in fitted for p in photos], bool)
    if inside[queries].any():
        raise Corrupt(f"{name} names people both for training and as queries")
    return Protocol(
        name,
        number_people(photos),
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
        number_people(photos),
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
    """Split by person, so that nobody is both learned from and searched for.

    About `fraction` of the people with `photos` or more photos are held out. One random photo of each of them is a
    query; their other photos and the `distractors` are the gallery.
    people: (N,) person of each photo; photos of unknown people (-1) stay in training; distractors: (M,) indexes
    Raises WrongShape if this would hold out nobody or everybody.
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
    """Split like `held_out_people`, but leave half of the held-out people out of the gallery, as strangers.

    people: (N,) person of each photo. Raises WrongShape if fewer than four people are held out.
    """
    closed = held_out_people(people, fraction, seed=seed)
    if len(closed.queries) < 4:
        raise WrongShape("people held out", "four or more, half to be enrolled", len(closed.queries))
    strangers = np.random.default_rng((seed, 1)).permutation(people[closed.queries])[: len(closed.queries) // 2]
    gallery = closed.gallery[~np.isin(people[closed.gallery], strangers)]
    return replace(closed, name=f"open-set-{fraction:g}-{seed}", gallery=gallery, open_set=True)
