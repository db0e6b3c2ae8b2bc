"""Go on with the next row after one that cannot be worked on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from app.errors import Busy
from workers.context import Interrupted

MAX_KNOWN = 1_000
"""Failures that are remembered; more are logged again when they recur."""


class FailureLog:
    """Log what fails, once for as long as it fails in the same way.

    last: the last error that was logged or recurred
    """

    def __init__(self, log: logging.Logger) -> None:
        self.last: Exception | None = None
        self._log = log
        self._known: dict[str, str] = {}

    @contextmanager
    def skip_failure(self, step: str, collection: str | None = None) -> Iterator[None]:
        """Leave out the rest of the block if it fails.

        Raises Interrupted, and what the database raises when it is away: that holds for other rows too.
        """
        key = step if collection is None else f"{step} collection={collection}"
        try:
            yield
        except (OperationalError, Busy, Interrupted):
            raise
        except Exception as error:
            self.last = error
            if self._known.get(key) != repr(error):
                self._log.exception("step.failed step=%s", key)
            if key in self._known or len(self._known) < MAX_KNOWN:
                self._known[key] = repr(error)
        else:
            self._known.pop(key, None)
