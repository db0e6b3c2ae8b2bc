"""Errors that one photo causes in a detector, aligner, descriptor or embedder: refuse that photo, and count it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client import Counter
from sqlalchemy.exc import OperationalError

from app.errors import AppError, Invalid, Stopped
from ml.errors import LikenessError, NotFinite, WrongShape

log = logging.getLogger("likeness.photos")

Stage = Literal["analyse", "embed", "store"]

PHOTO_FAILED = "PHOTO_FAILED"
"""The reason of a photo that an error kept from being enrolled."""
PHOTO_FAILURES = Counter(
    "likeness_photo_failures",
    "Photos over which a detector, aligner, descriptor or embedder of this process raised an error",
    ("stage",),
    registry=None,
)


class PhotoFailed(Invalid):
    """The service raised an error over this photo; the log has the traceback."""

    code, title = "PhotoFailed", "The photo cannot be processed"

    def __init__(self, stage: Stage) -> None:
        super().__init__(f"the service cannot {stage} this photo, which raised an error; convert it, or send another")


def is_caused_by_photo(error: Exception) -> bool:
    """Whether a photo may have caused this error of a stage: no refusal or stop, and no fault of a disk or model."""
    if isinstance(error, LikenessError):
        return isinstance(error, (NotFinite, WrongShape))
    return not isinstance(error, (AppError, Stopped, OperationalError, OSError))


@contextmanager
def report_photo_failure(stage: Stage) -> Iterator[None]:
    """Raise PhotoFailed in place of any error that the photo may have caused, log its traceback and count it."""
    try:
        yield
    except Exception as error:
        if not is_caused_by_photo(error):
            raise
        PHOTO_FAILURES.labels(stage).inc()
        log.exception("photo.failed stage=%s", stage)
        raise PhotoFailed(stage) from error
