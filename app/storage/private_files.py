"""Keep other users of the machine out of what the service stores: photos, crops, the database, its key and its log."""

import logging
import os
import shlex
import stat
from pathlib import Path

log = logging.getLogger("likeness.storage")

PRIVATE_UMASK, HOME_MODE = 0o077, 0o700


def make_files_private() -> None:
    """Have all files and folders that this process and its children create belong to their user alone."""
    os.umask(PRIVATE_UMASK)


def create_home(home: Path) -> None:
    """Create the home of a service, which other users cannot enter, if there is none.

    One that they can enter is not changed, since the group may need it; the log says how to keep them out.
    Raises OSError.
    """
    home.mkdir(HOME_MODE, parents=True, exist_ok=True)
    if home.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
        path = home.resolve()
        closing = f"chmod -R go= {shlex.quote(str(path))}"
        log.warning("home.open path=%s: other users can enter it; to keep them out: %s", path, closing)
