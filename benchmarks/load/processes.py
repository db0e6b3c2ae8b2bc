"""Find the processes of a service that this process has started, and start this one again with one thread."""

import os
import sys

import psutil

from app.threads import ENVIRONMENT_NAMES

PREFIX = "likeness: "


def restart_with_one_thread(module: str) -> None:
    """Start this program again with one thread of FAISS and OpenBLAS, as an API process has, unless it was so started.

    FAISS reads the number when it is loaded; a number that is set later holds for the thread that sets it alone. After
    a search in another thread, a helper of FAISS would wait for work for milliseconds, at the full cost of a core,
    which would count for whatever is measured next.
    """
    one = dict.fromkeys(ENVIRONMENT_NAMES, "1")
    if one.items() <= os.environ.items():
        return
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | one)


def read_role(process: psutil.Process) -> str:
    """Return what a process of a service does, by its title: `api`, `worker default`; empty for any other process."""
    title = " ".join(process.cmdline()).strip()
    return title.removeprefix(PREFIX) if title.startswith(PREFIX) else ""


def find_api_processes() -> list[psutil.Process]:
    """Return the processes of APIs."""
    return [child for child in psutil.Process().children(recursive=True) if read_role(child) == "api"]


def find_api_process() -> psutil.Process:
    """Return the process of the API. Raises IndexError if there is none."""
    return find_api_processes()[0]
