"""Prepare the home in a process of its own, while the one that will fork builds the application.

So the latter opens no database, no connection to Redis and no GPU, and starts no thread: forked processes could not use
them.
"""

import json
import os
import sys
from typing import NoReturn

from app.cli.server.preparation import Preparation, prepare_home
from app.config import Settings
from app.startup import CannotStart, explain_start_error
from app.supervision.parent_watch import end_with_parent

REASON, PREPARED = "reason", "prepared"


class PreparingProcess:
    """A process that prepares the home, and ends."""

    def __init__(self, settings: Settings) -> None:
        parent = os.getpid()
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            end_with_parent(parent)
            _prepare(settings, writer)
        os.close(writer)

    def finish(self) -> Preparation:
        """Wait for the process. Raises CannotStart with its reason; SystemExit if it failed and has printed why."""
        with open(self._reader, encoding="utf-8") as pipe:
            written = pipe.read()
        os.waitpid(self._pid, 0)
        answer = json.loads(written or "{}")
        if REASON in answer:
            raise CannotStart(answer[REASON])
        if PREPARED not in answer:
            raise SystemExit(1)
        return Preparation(*answer[PREPARED])


def _prepare(settings: Settings, writer: int) -> NoReturn:
    try:
        try:
            answer: dict[str, object] = {PREPARED: prepare_home(settings)}
        except Exception as error:
            reason = explain_start_error(error, settings)
            if reason is None:
                raise
            answer = {REASON: reason}
        with open(writer, "w", encoding="utf-8") as pipe:
            json.dump(answer, pipe)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(0)
