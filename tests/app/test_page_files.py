"""The static files of the operator's page."""

import asyncio
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from app.console.routes import CHARTS, STATIC, files
from app.console.whole_files import WholeFile


def test_a_path_that_is_no_file_of_the_page_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk would be asked for each of its folders: 0.18 s for a path of 60 KB."""
    monkeypatch.setattr("os.path.realpath", lambda path, **_: pytest.fail(f"looked for {path!r:.40}"))
    for path in ("a/" * 2_000, "../routes.py", "js", "", "js/../style.css"):
        with pytest.raises(HTTPException, match="404"):
            asyncio.run(files.get_response(path, {"method": "GET", "headers": []}))


def test_files_are_sent_without_the_threads_that_answer_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists waited for up to 10 s behind 800 clients who loaded files of /docs."""
    monkeypatch.setattr("anyio.to_thread.run_sync", lambda *_, **__: pytest.fail("took a thread"))
    answer = asyncio.run(files.get_response("style.css", {"method": "GET", "headers": []}))
    assert (answer.status_code, Path(STATIC / "style.css").stat().st_size) == (
        200,
        int(answer.headers["content-length"]),
    )


def test_other_requests_go_on_while_many_files_are_sent() -> None:
    """Each of 800 clients was sent a whole file in one step, during which `/livez` waited for 2.9 s."""
    longest = 0

    async def send_all() -> None:
        nonlocal longest
        parts = 0

        async def send(message: Message) -> None:
            nonlocal parts
            parts += bool(message.get("body"))

        scope = {"type": "http", "method": "GET", "headers": []}
        files = [asyncio.create_task(WholeFile(CHARTS)(scope, None, send)) for _ in range(20)]  # type: ignore[arg-type]
        while not all(file.done() for file in files):
            before = parts
            await asyncio.sleep(0)
            longest = max(longest, parts - before)

    asyncio.run(send_all())
    assert 0 < longest <= 8
