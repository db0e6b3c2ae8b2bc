"""Labels in bulk are limited in number, and of those that are refused the first are listed."""

import json

import pytest

from app.deps.server.json_limits import JsonLimits, check_json
from app.errors import Invalid
from app.labels import bulk_labels
from app.labels.bulk_labels import MAX_LINE_CHARACTERS, MAX_LINES, parse_labels
from app.labels.refusals import Refusals
from app.labels.routes import router
from app.labels.schemas import MAX_LABELS, MAX_LISTED_REFUSALS, LabelIn, LabelsIn

LABEL = {"face_a": "x", "face_b": "y", "same": True}
LINE = b'{"face_a": "x", "face_b": "y", "same": true}\n'
HEADER = b"face_a,face_b,same,note\n"


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"{}\n" * (MAX_LABELS + 1), "100,000 labels"),
        (HEADER + b"a,b,1,\n" * (MAX_LABELS + 1), "100,000 labels"),
        (LINE + b"\n" * MAX_LINES, "1,000,000 lines"),
        (HEADER + b"\n" * MAX_LINES, "1,000,000 lines"),
        (LINE + b"{" + b" " * MAX_LINE_CHARACTERS, "line 2 has more than 65,536 characters"),
        (HEADER + b"," * (MAX_LINE_CHARACTERS + 1), "line 2 has more than 65,536 characters"),
    ],
)
def test_a_body_beyond_a_limit_is_refused_before_a_label_is_validated(
    data: bytes, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_labels, "LabelIn", None)
    with pytest.raises(Invalid, match=limit):
        parse_labels(data)


def test_a_line_with_many_keys_is_refused_alone() -> None:
    many = "{" + ",".join(f'"k{i}":1' for i in range(1_000)) + "}\n"
    labels, wrong = parse_labels(LINE + many.encode() + LINE)
    assert [index for index, _ in labels] == [0, 2]
    [refused] = wrong.listed
    assert (refused.index, refused.code) == (1, "InvalidParameter")
    assert "64 keys" in refused.detail


def test_a_note_may_have_several_lines_and_any_characters() -> None:
    note = "one,\n{two}: [" + "x:{" * 500
    [(_, from_csv)], _ = parse_labels(HEADER + f'x,y,1,"{note}"'.encode())
    [(_, from_json)], _ = parse_labels(LabelIn.model_validate(LABEL | {"note": note}).model_dump_json().encode())
    assert from_csv.note == from_json.note == note


def test_all_refusals_are_counted_and_the_first_listed() -> None:
    early, late = Refusals(), Refusals()
    for index in range(MAX_LISTED_REFUSALS):
        early.add(2 * index, "SameFace", "")
        late.add(2 * index + 1, "UnknownTask", "")
    early.merge(late)
    assert early.count == 2 * MAX_LISTED_REFUSALS
    assert [r.index for r in early.listed] == list(range(MAX_LISTED_REFUSALS))
    error = early.make_error()
    assert (error.code, len(error.extra["refused"]), error.extra["refused_count"]) == ("SameFace", 1_000, 2_000)
    assert Refusals().make_error().detail == "the body contains no label"


def test_the_most_labels_with_all_fields_are_within_the_limit_of_values() -> None:
    label = json.dumps(LABEL | {"task": "identity", "by": "ada", "note": "a, b"}).encode()
    [route] = [r for r in router.routes if r.path == "/v1/labels" and "POST" in r.methods]  # type: ignore[attr-defined]
    limits = JsonLimits(values=route.openapi_extra["x-max-json-values"])  # type: ignore[attr-defined]
    check_json(b'{"labels": [' + b",".join([label] * MAX_LABELS) + b"]}", limits)


def test_labels_are_validated_one_by_one_up_to_the_first_that_is_not_valid() -> None:
    labels = LabelsIn.model_validate({"labels": [LABEL, {"face_a": 3}, *({} for _ in range(MAX_LABELS - 2))]})
    validated = labels.iterate_labels()
    assert next(validated) == LabelIn(face_a="x", face_b="y", same=True)
    with pytest.raises(Invalid, match=r"body\.labels\.1\.face_a: "):
        next(validated)
