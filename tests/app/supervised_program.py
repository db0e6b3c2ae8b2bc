"""`python -m tests.app.supervised_program FOLDER NAME...`: processes under a supervisor, which note what happens.

Each leaves a file `NAME.PID` in the folder when it starts, and adds its name to `ended` when it is asked to end. Names
that begin with `api` are processes of the API, the others workers. `slow` becomes ready half a second late, `failing`
ends at once before it is ready, `dying` after, `outdated` half a second later and for good, and `stubborn` does not end
when it is asked to. With `polling`, all processes look for their supervisor themselves, as where the kernel does not
tell them of its end.
"""

import signal
import sys
import time
from functools import partial
from os import getpid
from pathlib import Path

from app.supervision import parent_watch, supervisor
from app.supervision.children import CANNOT_GO_ON, ReportReady, Role
from app.supervision.supervisor import Supervisor

SLOW_SECONDS = 0.5


def run(folder: Path, name: str, report_ready: ReportReady) -> None:
    """Do what the name says."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    (folder / f"{name}.{getpid()}").touch()
    if "failing" in name:
        raise SystemExit(3)
    if "slow" in name:
        time.sleep(SLOW_SECONDS)
        (folder / "slow-is-ready").touch()
    report_ready()
    if "outdated" in name:
        time.sleep(SLOW_SECONDS)
        raise SystemExit(CANNOT_GO_ON)
    if "dying" in name:
        raise SystemExit(4)
    signal.sigwait([signal.SIGTERM])
    with (folder / "ended").open("a") as ended:
        ended.write(f"{name}\n")
    if "stubborn" in name:
        time.sleep(60)


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    supervisor.MAX_STOP_SECONDS = 1.0
    if any("polling" in name for name in names):
        parent_watch._request_signal = lambda: False
    roles = [Role(name, partial(run, folder, name)) for name in names]
    api = [role for role in roles if role.name.startswith("api")]
    raise SystemExit(Supervisor(api, lambda: [role for role in roles if role not in api]).run())


if __name__ == "__main__":
    main()
