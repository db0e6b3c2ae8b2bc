"""Connect commands to a running service: send requests, wait for jobs, show progress."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

CONTROL_CHARACTERS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class PrintableConsole(Console):
    """A console that shows a text as it is, but for control characters: names of files and people could act on the
    terminal.

    Nothing in a text is read as markup or as the name of an emoji.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(CONTROL_CHARACTERS), **options)


console = PrintableConsole()


def connect(url: str | None = None, key: str | None = None) -> httpx.Client:
    """Return a client of the service at this address, by default that of LIKENESS_URL and LIKENESS_KEY.

    Raises typer.BadParameter if there is no key.
    """
    key = key or os.environ.get("LIKENESS_KEY")
    if not key:
        raise typer.BadParameter("set LIKENESS_KEY to a key of the service (`likeness keys create --role operator`)")
    address = url or os.environ.get("LIKENESS_URL", "http://127.0.0.1:8000")
    return httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=600)


def print_problem(kind: str, detail: str) -> None:
    """Print what went wrong. kind: of the problem, such as its code; it is red on a terminal"""
    console.print(kind, style="red", end="", soft_wrap=True)
    console.print(f": {detail}", soft_wrap=True)


def read_answer(answer: httpx.Response) -> Any:
    """Return the JSON of an answer. A problem is printed and ends the command."""
    if answer.is_error:
        body = answer.json() if "json" in answer.headers.get("content-type", "") else {"detail": answer.text}
        print_problem(str(body.get("code", answer.status_code)), str(body.get("detail")))
        raise typer.Exit(1)
    return answer.json() if answer.content else None


def wait_for_job(client: httpx.Client, answer: httpx.Response, title: str) -> dict[str, Any]:
    """Show a progress bar until the job that a 202 names has ended, and return the job. A failure ends the command.

    Any other answer is returned as it is.
    """
    job = read_answer(answer)
    if answer.status_code != 202:
        return dict(job)
    with open_progress() as progress:
        task = progress.add_task(title, total=None)
        while True:
            job = read_answer(client.get(answer.headers["Location"]))
            counts = job["progress"]
            progress.update(task, completed=counts["done"] + counts["failed"], total=counts["total"])
            if job["finished_at"]:
                break
            time.sleep(0.2)
    if job["state"] != "succeeded":
        problem = job["problem"] or {"code": job["state"], "detail": "the job was cancelled"}
        print_problem(problem["code"], problem["detail"])
        for reason in problem.get("reasons") or ():
            if reason not in problem["detail"]:
                console.print(f"- {reason}", soft_wrap=True)
        raise typer.Exit(1)
    return dict(job)


def iterate_pages(client: httpx.Client, path: str, field: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Yield every entry of a list, page after page. field: of the answer that holds the entries"""
    token: str | None = None
    while True:
        body = read_answer(client.get(path, params={"limit": 1000, **query} | ({"next_token": token} if token else {})))
        yield from body[field]
        token = body.get("next_token")
        if not token:
            return


def map_with_progress(title: str, items: list[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Return the function's result for each item, and show a progress bar meanwhile."""
    with open_progress() as progress:
        return [function(item) for item in progress.track(items, description=title)]


@contextmanager
def open_progress(visible: bool = True) -> Iterator[Progress]:
    """Show progress bars until the end of the block."""
    columns = (SpinnerColumn(), TextColumn("{task.description:<34}", markup=False), BarColumn(), MofNCompleteColumn())
    remaining = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
    with Progress(*columns, remaining, console=console, disable=not visible) as progress:
        yield progress
