"""CNN training: losses, batches, augmentation, held-out people and checkpoints, in one process and in two."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from ml.cnn_training.augmentation import Jitter, augment
from ml.cnn_training.batches import draw_by_person, draw_evenly
from ml.cnn_training.checkpoint import FILE_NAME, load_checkpoint, save_checkpoint
from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.heads import LAYERS, ContrastiveHead, MarginHead, TripletHead
from ml.cnn_training.process_group import ProcessGroup
from ml.cnn_training.recipe import CnnRecipe, Head
from ml.cnn_training.train import TrainingProgress, train
from ml.cnn_training.trainer import CnnTrainer
from ml.cnn_training.validation import evaluate_network, split_crops
from ml.descriptors.cnn import Cnn
from ml.errors import Corrupt, TooFewPairs, Unavailable, WrongShape
from ml.images import decode_png
from tests.gallery import crops
from tests.ml.tiny_cnn import tiny_cnn

ALONE = ProcessGroup(0, 1, torch.device("cpu"))
QUICK = CnnRecipe(steps=6, hours=0, every=1e-9, batch=8, held_out=0.25)
STILL = Jitter(*[0.0] * 11)
teach = partial(train, licence="CC0", trained="drawn faces")


@pytest.fixture(scope="module")
def labelled() -> LabelledCrops:
    shots = [(who, shot) for who in range(12) for shot in range(1 if who == 11 else 4)]
    faces = np.stack([decode_png(crops(who, 1000 * who + shot, 1.0)["colour"]) for who, shot in shots])
    return LabelledCrops(faces, np.array([3 * who for who, _ in shots], np.int64))


def weights(out: Path) -> bytes:
    return (out / "cnn.safetensors").read_bytes()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_the_margin_loss_is_its_equation_and_its_gradient_is_right(seed: int, margin: float) -> None:
    torch.manual_seed(seed)
    n, d, k, scale = (int(torch.randint(2, 7, ())) for _ in range(4))
    head = MarginHead(d, k, margin, scale).double()
    rows = torch.randn(n, d, dtype=torch.float64, requires_grad=True)
    people = torch.randint(k, (n,))
    losses = []
    for row, who in zip(rows.detach(), people.tolist(), strict=True):
        cosines = [float(row @ w / (row.norm() * w.norm())) for w in head.weights.detach()]
        exponentials = [np.exp(scale * (c - margin * (j == who))) for j, c in enumerate(cosines)]
        losses.append(-np.log(exponentials[who] / sum(exponentials)))
    assert head(rows, people).item() == pytest.approx(np.mean(losses), rel=1e-6)
    assert torch.autograd.gradcheck(lambda given: head(given, people), (rows,))


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_pairs_is_its_equation_and_its_gradient_is_right(seed: int) -> None:
    torch.manual_seed(seed)
    people = torch.tensor([2, 0, 2, 0, 1, 1, 2])
    rows = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    unit = rows.detach() / rows.detach().norm(dim=1, keepdim=True)
    exponentials = np.exp(5 * (unit @ unit.T).numpy())
    losses = [
        -np.log(exponentials[a, p] / (exponentials[a].sum() - exponentials[a, a]))
        for a in range(7)
        for p in range(7)
        if p != a and people[p] == people[a]
    ]
    assert ContrastiveHead(5.0)(rows, people).item() == pytest.approx(np.mean(losses), rel=1e-9)
    assert torch.autograd.gradcheck(lambda given: ContrastiveHead(5.0)(given, people), (rows,))


def test_a_softmax_behind_a_network_that_has_learned_begins_with_its_features(
    labelled: LabelledCrops, tmp_path: Path
) -> None:
    first = teach(labelled, replace(QUICK, head="pairs"), tmp_path, ALONE)
    trainer = CnnTrainer(labelled, QUICK, ALONE, first)
    rows = Cnn(manifest=str(first)).describe(labelled.crops[trainer.split.training])
    means = np.stack([rows[trainer.split.people == who].mean(0) for who in np.unique(trainer.split.people)])
    weights = dict(trainer.model.head.named_parameters())["weights"].detach().numpy()
    cosines = (weights * means).sum(1) / np.linalg.norm(weights, axis=1) / np.linalg.norm(means, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-4)


def test_the_triplet_loss_is_its_equation_behind_either_layer() -> None:
    torch.manual_seed(1)
    people, rows = torch.tensor([0, 0, 1, 1, 2, 2]), torch.randn(6, 5, dtype=torch.float64)
    for layer in LAYERS.values():
        head = TripletHead(layer(torch.randn(5, 3, dtype=torch.float64)), 0.4)
        head.prepare_step(0.5, torch.Generator().manual_seed(2))
        z = (rows / rows.norm(dim=1, keepdim=True)) @ head.layer.matrix.detach()
        losses = []
        for a, p in ((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)):
            near = float((z[a] - z[p]).square().sum())
            foes = [float((z[a] - z[n]).square().sum()) for n in range(6) if people[n] != people[a]]
            if harder := [foe for foe in foes if foe >= near]:
                losses.append(max(0.0, near - min(harder) + 0.4))
        assert head(rows, people).item() == pytest.approx(np.mean(losses), rel=1e-9)


@pytest.mark.parametrize("head", LAYERS)
def test_a_manifold_layer_starts_at_the_networks_features_and_is_saved_with_it(
    head: Head, labelled: LabelledCrops, tmp_path: Path
) -> None:
    first = teach(labelled, replace(QUICK, steps=2), tmp_path / "first", ALONE)
    recipe = replace(QUICK, head=head, width=16, batch=12, layer_rate=0.1)
    begun = CnnTrainer(labelled, replace(recipe, width=0), ALONE, first)
    assert begun.model.head.projection is not None
    before, held = Cnn(manifest=str(first)).describe(labelled.crops), begun.split.held_out
    turned = before @ begun.model.head.projection.detach().numpy()
    np.testing.assert_allclose(turned @ turned.T, before @ before.T, atol=1e-5)
    assert evaluate_network(begun.model.net, labelled, held, begun.model.head.projection).map == pytest.approx(
        evaluate_network(begun.model.net, labelled, held).map, abs=1e-3
    )
    made = teach(labelled, recipe, tmp_path / "then", ALONE, start=first)
    assert Cnn(manifest=str(made)).describe(labelled.crops).shape == (45, 16)
    state = torch.load(tmp_path / "then" / FILE_NAME, weights_only=True)["model"]
    assert not torch.equal(state["net.layers.0.weight"], begun.model.net.state_dict()["layers.0.weight"])
    if head == "stiefel":
        torch.testing.assert_close(state["head.layer.u"].T @ state["head.layer.u"], torch.eye(16), atol=1e-5, rtol=0)


def test_a_training_cannot_start_from_another_kind_of_network(labelled: LabelledCrops, tmp_path: Path) -> None:
    first = tiny_cnn(tmp_path, "casia")
    with pytest.raises(Corrupt, match="'casia', and 'light' was to start from it"):
        CnnTrainer(labelled, QUICK, ALONE, first)


def test_the_margin_rises_gradually() -> None:
    torch.manual_seed(0)
    head, rows, people = MarginHead(4, 3, 0.5, 8), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    losses = []
    for head.margin_share in (0.0, 0.5, 1.0):
        losses.append(float(head(rows, people).detach()))
    assert losses[0] < losses[1] < losses[2]


def test_without_jitter_faces_are_only_mirrored(labelled: LabelledCrops) -> None:
    faces = torch.from_numpy(labelled.crops[:16]).permute(0, 3, 1, 2) / 127.5 - 1
    made = augment(faces, torch.Generator().manual_seed(1), STILL)
    same = [torch.allclose(one, of, atol=1e-3) for one, of in zip(made, faces, strict=True)]
    turned = [torch.allclose(one, of.flip(2), atol=1e-3) for one, of in zip(made, faces, strict=True)]
    assert all(a != b for a, b in zip(same, turned, strict=True))
    assert 0 < sum(turned) < 16


def test_augmentation_depends_only_on_the_generator(labelled: LabelledCrops) -> None:
    faces = torch.from_numpy(labelled.crops[:4]).permute(0, 3, 1, 2) / 127.5 - 1
    one, again, other = (augment(faces, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert (one - other).abs().mean() > 0.02
    assert one.abs().max() <= 1
    assert (one - faces).abs().mean() < 0.5


@pytest.mark.parametrize("name", ["shift", "turn", "zoom", "exposure", "contrast", "light", "colour", "hidden", "grey"])
def test_each_change_is_seen(name: str, labelled: LabelledCrops) -> None:
    faces = torch.from_numpy(labelled.crops[:8]).permute(0, 3, 1, 2) / 127.5 - 1
    made, still = (
        augment(faces, torch.Generator().manual_seed(1), how) for how in (replace(STILL, **{name: 1}), STILL)
    )
    assert (made - still).abs().mean() > 0.01


def test_people_are_trained_on_or_held_out_and_those_with_one_photo_are_trained_on(labelled: LabelledCrops) -> None:
    for seed in range(5):
        made = split_crops(labelled, 0.25, seed)
        assert not set(labelled.people[made.training]) & set(labelled.people[made.held_out])
        assert len(made.training) + len(made.held_out) == len(labelled.people)
        assert 33 in labelled.people[made.training]
        assert sorted(set(made.people)) == list(range(len(set(labelled.people[made.training]))))


def test_too_few_people_are_refused_with_the_number_that_is_missing(labelled: LabelledCrops) -> None:
    with pytest.raises(TooFewPairs, match="4 people with two photos or more needed, 3 found"):
        split_crops(LabelledCrops(labelled.crops[:12], labelled.people[:12]), 0.25, 0)


@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_shows_each_photo_once_to_all_processes_together(seed: int) -> None:
    parts = [draw_evenly(40, 4, seed=seed, step=step, rank=rank, size=2) for step in range(5, 10) for rank in (0, 1)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))
    again = [draw_evenly(40, 4, seed=seed, step=step, rank=rank, size=2) for step in range(5, 10) for rank in (0, 1)]
    assert np.array_equal(parts, again)
    other = [draw_evenly(40, 4, seed=seed, step=step, rank=rank, size=2) for step in range(5) for rank in (0, 1)]
    assert not np.array_equal(parts, other)


def test_photos_repeat_if_a_batch_is_larger_than_their_number() -> None:
    assert sorted(set(draw_evenly(5, 12, seed=0, step=3).tolist())) == list(range(5))
    assert len(draw_evenly(5, 12, seed=0, step=3)) == 12


def test_a_batch_by_person_holds_several_photos_of_each_and_nobody_with_a_single_photo() -> None:
    people = np.array([5, 3, 3, 5, 5, 9, 3, 7, 7, 5, 5])
    seen: set[int] = set()
    for step in range(3):
        for rank in (0, 1):
            batch = draw_by_person(people, 4, 4, seed=1, step=step, rank=rank, size=2)
            assert len(set(people[batch])) == 1
            assert len(set(batch.tolist())) == min(4, (people == people[batch[0]]).sum())
            seen |= set(people[batch].tolist())
    assert 9 not in seen
    whole = draw_by_person(people, 12, 4, seed=1, step=0)
    assert sorted(people[whole].tolist()) == [3] * 4 + [5] * 4 + [7] * 4


def test_a_network_learns_whose_photos_it_sees(labelled: LabelledCrops, tmp_path: Path) -> None:
    recipe = replace(QUICK, steps=30, batch=16, margin=0.0, scale=8.0, every=1000, rate=5e-3)
    losses: list[float] = []
    made = teach(labelled, recipe, tmp_path, ALONE, report=lambda r: losses.append(r.state.loss))
    assert losses[-1] < 0.7 * losses[1]
    held = split_crops(labelled, 0.25, 0).held_out
    described = Cnn(manifest=str(made)).describe(labelled.crops[held])
    assert described.shape == (12, 128)
    assert "drawn faces; light, softmax, 480 photos seen" in made.read_text()


def test_photos_of_held_out_people_do_not_affect_the_training(labelled: LabelledCrops, tmp_path: Path) -> None:
    teach(labelled, QUICK, tmp_path / "a", ALONE)
    made = split_crops(labelled, QUICK.held_out, QUICK.seed)
    held, poisoned = made.held_out, labelled.crops.copy()
    poisoned[held] = np.random.default_rng(0).integers(0, 256, poisoned[held].shape, dtype=np.uint8)
    teach(LabelledCrops(poisoned, labelled.people), QUICK, tmp_path / "b", ALONE)
    last = [torch.load(tmp_path / x / FILE_NAME, weights_only=True)["model"] for x in "ab"]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_the_same_seed_gives_the_same_network_and_another_another(labelled: LabelledCrops, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        teach(labelled, replace(QUICK, steps=2, seed=seed), tmp_path / name, ALONE)
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


class Killed(Exception):
    pass


def killed_after(steps: int) -> Callable[[TrainingProgress], None]:
    def report(progress: TrainingProgress) -> None:
        if progress.state.step == steps:
            raise Killed

    return report


@pytest.mark.parametrize("head", get_args(Head))
def test_a_killed_training_resumes_to_the_same_result(head: Head, labelled: LabelledCrops, tmp_path: Path) -> None:
    recipe = replace(QUICK, head=head)
    teach(labelled, recipe, tmp_path / "whole", ALONE)
    with pytest.raises(Killed):
        teach(labelled, recipe, tmp_path / "cut", ALONE, report=killed_after(3))
    steps: list[int] = []
    teach(labelled, recipe, tmp_path / "cut", ALONE, resume=True, report=lambda r: steps.append(r.state.step))
    assert steps == [3, 4, 5, 6]
    whole, cut = (torch.load(tmp_path / x / FILE_NAME, weights_only=True) for x in ("whole", "cut"))
    assert all(torch.equal(whole["model"][name], cut["model"][name]) for name in whole["model"])
    assert whole["state"]["best"] == cut["state"]["best"]
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    labelled: LabelledCrops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint({"step": 1}, QUICK, tmp_path)

    def half(state: object, file: object) -> None:
        file.write(b"half of it")  # type: ignore[attr-defined]
        raise Killed

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        save_checkpoint({"step": 2}, QUICK, tmp_path)
    assert load_checkpoint(QUICK, tmp_path) == {"step": 1}


def test_a_training_that_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="without --resume"):
        load_checkpoint(QUICK, tmp_path)
    save_checkpoint({}, QUICK, tmp_path)
    assert load_checkpoint(replace(QUICK, hours=2, steps=9, patience=3), tmp_path) == {}
    with pytest.raises(WrongShape, match="net, batch of the resumed training"):
        load_checkpoint(replace(QUICK, net="casia", batch=9), tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"no checkpoint")
    with pytest.raises(Corrupt, match="cannot be read"):
        load_checkpoint(QUICK, tmp_path)


def test_training_ends_early_without_improvement_on_held_out_people(labelled: LabelledCrops, tmp_path: Path) -> None:
    steps: list[int] = []
    recipe = replace(QUICK, steps=400, patience=2, rate=1e-12, decay=0.0)
    teach(labelled, recipe, tmp_path, ALONE, report=lambda r: steps.append(r.state.step))
    assert steps[-1] < 40


def test_training_ends_by_the_clock(labelled: LabelledCrops, tmp_path: Path) -> None:
    reports: list[TrainingProgress] = []
    recipe = replace(QUICK, steps=0, hours=2 / 3600, every=1000)
    teach(labelled, recipe, tmp_path, ALONE, report=reports.append)
    assert 2 <= reports[-1].state.seconds < 20
    assert reports[-1].score is not None


@pytest.mark.parametrize(
    "wrong",
    [{"net": "deep"}, {"head": "arc"}, {"hours": 0.0}, {"batch": 1}, {"head": "qconv", "batch": 7}, {"margin": -1.0}],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongShape):
        CnnRecipe(**wrong)  # type: ignore[arg-type]


def test_validation_leaves_the_network_in_training_mode(labelled: LabelledCrops) -> None:
    trainer = CnnTrainer(labelled, QUICK, ALONE)
    before = [one.clone() for one in trainer.model.net.state_dict().values()]
    score = evaluate_network(trainer.model.net, labelled, trainer.split.held_out)
    assert 0 < score.map <= 1
    assert 0 <= score.first <= 1
    assert trainer.model.net.training
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.net.state_dict().values(), strict=True))


def test_two_processes_learn_one_network_from_different_photos(tmp_path: Path) -> None:
    """Under torchrun, with gloo."""
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launched, "-m", "tests.ml.torchrun_script", str(tmp_path)], check=True, timeout=250)
    one, other = ((tmp_path / f"{rank}.txt").read_text().split() for rank in (0, 1))
    assert one[0] == other[0], "their weights differ"
    assert one[1] != other[1], "they saw the same photos"
    assert Cnn(manifest=str(tmp_path / "cnn.json")).dim == 128
