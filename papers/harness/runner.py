"""Run the computations whose results are missing, and estimate their time beforehand."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.table import Table as Shown

from app.cli.client import console, open_progress
from ml.embedders.base import Progress
from papers.harness.result_store import ResultMissing, ResultStore, digest_kind
from papers.harness.table_types import Chapter, Computation

POLL_SECONDS = 1.0
"""Seconds between two checks of what other processes have finished."""
REFERENCE_PROBE_SECONDS = 0.30
"""Seconds that `_measure_machine` takes on the machine of docs/research/measurements.md."""


def print_cost(chapters: Sequence[Chapter], store: ResultStore) -> float:
    """Print how many results exist and how long the rest will take; return the estimated seconds."""
    speed = _measure_machine() / REFERENCE_PROBE_SECONDS
    shown = Shown("tables of", "results", "of them here", "minutes to go", title="what this run will cost")
    seen: set[str] = set()
    whole, times = 0.0, store.read_times()
    for chapter in chapters:
        computations = chapter.computations()
        more = chapter.guessed()
        left = [w for w in _distinct(computations, seen) if not store.has(w)]
        cost = sum(estimate_seconds(w, times, speed) for w in (*left, *more))
        whole += cost
        here = sum(store.has(w) for w in computations)
        shown.add_row(chapter.title, str(len(computations) + len(more)), str(here), f"{cost / 60:.0f}")
    console.print(shown)
    return whole


def compute_missing(chapters: Sequence[Chapter], store: ResultStore) -> None:
    """Run all missing computations of these chapters.

    A result can determine further computations, so the chapters are read again after each one. Several processes can
    work on the same chapters: each takes computations that no other process is running.
    """
    speed, pace = _measure_machine() / REFERENCE_PROBE_SECONDS, 1.0
    with open_progress() as progress:
        whole = progress.add_task("all", total=None)
        current = progress.add_task("", total=None)
        started, guessed, group = time.monotonic(), 0.0, ""

        def make_progress(computation: Computation) -> Progress:
            progress.reset(current, description=computation.name, total=None)
            return lambda step, steps, _: progress.update(current, completed=step, total=steps)

        while left := _list_missing(chapters, store):
            more, times = [w for chapter in chapters for w in chapter.guessed()], store.read_times()
            rest = sum(estimate_seconds(w, times, speed) for w in (*left, *more)) * pace
            spent = time.monotonic() - started
            progress.update(whole, completed=int(spent), total=int(spent + rest), description=f"all, {len(left)} to go")
            cost = {id(computation): estimate_seconds(computation, times, speed) for computation in left}
            computation = _compute_first(left, store, group, make_progress)
            if computation is None:
                time.sleep(POLL_SECONDS)
                continue
            group, guessed = computation.group, guessed + cost[id(computation)]
            pace = (time.monotonic() - started) / max(guessed, 1e-9)


def _compute_first(
    left: Sequence[Computation], store: ResultStore, group: str, make_progress: Callable[[Computation], Progress]
) -> Computation | None:
    """Run the first computation that no other process is running, preferably of this group.

    Returns None if there is nothing to do until other processes finish. Raises ResultMissing if a computation needs a
    result that no process is computing.
    """
    others, missing = False, None
    for computation in sorted(left, key=lambda w: w.group != group):
        with store.claim(computation) as claimed:
            others = others or not claimed
            try:
                if claimed:
                    store.do(computation, make_progress(computation))
                    return computation
            except ResultMissing as error:
                missing = error
    if missing and not others:
        raise missing
    return None


def count_missing(chapter: Chapter, store: ResultStore) -> int:
    """Count the results that a chapter still needs, as far as is known."""
    return len(chapter.guessed()) + sum(not store.has(w) for w in _distinct(chapter.computations(), set()))


def estimate_seconds(computation: Computation, times: Mapping[str, float], speed: float) -> float:
    """Estimate by what the kind of computation took here the last time (`ResultStore.read_times`), if it is known."""
    return times.get(digest_kind(computation), computation.seconds * speed)


def _list_missing(chapters: Sequence[Chapter], store: ResultStore) -> list[Computation]:
    seen: set[str] = set()
    return [w for chapter in chapters for w in _distinct(chapter.computations(), seen) if not store.has(w)]


def _distinct(computations: Sequence[Computation], seen: set[str]) -> list[Computation]:
    """Return computations whose key was not seen before."""
    fresh = []
    for computation in computations:
        name = repr(sorted((k, str(v)) for k, v in computation.key.items()))
        if name not in seen:
            seen.add(name)
            fresh.append(computation)
    return fresh


def _measure_machine() -> float:
    """Measure the speed of this machine: seconds for 20 matrix products of 1,000 x 1,000, the best of three."""
    a = np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32)

    def time_products() -> float:
        started = time.perf_counter()
        for _ in range(20):
            a @ a
        return time.perf_counter() - started

    return min(time_products() for _ in range(3))
