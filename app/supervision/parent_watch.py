"""End a process when its parent has ended, however that happened."""

import ctypes
import os
import signal
import threading
import time

PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h. The signal comes when the parent's thread that started the process has ended."""
POLL_SECONDS = 0.5


def end_with_parent(parent: int) -> None:
    """Have this process receive SIGTERM when its parent has ended. parent: its id, from before this process began"""
    if not _request_signal():
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    elif os.getppid() != parent:  # it had ended before the request
        _end()


def _request_signal() -> bool:
    """Have the kernel send the signal. Returns False where it cannot."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
