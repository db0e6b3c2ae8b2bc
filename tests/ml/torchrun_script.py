"""Run by `test_cnn_training` under torchrun: take three steps, then write a digest of the parameters and photos."""

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ml.cnn_training.crops import LabelledCrops
from ml.cnn_training.process_group import join_process_group
from ml.cnn_training.recipe import CnnRecipe
from ml.cnn_training.train import train
from ml.cnn_training.trainer import CnnTrainer


def main(out: Path) -> None:
    torch.set_num_threads(1)
    faces = np.random.default_rng(0).integers(0, 256, (32, 112, 112, 3), dtype=np.uint8)
    crops = LabelledCrops(faces, np.repeat(np.arange(8), 4))
    recipe = CnnRecipe(steps=3, hours=0, batch=4, held_out=0.25)
    with join_process_group("cpu") as group:
        assert group.size == 2
        trainer = CnnTrainer(crops, replace(recipe, seed=group.rank), group)  # the first start is used
        for step in range(3):
            trainer.step(step / 3)
        # batch statistics differ between processes, parameters do not; those of process 0 are written
        had = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters()))
        (out / f"{group.rank}.txt").write_text(f"{had.hexdigest()} {'-'.join(map(str, trainer.draw_batch()))}")
        train(crops, recipe, out, group, licence="CC0", trained="noise")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # gloo's threads now and then abort a process that ends on a busy machine, after all has been written
