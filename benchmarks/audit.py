"""Time searches with and without their entry in the audit log, alternating in one process.

python -m benchmarks.audit [--pairs 2000]
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from app.access import keys
from app.access.audit_middleware import AuditMiddleware, AuditRecorder
from app.config import Settings
from app.db.session import writing
from app.main import create_app
from app.resources import open_resources
from tests.databases import migrate
from tests.rows import GalleryWriter, make_model, people

PEOPLE, FACES_PER_PERSON = 250, 4
READY_SECONDS = 30.0
RESAMPLES = 1_000
MODEL = make_model("m-one")


class Searcher:
    """Sends one search by vector after another to the application, without a network."""

    def __init__(self, settings: Settings, secret: str, vector: list[float]) -> None:
        self.app, self.settings = create_app(settings), settings
        self.body = json.dumps({"vector": vector}).encode()
        self.headers = [
            (b"x-api-key", secret.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
        ]

    async def measure(self, pairs: int) -> np.ndarray:
        """Return the milliseconds of searches with an entry and without, shape (pairs, 2)."""
        async with self.app.router.lifespan_context(self.app) as state:
            until = time.monotonic() + READY_SECONDS
            while await self._search(state) is None:
                assert time.monotonic() < until, "the index is not ready"
                await asyncio.sleep(0.1)
            recorder = self._find_recorder()
            choices = [self.settings, self.settings.model_copy(update={"audit_searches": False})]
            seconds = np.zeros((pairs, 2))
            for pair in range(pairs):
                for choice in (0, 1) if pair % 2 else (1, 0):
                    recorder.settings = choices[choice]
                    seconds[pair, choice] = await self._search(state)
            return seconds * 1e3

    def _find_recorder(self) -> AuditRecorder:
        layer: Any = self.app.middleware_stack
        while not isinstance(layer, AuditMiddleware):
            layer = layer.app
        return layer.recorder

    async def _search(self, state: Any) -> float | None:
        """Return the seconds of a search; None if it is not answered with 200."""
        statuses, messages = [], iter([{"type": "http.request", "body": self.body, "more_body": False}])
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/collections/staff/search:by-embedding", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": self.headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": dict(state),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 200))

        started = time.perf_counter()
        await self.app(scope, receive, send)
        return time.perf_counter() - started if statuses[0] == 200 else None


def make_searcher(home: Path) -> Searcher:
    """Fill a new home with a gallery, and return a searcher in it."""
    settings = Settings(home=home, default_recogniser="lbp")
    migrate(settings)
    rows, subjects = people(PEOPLE, FACES_PER_PERSON)
    with open_resources(settings) as resources:
        GalleryWriter(resources).make(MODEL).add({MODEL.id: rows}, subjects)
        with writing(resources.database) as session:
            secret = keys.create_key(session, "admin")[1]
    return Searcher(settings, secret, rows[0].tolist())


def describe_cost(milliseconds: np.ndarray) -> str:
    """Describe the medians, and the median of the differences with its bootstrap interval."""
    differences = milliseconds[:, 0] - milliseconds[:, 1]
    random = np.random.default_rng(0)
    medians = [np.median(random.choice(differences, len(differences))) for _ in range(RESAMPLES)]
    low, high = np.quantile(medians, [0.025, 0.975])
    audited, plain = np.median(milliseconds, axis=0)
    return (
        f"with an entry {audited:.3f} ms, without {plain:.3f} ms (medians); median of the differences"
        f" {np.median(differences):.4f} ms [{low:.4f}, {high:.4f}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2_000, help="how many searches of each kind")
    with tempfile.TemporaryDirectory() as home:
        print(describe_cost(asyncio.run(make_searcher(Path(home)).measure(parser.parse_args().pairs))))


if __name__ == "__main__":
    main()
