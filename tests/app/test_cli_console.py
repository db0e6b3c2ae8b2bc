"""What commands print of texts that others wrote, such as the names of files in an archive."""

import httpx
import pytest
import typer
from rich.table import Table

from app.cli.client import console, read_answer

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31mred\r"


def test_control_characters_never_reach_the_terminal() -> None:
    table = Table("subject")
    table.add_row(HOSTILE)
    with console.capture() as captured:
        console.print(f"refused {HOSTILE}: INVALID_SUBJECT")
        console.print(table)
    shown = captured.get()
    assert shown.count("[2J") == 2
    assert not any(character in shown for character in "\x1b\x07\x9b\r")


def test_a_problem_is_shown_as_it_is() -> None:
    answer = httpx.Response(404, json={"code": "ResourceNotFound", "detail": "no subject '[/red][bold]ann'"})
    with console.capture() as captured, pytest.raises(typer.Exit):
        read_answer(answer)
    assert captured.get() == "ResourceNotFound: no subject '[/red][bold]ann'\n"
