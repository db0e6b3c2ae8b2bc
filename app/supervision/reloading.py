"""Replace the program of the supervisor by a newer one, while its processes serve on.

The program that is executed anew has the same id and the same children. What else it needs to go on, it gets by a
variable of the environment.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from app.supervision.supervisor import Predecessors

log = logging.getLogger("likeness.supervisor")

HANDOVER = "SUPERVISOR_HANDOVER"
CHECK_OPTION = "--check"


class Reloader:
    """Executes the command of this process anew, with the sockets on which its processes listen."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self.listeners = listeners
        self._has_terminal = _has_terminal()

    def reload(self, predecessors: Predecessors) -> None:
        """Execute the program anew. Returns, with a line in the log, if the new one could not start."""
        if self._has_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)  # the signal came because the terminal was closed
            return
        command = [sys.executable, *sys.orig_argv[1:]]
        try:
            subprocess.run([*command, CHECK_OPTION], check=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            log.error("reload.refused error=%s: the service goes on as it is", error)
            return
        self._execute(command, predecessors)

    def _execute(self, command: list[str], predecessors: Predecessors) -> None:
        handover = {
            "listeners": [listener.fileno() for listener in self.listeners],
            "api": sorted(predecessors.api),
            "workers": sorted(predecessors.workers),
        }
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # another one would end the new program while it starts
        for listener in self.listeners:
            listener.set_inheritable(True)
        sys.stdout.flush()
        os.execve(sys.executable, command, os.environ | {HANDOVER: json.dumps(handover)})


def take_handover() -> tuple[list[socket.socket], Predecessors] | None:
    """Return what the program before this one has left; None if this is the first one."""
    encoded = os.environ.pop(HANDOVER, None)
    if encoded is None:
        return None
    handover = json.loads(encoded)
    listeners = [socket.socket(fileno=number) for number in handover["listeners"]]
    for listener in listeners:
        listener.set_inheritable(False)
    signal.signal(signal.SIGHUP, lambda *_: None)  # no more ignored, so that the supervisor handles it
    return listeners, Predecessors(set(handover["api"]), set(handover["workers"]))


def _has_terminal() -> bool:
    """Whether this process has a terminal that can send it SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
