"""Plant faults into a gallery, and count how many `likeness doctor` finds, and what else it reports.

    python -m benchmarks.planted_faults [--data PATH ... --cache FILE [--people N]] [--seeds 5] [--count 20]
        [--min-photos 2] [--search-everybody] [--json FILE]

PATH: a folder, tar or zip of person/photo; without it, people are drawn as embeddings. Each seed plants `count` faults
of each kind into a new collection, each into people of their own, and examines it:

    duplicate            some of the photos of a person get another name
    mixture              two people get one name
    wrong_name           a photo of a person gets the name of another person
    blend                a subject is added whose only embedding is the mean of those of five people who look alike
    strangers added      a person gets a face each of eight people, whose other faces have no name
    poor_face            a photo is blurred, made small, or made pale, by so much that enrolment still accepts it

The first three choose people with `--min-photos` photos or more. Blends and added strangers are to be reported as
`named_for_strangers`. A fault is found if the report has it, and listed if it is among the 50 of its kind that the
report lists. What is reported besides is about subjects of other planted faults, or about others. That may be right
too, since the data has faults of its own: `before` counts what is also reported without planted faults.
`--search-everybody` searches for all faces by name, not for 2,000.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from sqlalchemy import update

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import reading, writing
from app.db.tables import Face, Job
from app.queue.jobs import enqueue
from app.queue.messages import ExamineGallery
from app.resources import open_resources
from benchmarks.drawn_faces import DrawnFaces
from benchmarks.fault_planting import BLEND, STRANGERS_ADDED, FaceSet, Fault, FaultyGallery, plant_faults
from benchmarks.photo_faces import PhotoFiles
from ml.identification import changed_galleries
from ml.identification.changed_galleries import MAX_SEARCHES
from ml.model import Model
from tests.rows import GalleryWriter
from workers.discovery import findings
from workers.worker import Worker

KINDS = ("duplicate", "mixture", "wrong_name", "named_for_strangers", "poor_face")
PLANTED = ("duplicate", "mixture", "wrong_name", BLEND, STRANGERS_ADDED, "poor_face")
"""The kinds, and the ways of the kind that has two."""


class Score(NamedTuple):
    """How one kind fared. related, others: reported besides, about subjects of other planted faults or about others

    before: of the others, how many are reported without planted faults too
    """

    planted: int
    found: int
    listed: int
    related: int
    others: int
    before: int


def examine(model: Model, gallery: FaultyGallery, max_searches: int = MAX_SEARCHES) -> list[Fault]:
    """Write a gallery into a new home, examine it, and return all findings, the surest of each kind first."""
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), default_recogniser="lbp")
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            ids = write_gallery(GalleryWriter(resources).make(model), model, gallery)
            with writing(resources.database) as session:
                job = enqueue(session, ExamineGallery(collection=GalleryWriter.collection)).id
            with (
                patch.object(findings, "MAX_FINDINGS_PER_KIND", sys.maxsize),
                patch.object(changed_galleries, "MAX_SEARCHES", max_searches),
            ):
                Worker(resources, ExamineGallery.queue).step()
            with reading(resources.database) as session:
                ended = session.get_one(Job, job)
                report = ended.result
    if report is None:
        raise RuntimeError(f"the examination has failed: {ended.problem}")
    positions = {face: position for position, face in enumerate(ids)}
    return [
        Fault(f["kind"], frozenset(f["subjects"]), frozenset(positions[face] for face in f["faces"]))
        for f in report["findings"]
    ]


def write_gallery(writer: GalleryWriter, model: Model, gallery: FaultyGallery) -> list[str]:
    """Enrol the faces with their quality, and return their ids."""
    ids = writer.add({model.id: np.stack([face.row for face in gallery.faces])}, gallery.names)
    qualities = zip(writer.pks, (face.quality for face in gallery.faces), strict=True)
    with writing(writer.resources.database) as session:
        session.execute(update(Face), [{"pk": pk, "quality": quality} for pk, quality in qualities])
    return ids


def score(faults: Sequence[Fault], found: Sequence[Fault], before: Sequence[Fault]) -> dict[str, Score]:
    """Compare the planted faults with the findings, and those with the findings without planted faults.

    Returns a score for each of PLANTED. What is reported besides is the same for both ways of a kind.
    """
    scores, subjects = {}, frozenset[str]().union(*(fault.subjects for fault in faults))
    for name in PLANTED:
        planted = [fault for fault in faults if (fault.way or fault.kind) == name]
        kind = name if name in KINDS else "named_for_strangers"
        reported = [finding for finding in found if finding.kind == kind]
        besides = [finding for finding in reported if not any(fault.is_found_by(finding) for fault in faults)]
        others = [finding for finding in besides if not finding.subjects & subjects]
        in_report, in_list = [
            sum(any(fault.is_found_by(finding) for finding in part) for fault in planted)
            for part in (reported, reported[: findings.MAX_FINDINGS_PER_KIND])
        ]
        related, known = len(besides) - len(others), len(set(others) & set(before))
        scores[name] = Score(len(planted), in_report, in_list, related, len(others), known)
    return scores


def measure(
    source: FaceSet, count: int, seeds: int, min_photos: int = 2, max_searches: int = MAX_SEARCHES
) -> list[dict[str, Score]]:
    """Return the scores of each seed, by kind."""
    before = examine(source.model, FaultyGallery(list(source.names), list(source.faces)), max_searches)
    scores = []
    for seed in range(seeds):
        gallery = plant_faults(source, count, seed, min_photos)
        scores.append(score(gallery.faults, examine(source.model, gallery, max_searches), before))
        print(f"seed {seed}: {gallery.refused} degraded photos were refused by enrolment", flush=True)
    return scores


def show(scores: Sequence[dict[str, Score]]) -> None:
    """Print means over the seeds, and the range of what was found."""
    print("| fault | planted | found | listed | besides, about planted faults | about others | of these before |")
    print("|---" * 7 + "|")
    for kind in PLANTED:
        own = [by_kind[kind] for by_kind in scores]
        planted, found, *means = (f"{mean:.1f}" for mean in np.mean(own, axis=0))
        least, most = min(one.found for one in own), max(one.found for one in own)
        print(f"| {kind} | {planted} | {found} ({least} to {most}) | {' | '.join(means)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", help="folders, tars or zips of person/photo")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/planted_faults.npz"), help="keeps the embeddings")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20, help="planted faults of each kind")
    parser.add_argument("--people", type=int, help="how many people of the data are enrolled; default: all")
    parser.add_argument("--min-photos", type=int, default=2)
    parser.add_argument("--search-everybody", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source: FaceSet = PhotoFiles(args.data).enrol(args.cache, args.people) if args.data else DrawnFaces()
    print(f"{len(source.names):,} faces of {len(set(source.names)):,} people")
    scores = measure(
        source, args.count, args.seeds, args.min_photos, sys.maxsize if args.search_everybody else MAX_SEARCHES
    )
    show(scores)
    if args.json:
        args.json.write_text(json.dumps([{k: s._asdict() for k, s in by_kind.items()} for by_kind in scores]))


if __name__ == "__main__":
    main()
