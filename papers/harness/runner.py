"""Does what is missing, one work after the other, and tells beforehand what it will cost."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table as Shown

from app.cli.client import console, open_progress
from ml.embedders.base import Progress
from papers.harness.result_store import ResultMissing, ResultStore
from papers.harness.table_types import Chapter, Work

PATIENCE = 1.0
"""Seconds after which others are looked at again."""
REFERENCE = 0.30
"""Seconds that `_probe` takes on the machine of docs/research/measurements.md."""


def print_cost(chapters: Sequence[Chapter], store: ResultStore) -> float:
    """Prints what is there and what is to be done; the seconds that this will take here."""
    speed = _probe() / REFERENCE
    shown = Shown("tables of", "results", "of them here", "minutes to go", title="what this run will cost")
    seen: set[str] = set()
    whole = 0.0
    for chapter in chapters:
        works = chapter.works()
        more = chapter.guessed()
        left = [w for w in _distinct(works, seen) if not store.has(w)]
        cost = sum(estimate_seconds(w, store, speed) for w in (*left, *more))
        whole += cost
        here = sum(store.has(w) for w in works)
        shown.add_row(chapter.title, str(len(works) + len(more)), str(here), f"{cost / 60:.0f}")
    console.print(shown)
    return whole


def compute_missing(chapters: Sequence[Chapter], store: ResultStore) -> None:
    """All works of these chapters. What a work's result decides may bring more works, so they are asked again.

    Other processes may be at the same: each does what nobody else is at.
    """
    speed, pace = _probe() / REFERENCE, 1.0
    with open_progress() as progress:
        whole = progress.add_task("all", total=None)
        one = progress.add_task("", total=None)
        started, guessed, group = time.monotonic(), 0.0, ""

        def tell(work: Work) -> Progress:
            progress.reset(one, description=work.name, total=None)
            return lambda step, steps, _: progress.update(one, completed=step, total=steps)

        while left := _left(chapters, store):
            more = [w for chapter in chapters for w in chapter.guessed()]
            rest = sum(estimate_seconds(w, store, speed) for w in (*left, *more)) * pace
            spent = time.monotonic() - started
            progress.update(whole, completed=int(spent), total=int(spent + rest), description=f"all, {len(left)} to go")
            cost = {id(work): estimate_seconds(work, store, speed) for work in left}
            work = _one(left, store, group, tell)
            if work is None:
                time.sleep(PATIENCE)
                continue
            group, guessed = work.group, guessed + cost[id(work)]
            pace = (time.monotonic() - started) / max(guessed, 1e-9)


def _one(left: Sequence[Work], store: ResultStore, group: str, tell: Callable[[Work], Progress]) -> Work | None:
    """Does the first that no other process is at, of this group if it has one left; None where there is nothing to do
    until others are done. Raises NotThere where nobody else is at what a work needs."""
    others, missing = False, None
    for work in sorted(left, key=lambda w: w.group != group):
        with store.claim(work) as claimed:
            others = others or not claimed
            try:
                if claimed:
                    store.do(work, tell(work))
                    return work
            except ResultMissing as error:
                missing = error
    if missing and not others:
        raise missing
    return None


def count_missing(chapter: Chapter, store: ResultStore) -> int:
    """How many results it still needs, as far as is known."""
    return len(chapter.guessed()) + sum(not store.has(w) for w in _distinct(chapter.works(), set()))


def estimate_seconds(work: Work, store: ResultStore, speed: float) -> float:
    known = store.seconds(work)
    return work.seconds * speed if known is None else known


def _left(chapters: Sequence[Chapter], store: ResultStore) -> list[Work]:
    seen: set[str] = set()
    return [w for chapter in chapters for w in _distinct(chapter.works(), seen) if not store.has(w)]


def _distinct(works: Sequence[Work], seen: set[str]) -> list[Work]:
    """Each key once, over all chapters."""
    fresh = []
    for work in works:
        name = repr(sorted((k, str(v)) for k, v in work.key.items()))
        if name not in seen:
            seen.add(name)
            fresh.append(work)
    return fresh


def _probe() -> float:
    """Seconds for 20 products of 1,000 x 1,000, the best of three: how fast this machine is at what fits do most."""
    a = np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32)

    def once() -> float:
        started = time.perf_counter()
        for _ in range(20):
            a @ a
        return time.perf_counter() - started

    return min(once() for _ in range(3))
