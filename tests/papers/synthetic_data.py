"""A small data folder of synthetic people in the layout that `likeness reproduce` reads."""

import io
import tarfile
from pathlib import Path

from PIL import Image

from ml.synthetic_faces import draw, person
from papers.harness.photos import ARCHIVES, Photos
from papers.harness.result_store import ResultStore
from papers.harness.run_context import RunContext
from papers.harness.table_types import Scope

PEOPLE, SHOTS, STRANGERS, FOLDS, JUDGED = 20, 5, 12, 10, 3
QUICK = Scope(1, 1, True)


def photo(number: int, shot: int) -> str:
    return f"P{number:02d}/P{number:02d}_{shot + 1:04d}.jpg"


def _tar(path: Path, photos: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in photos.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _jpeg(number: int, shot: int) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(draw(person(number), shot, 160)).save(packed, "jpeg", quality=90)
    return packed.getvalue()


def write(data: Path) -> Path:
    """Write a stand-in for LFW, with its query lists and its ten folds of pairs, and a tar of distractors."""
    for number in range(PEOPLE):
        (data / "lfw" / f"P{number:02d}").mkdir(parents=True)
        for shot in range(SHOTS):
            (data / "lfw" / photo(number, shot)).write_bytes(_jpeg(number, shot))
    lists = data / "lfw-protocol"
    lists.mkdir()
    for draw_of in range(2):
        queries = [photo(n, (n + draw_of) % SHOTS) for n in range(PEOPLE)]
        (lists / f"queries-{draw_of}.txt").write_text("\n".join(queries) + "\n")
        lines = [f"train P{n:02d}" for n in range(0, PEOPLE, 2)] + [f"query {q}" for q in queries[1::2]]
        (lists / f"disjoint-{draw_of}.txt").write_text("\n".join(lines) + "\n")
    (lists / "pairs.txt").write_text("\n".join(_pairs()) + "\n")
    _tar(data / ARCHIVES["distractors"], {f"d{n:04d}.jpg": _jpeg(100 + n, 0) for n in range(STRANGERS)})
    return data


def _pairs() -> list[str]:
    lines = [f"{FOLDS}\t{JUDGED}"]
    for fold in range(FOLDS):
        first, second = f"P{2 * fold:02d}", f"P{2 * fold + 1:02d}"
        lines += [f"{first}\t{i + 1}\t{i + 2}" for i in range(JUDGED)]
        lines += [f"{first}\t{i + 1}\t{second}\t{i + 1}" for i in range(JUDGED)]
    return lines


def context(data: Path, scope: Scope = QUICK) -> RunContext:
    cache = data.parent / "cache"
    return RunContext(Photos(data, cache), ResultStore(cache / "results"), scope)
