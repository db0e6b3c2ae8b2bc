"""How often strangers are named as somebody who is enrolled after the measurement, and how often new people are hubs.

    python -m benchmarks.new_hubs [--people 600] [--seeds 10] [--recogniser NAME --data DATA --cache DIR]

A gallery of people with three photos each, and 400 faces without a name, is measured at a rate of 1 %. Then a tenth as
many ordinary people are enrolled. Neither should be taken for hubs (`ml.identification.new_hubs`). Beside them, the
mean of all embeddings is enrolled as somebody, who should be. Faces are drawn vectors of 64 numbers, whose mean is
not 0, or those of LFW by a recogniser: see `benchmarks.open_set_rules`.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.nameless_faces import PHOTOS, MeasuredGallery, Trial, draw_faces, draw_trial
from benchmarks.open_set_rules import RECOGNISERS, FaceSets
from ml.distances import EUCLIDEAN
from ml.identification.new_hubs import Level, NewHubs, StrangerProbes
from ml.types import Ids, Rows
from papers.harness.photos import Photos

FPIR, STRANGERS, NAMELESS, PROBES = 0.01, 1500, 400, 1000
OFFSET = 0.15


def measure(rows: Rows, people: Ids, enrolled: int, seed: int) -> list[float]:
    """Return hubs among named and nameless faces; whether the middle is one; % of strangers named as it, if it is not.

    rows: (n, d) of (n,) people, of whom so many are enrolled
    """
    later = enrolled // 10
    trial = draw_trial(rows, people, enrolled + later, NAMELESS, seed)
    is_measured = (np.arange(len(trial.rows)) < PHOTOS * enrolled) | (trial.subjects < 0)
    gallery = MeasuredGallery.measure(
        Trial(trial.rows[is_measured], trial.subjects[is_measured], trial.strangers, trial.second)
    )
    threshold = gallery.threshold
    level = Level(FPIR, threshold.person_distance, threshold.nameless_distance, gallery.rule)
    owners = np.where(trial.subjects < 0, 2 * np.arange(len(trial.rows)) + 1, 2 * trial.subjects)
    probes = StrangerProbes.draw(gallery.index, gallery.people, owners[is_measured], PROBES)
    checked = ~is_measured | (trial.subjects < 0)
    ordinary = NewHubs(probes).add(trial.rows[checked], owners[checked], EUCLIDEAN, [level]).find(together=True)
    middle = trial.rows[is_measured].mean(0, keepdims=True)
    middle /= np.linalg.norm(middle)
    nobody = np.array([2 * int(people.max()) + 2], np.int64)
    is_hub = bool(NewHubs(probes).add(middle, nobody, EUCLIDEAN, [level]).find(together=True))
    subjects = np.append(trial.subjects[is_measured], people.max() + 1)
    with_middle = MeasuredGallery.measure(
        Trial(np.concatenate([trial.rows[is_measured], middle]), subjects, trial.strangers, trial.second)
    )
    unmeasured = MeasuredGallery(with_middle.index, with_middle.people, gallery.rule, threshold)
    named = [100 * float(one.judge(trial.strangers)["named"].mean()) for one in (gallery, unmeasured, with_middle)]
    hubs = np.array(sorted(ordinary), np.int64)
    return [float((hubs % 2 == 0).sum()), float((hubs % 2 == 1).sum()), float(is_hub), *named]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--recogniser", choices=RECOGNISERS, help="describes LFW; default: drawn vectors")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops and embeddings")
    args = parser.parse_args(arguments)
    lfw = FaceSets(Photos(args.data, args.cache), None).embed("lfw", args.recogniser) if args.recogniser else None
    figures = []
    for seed in range(args.seeds):
        rows, people = lfw or draw_faces(2 * args.people + NAMELESS + STRANGERS, seed)
        figures.append(measure(rows + (0 if lfw else OFFSET), people, args.people, seed))
    named, nameless, middle, *shares = np.mean(figures, axis=0).tolist()
    print(f"taken for hubs: {named:.2f} of {args.people // 10} new people, {nameless:.2f} of {NAMELESS} nameless faces")
    print(f"the middle is taken for a hub in {100 * middle:.0f} % of {args.seeds} galleries")
    print("% of strangers named: {:.2f} before, {:.2f} with the middle, {:.2f} measured again".format(*shares))


if __name__ == "__main__":
    main()
