from pathlib import Path

import numpy as np
import pytest

from ml.errors import Corrupt, WrongShape
from ml.evaluation.protocols import Protocol, held_out_people, number_people, read
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import n_call

LFW = Path(__file__).resolve().parents[3] / "shared" / "data" / "lfw-protocol"
with_lfw = pytest.mark.skipif(not LFW.exists(), reason="LFW's protocol files are not beside the checkout")


def photos_of(counts: dict[str, int]) -> list[str]:
    return [f"{name}/{name}_{i:04d}.jpg" for name, n in counts.items() for i in range(1, n + 1)]


@pytest.fixture
def photos() -> list[str]:
    return photos_of({"Ann": 3, "Bob": 2, "Cid": 1, "Dot": 5})


def lfw_photos() -> list[str]:
    """Return all names of LFW, from the counts in its list of people."""
    lines = [fields.split("\t") for fields in (LFW / "people.txt").read_text().splitlines()]
    return sorted(photos_of({fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}))


def chosen(protocol: Protocol, photos: list[str], part: str) -> list[str]:
    return [photos[i] for i in getattr(protocol, part)]


def test_in_the_closed_set_protocol_gallery_and_training_are_all_photos_but_the_queries(
    tmp_path: Path, photos: list[str]
) -> None:
    (tmp_path / "queries-0.txt").write_text("Ann/Ann_0002.jpg\nDot/Dot_0005.jpg\n")
    protocol = read("queries-0.txt", tmp_path, photos)
    assert chosen(protocol, photos, "queries") == ["Ann/Ann_0002.jpg", "Dot/Dot_0005.jpg"]
    assert protocol.gallery.tolist() == protocol.training.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert not protocol.training_mask[protocol.queries].any()


def test_in_the_disjoint_protocol_no_query_person_is_in_training(tmp_path: Path, photos: list[str]) -> None:
    (tmp_path / "disjoint-0.txt").write_text("train Ann\ntrain Cid\nquery Dot/Dot_0001.jpg\n")
    protocol = read("disjoint-0", tmp_path, photos)
    assert {p.split("/")[0] for p in chosen(protocol, photos, "training")} == {"Ann", "Cid"}
    assert {p.split("/")[0] for p in chosen(protocol, photos, "gallery")} == {"Bob", "Dot"}
    assert len(protocol.gallery) == 6


def test_view_2_tests_one_fold_and_trains_on_other_people(tmp_path: Path) -> None:
    photos = photos_of({"Ann": 2, "Bob": 2, "Cid": 2, "Dot": 2, "Eve": 1})
    (tmp_path / "pairs.txt").write_text("2\t1\nAnn\t1\t2\nAnn\t1\tBob\t2\nCid\t1\t2\nCid\t2\tDot\t1\n")
    protocol = read("view2:0", tmp_path, photos)
    assert protocol.pairs.index.tolist() == [[0, 1], [0, 3]]
    assert protocol.pairs.same.tolist() == [True, False]
    assert protocol.training_pairs.index.tolist() == [[4, 5], [5, 6]]
    assert {p.split("/")[0] for p in chosen(protocol, photos, "training")} == {"Cid", "Dot", "Eve"}


def test_photos_that_are_not_there_are_named(tmp_path: Path, photos: list[str]) -> None:
    (tmp_path / "queries-0.txt").write_text("Ann/Ann_0002.jpg\nZoe/Zoe_0001.jpg\n")
    (tmp_path / "pairs.txt").write_text("1\t1\nAnn\t1\t2\nAnn\t1\tZoe\t2\n")
    assert read("queries-0", tmp_path, photos).missing == ("Zoe/Zoe_0001.jpg",)
    view2 = read("view2:0", tmp_path, photos)
    assert (view2.missing, len(view2.pairs.same)) == (("Zoe/Zoe_0002.jpg",), 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("queries-0", "Zoe/Zoe_0001.jpg\n", "none of them is among"),
        ("disjoint-0", "train Ann\nquery Ann/Ann_0001.jpg\n", "both for training and as queries"),
        ("disjoint-1", None, "cannot be read"),
        ("view2:0", None, "cannot be read"),
    ],
)
def test_a_bad_protocol_is_refused(
    tmp_path: Path, photos: list[str], name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises(Corrupt, match=message):
        read(name, tmp_path, photos)


def test_pairs_that_are_too_few_or_a_fold_that_is_not_there_are_refused(tmp_path: Path, photos: list[str]) -> None:
    (tmp_path / "pairs.txt").write_text("1\t1\nAnn\t1\t2\nAnn\t1\tBob\t2\n")
    with pytest.raises(Corrupt, match="view2:0 to view2:0"):
        read("view2:1", tmp_path, photos)
    (tmp_path / "pairs.txt").write_text("10\t300\nAnn\t1\t2\n")
    with pytest.raises(Corrupt, match="contains 1"):
        read("view2:1", tmp_path, photos)


def test_held_out_people_are_split_by_person_and_by_seed() -> None:
    people = np.array([-1, -1, *np.repeat(np.arange(50), 4), 50, 51])
    protocol = held_out_people(people, 0.2, seed=1, distractors=np.array([0]))
    assert len(protocol.queries) == 10
    assert len(np.unique(people[protocol.queries])) == 10
    assert not np.isin(people[protocol.training], people[protocol.queries]).any()
    assert set(people[protocol.gallery]) == {-1, *people[protocol.queries]}
    assert not np.isin(protocol.queries, protocol.gallery).any()
    assert 1 in protocol.training
    assert 0 not in protocol.training
    assert np.array_equal(protocol.queries, held_out_people(people, 0.2, seed=1).queries)
    assert not np.array_equal(protocol.queries, held_out_people(people, 0.2, seed=2).queries)


def test_holding_out_needs_people_with_two_photos() -> None:
    with pytest.raises(WrongShape, match="enough photos"):
        held_out_people(np.arange(10), 0.5)


def test_a_photo_outside_any_folder_has_no_person() -> None:
    assert number_people(["B/B_0001.jpg", "x.jpg", "A/A_0001.jpg"]).tolist() == [1, -1, 0]


@with_lfw
@pytest.mark.parametrize("draw", range(10))
def test_lfw_has_423_queries_among_12810(draw: int) -> None:
    photos = lfw_photos()
    assert len(photos) == 13_233
    protocol = read(f"queries-{draw}", LFW, photos)
    assert (len(protocol.queries), len(protocol.gallery), len(protocol.training)) == (423, 12_810, 12_810)
    assert not np.isin(protocol.queries, protocol.gallery).any()
    assert len(np.unique(protocol.people[protocol.queries])) == 423
    assert np.bincount(protocol.people)[protocol.people[protocol.queries]].min() == 5


@with_lfw
def test_lfw_disjoint_is_216_queries_among_6442_strangers() -> None:
    protocol = read("disjoint-0", LFW, lfw_photos())
    assert (len(protocol.queries), len(protocol.gallery)) == (216, 6442)
    assert not np.isin(
        protocol.people[protocol.training], protocol.people[np.r_[protocol.queries, protocol.gallery]]
    ).any()


@with_lfw
def test_lfw_view_2_has_ten_folds_of_600_pairs() -> None:
    protocol = read("view2:9", LFW, lfw_photos())
    assert (len(protocol.pairs.same), protocol.pairs.same.sum(), len(protocol.training_pairs.same)) == (600, 300, 5400)
    assert not np.isin(protocol.people[protocol.pairs.index], protocol.people[protocol.training]).any()


@with_lfw
def test_shuffled_names_give_chance() -> None:
    photos = lfw_photos()
    protocol = read("queries-0", LFW, photos)
    scores = np.random.default_rng(0).permutation(len(photos)).astype(np.float32)[:, None]
    hits = {k: n_call(rank_protocol(scores, protocol), k).mean() for k in (2, 5, 10, 20)}
    rng = np.random.default_rng(1)
    for _ in range(7):
        shuffled = rank_protocol(rng.normal(size=(len(photos), 4)).astype(np.float32), protocol)
        hits = {k: v + n_call(shuffled, k).mean() for k, v in hits.items()}
    for k, chance in {2: 0.0020, 5: 0.0051, 10: 0.0100, 20: 0.0194}.items():
        error = (chance / (8 * 423)) ** 0.5
        assert hits[k] / 8 == pytest.approx(chance, abs=4 * error), k
