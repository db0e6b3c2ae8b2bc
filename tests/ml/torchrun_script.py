"""What each process of `test_cnn_training` does under torchrun: three steps, then a digest of what it has and saw."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.process_group import crew
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.train import train
from ml.cnn_training.trainer import CnnTrainer


def main(out: Path) -> None:
    torch.set_num_threads(1)
    faces = np.random.default_rng(0).integers(0, 256, (32, 112, 112, 3), dtype=np.uint8)
    lesson = LabelledCrops(faces, np.repeat(np.arange(8), 4))
    recipe = CnnRecipe(steps=3, hours=0, batch=4, held_out=0.25)
    with crew("cpu") as us:
        assert us.size == 2
        course = CnnTrainer(lesson, replace(recipe, seed=us.rank), us)  # of other seeds: the first one's start is taken
        for step in range(3):
            course.learn(step / 3)
        # each keeps the running means of its own photos; the first one's are written
        had = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in course.taught.parameters()))
        (out / f"{us.rank}.txt").write_text(f"{had.hexdigest()} {'-'.join(map(str, course.mine()))}")
        train(lesson, recipe, out, us, licence="CC0", trained="noise")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
