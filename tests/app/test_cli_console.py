"""What commands print of texts that others wrote, such as the names of files in an archive."""

import httpx
import pytest
import typer
from rich.table import Table

from app.cli.client import console, map_with_progress, read_answer, wait_for_job
from app.cli.doctor import print_report
from app.cli.service_commands import print_matches

NAMES = ("kim [lyon]", "x[/y]", "[bold]ann[/bold]", "b:heart:c", "c\\[d]", "e\\")
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


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_markup(name: str) -> None:
    table = Table("subject", name, title=name)
    table.add_row(name)
    with console.capture() as captured:
        console.print(f"refused {name}")
        console.print(table)
    assert captured.get().count(name) == 4


@pytest.mark.parametrize("name", NAMES)
def test_findings_name_people_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 200)
    finding = {"kind": "duplicate", "subjects": [name, "other"], "faces": ["f"], "advice": f"merge {name} into other"}
    finding |= {"probability": 0.9, "strangers_named_after": None}
    report = {"strangers_named": None, "unmeasured_reason": name, "faces": 2, "subjects": 2}
    report |= {"subjects_with_one_face": 2, "findings": [finding], "counts": {"duplicate": 1}}
    with console.capture() as captured:
        print_report(report, 10)
    shown = captured.get()
    assert f"{name}, other" in shown
    assert f"merge {name} into other" in shown


@pytest.mark.parametrize("name", NAMES)
def test_matches_name_people_as_they_are(name: str) -> None:
    match = {"subject": {"id": name}, "face_id": "f", "similarity": 99.0, "distance": 0.1}
    with console.capture() as captured:
        print_matches({"decision": "match", "subject": {"id": name}, "matches": [match]})
    assert captured.get().count(name) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_problem_of_a_job_is_shown_as_it_is(name: str) -> None:
    problem = {"code": "Invalid", "detail": f"no subject {name}", "reasons": [f"because of {name}"]}
    job = {"progress": {"done": 0, "failed": 0, "total": 1}, "finished_at": 1, "state": "failed", "problem": problem}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=job))
    accepted = httpx.Response(202, json={}, headers={"Location": "/v1/jobs/j"})
    client = httpx.Client(transport=transport, base_url="http://test")
    with client, console.capture() as captured, pytest.raises(typer.Exit):
        wait_for_job(client, accepted, f"import {name}")
    shown = captured.get()
    assert f"Invalid: no subject {name}\n- because of {name}\n" in shown
    assert f"import {name}" in shown


@pytest.mark.parametrize("name", NAMES)
def test_the_title_of_a_progress_bar_is_no_markup(name: str) -> None:
    with console.capture() as captured:
        map_with_progress(name, [1], str)
    assert name in captured.get()
