"""What every command that speaks to a running service needs: its address, a key, and the patience for a job."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

console = Console(highlight=False)


def connect(url: str | None = None, key: str | None = None) -> httpx.Client:
    """The service that LIKENESS_URL and LIKENESS_KEY name, or these. Exits with a sentence where there is none."""
    key = key or os.environ.get("LIKENESS_KEY")
    if not key:
        raise typer.BadParameter("set LIKENESS_KEY to a key of the service (`likeness keys create --role operator`)")
    address = url or os.environ.get("LIKENESS_URL", "http://127.0.0.1:8000")
    return httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=600)


def read_answer(answer: httpx.Response) -> Any:
    """Its JSON; a problem ends the command with its own words."""
    if answer.is_error:
        body = answer.json() if "json" in answer.headers.get("content-type", "") else {"detail": answer.text}
        console.print(f"[red]{body.get('code', answer.status_code)}[/red]: {body.get('detail')}", soft_wrap=True)
        raise typer.Exit(1)
    return answer.json() if answer.content else None


def wait(client: httpx.Client, answer: httpx.Response, what: str) -> dict[str, Any]:
    """The job that a 202 names, shown with a bar until it ends; the command ends where the job failed."""
    job = read_answer(answer)
    if answer.status_code != 202:
        return dict(job)
    with bar() as progress:
        shown = progress.add_task(what, total=None)
        while True:
            job = read_answer(client.get(answer.headers["Location"]))
            counts = job["progress"]
            progress.update(shown, completed=counts["done"] + counts["failed"], total=counts["total"])
            if job["finished_at"]:
                break
            time.sleep(0.2)
    if job["state"] != "succeeded":
        problem = job["problem"] or {"code": job["state"], "detail": "it was cancelled"}
        console.print(f"[red]{problem['code']}[/red]: {problem['detail']} {problem.get('reasons', '')}", soft_wrap=True)
        raise typer.Exit(1)
    return dict(job)


def pages(client: httpx.Client, path: str, field: str, **query: Any) -> Iterator[dict[str, Any]]:
    """Every entry of a list, page after page."""
    token: str | None = None
    while True:
        body = read_answer(client.get(path, params={"limit": 1000, **query} | ({"next_token": token} if token else {})))
        yield from body[field]
        token = body.get("next_token")
        if not token:
            return


def counted(what: str, things: list[Any], do: Callable[[Any], Any]) -> list[Any]:
    """`do` of each, under a bar."""
    with bar() as progress:
        return [do(thing) for thing in progress.track(things, description=what)]


@contextmanager
def bar(seen: bool = True) -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn())
    left = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
    with Progress(*columns, left, console=console, disable=not seen) as shown:
        yield shown
