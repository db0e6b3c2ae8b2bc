"""Send requests at a given rate whatever the answers, or one after another, and record each answer."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.load.connections import ConnectionPool
from benchmarks.load.traffic import MixedTraffic, is_right_answer

REFUSALS = (429, 503)


class Record(NamedTuple):
    """What became of a request. seconds: from the moment when it was due, so that none is left out that waited to be
    sent; is_right: of an accepted request, whether its answer is right; of a refused one, whether it has Retry-After
    """

    kind: str
    status: int
    seconds: float
    is_right: bool

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        return self.status in REFUSALS


async def send_at_rate(pool: ConnectionPool, traffic: MixedTraffic, rate: float, seconds: float) -> list[Record]:
    """Send `rate` requests a second on average, at random moments, and wait for all answers."""
    clock, draw = time.perf_counter, random.Random(traffic.seed)
    records, running = list[Record](), set[asyncio.Task[None]]()
    start = clock()
    due = start
    while (due := due + draw.expovariate(rate)) < start + seconds:
        if due > clock():
            await asyncio.sleep(due - clock())
        task = asyncio.create_task(_send_one(pool, traffic, due, records))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return records


async def send_in_turn(
    pool: ConnectionPool, traffic: MixedTraffic, clients: int, seconds: float, max_pause: float = 0.0
) -> list[Record]:
    """Have each of several clients send one request after another, with random pauses of up to `max_pause` seconds."""
    records, end, draw = list[Record](), time.perf_counter() + seconds, random.Random(traffic.seed)

    async def send_one_by_one() -> None:
        while (now := time.perf_counter()) < end:
            await _send_one(pool, traffic, now, records)
            if max_pause:
                await asyncio.sleep(draw.uniform(0.0, max_pause))

    await asyncio.gather(*(send_one_by_one() for _ in range(clients)))
    return records


async def send_all(pool: ConnectionPool, traffic: MixedTraffic, count: int, records: list[Record]) -> None:
    """Send `count` requests at once, and add what became of them to `records`."""
    await asyncio.gather(*(_send_one(pool, traffic, time.perf_counter(), records) for _ in range(count)))


async def _send_one(pool: ConnectionPool, traffic: MixedTraffic, due: float, records: list[Record]) -> None:
    request = traffic.draw()
    answer = await pool.send(request.data)
    seconds = time.perf_counter() - due
    if 200 <= answer.status < 300:
        is_right = is_right_answer(request, answer)
    else:
        is_right = answer.status in REFUSALS and "retry-after" in answer.headers
        request.note_refusal()
    records.append(Record(request.kind, answer.status, seconds, is_right))


def find_percentile_ms(records: Iterable[Record], share: float) -> float:
    """Return the milliseconds within which this share of the requests was answered; NaN if there are none."""
    seconds = [record.seconds for record in records]
    return 1000 * float(np.quantile(seconds, share)) if seconds else float("nan")


def count_statuses(records: Sequence[Record]) -> dict[int, int]:
    """Return status -> number of answers; 0: no answer."""
    return dict(sorted(Counter(record.status for record in records).items()))
