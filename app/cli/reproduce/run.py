"""Does what is missing, one work after the other, and tells beforehand what it will cost."""

import time
from collections.abc import Sequence

import numpy as np
from rich.table import Table as Shown

from app.cli.client import bar, console
from app.cli.reproduce.plan import Chapter, Work
from app.cli.reproduce.store import Store

REFERENCE = 0.30
"""Seconds that `_probe` takes on the machine of docs/measurements.md."""


def announce(chapters: Sequence[Chapter], store: Store) -> float:
    """Prints what is there and what is to be done; the seconds that this will take here."""
    speed = _probe() / REFERENCE
    shown = Shown("tables of", "results", "of them here", "minutes to go", title="what this run will cost")
    seen: set[str] = set()
    whole = 0.0
    for chapter in chapters:
        works = chapter.works()
        more = chapter.guessed()
        left = [w for w in _distinct(works, seen) if not store.has(w)]
        cost = sum(expected(w, store, speed) for w in (*left, *more))
        whole += cost
        here = sum(store.has(w) for w in works)
        shown.add_row(chapter.title, str(len(works) + len(more)), str(here), f"{cost / 60:.0f}")
    console.print(shown)
    return whole


def carry_out(chapters: Sequence[Chapter], store: Store) -> None:
    """All works of these chapters. What a work's result decides may bring more works, so they are asked again."""
    speed, pace = _probe() / REFERENCE, 1.0
    with bar() as progress:
        whole = progress.add_task("all", total=None)
        one = progress.add_task("", total=None)
        started, guessed = time.monotonic(), 0.0
        while left := _left(chapters, store):
            work = left[0]
            more = [w for chapter in chapters for w in chapter.guessed()]
            rest = sum(expected(w, store, speed) for w in (*left, *more)) * pace
            spent = time.monotonic() - started
            progress.update(whole, completed=int(spent), total=int(spent + rest), description=f"all, {len(left)} to go")
            progress.update(one, description=work.name, completed=0, total=None)
            guessed += expected(work, store, speed)
            store.do(work, lambda step, steps, _: progress.update(one, completed=step, total=steps))
            pace = (time.monotonic() - started) / max(guessed, 1e-9)
            progress.reset(one)


def expected(work: Work, store: Store, speed: float) -> float:
    known = store.seconds(work)
    return work.seconds * speed if known is None else known


def _left(chapters: Sequence[Chapter], store: Store) -> list[Work]:
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
