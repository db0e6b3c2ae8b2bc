"""Fork a process that does one thing and ends, without returning to the code that forked it."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from setproctitle import setproctitle

from app.supervision.parent_watch import end_with_parent

log = logging.getLogger("likeness.supervisor")

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""What the supervisor handles, and its children do not inherit."""
DRAIN_SIGNAL = signal.SIGUSR1
"""Asks a process to take nothing new and to end when it has finished what it has. SIGHUP would not do: when a terminal
is closed, all its processes receive that one."""
READY = b"r"
CANNOT_GO_ON = 78
"""The exit code of a process that would end again if it were started again."""

ReportReady = Callable[[], None]


@dataclass(frozen=True)
class Role:
    """What a process does.

    name: shown by `ps`, after "likeness: "
    run: does it, until the process is asked to end; calls its argument once the process can do its work
    """

    name: str
    run: Callable[[ReportReady], None]


@dataclass(frozen=True)
class Child:
    """A process that was forked. reader: a pipe that has READY once the process can work, and ends with the process"""

    pid: int
    reader: int
    started_at: float


def start_child(role: Role) -> Child:
    """Fork a process. Signals are blocked until it has dropped the handlers of its parent."""
    parent = os.getpid()
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run(role, writer, parent, blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(writer)
    return Child(pid, reader, time.monotonic())


def _run(role: Role, writer: int, parent: int, blocked: Iterable[int]) -> NoReturn:
    """Do the work of a role and end the process, without the clean-up that its parent has registered."""
    code = 1
    try:
        _reset_signals(blocked)
        setproctitle(f"likeness: {role.name}")
        end_with_parent(parent)
        role.run(lambda: _report_ready(writer))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        log.exception("process.failed name=%s", role.name)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reset_signals(blocked: Iterable[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _report_ready(writer: int) -> None:
    os.write(writer, READY)
    os.close(writer)
