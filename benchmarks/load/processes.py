"""Find the processes of a service that this process has started."""

import psutil

PREFIX = "likeness: "


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
