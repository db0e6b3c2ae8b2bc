"""`likeness demo corrections`: what labels change at once, and what stays when the model changes."""

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli.client import console, map_with_progress, read_answer, wait_for_job
from app.cli.demo.gallery import (
    COLLECTION,
    DEFAULT_PEOPLE,
    Faces,
    import_root,
    read_faces,
    split_people,
    upload_gallery,
)
from app.cli.private_service import run_service

DEPLOYMENT = f"/v1/collections/{COLLECTION}/deployments/identity"
MATCHES = 50
TIMED_LABELS, MAX_WAIT_SECONDS = 20, 30.0
LABELS_PER_REQUEST = 500
MAX_SEARCHES = 500
"""Searches of each kind with people who have no labels, to bound the time."""
MAX_NAMELESS = 200
SAME_LABELLER, DIFFERENT_LABELLER = "ada", "grace"

Pair = tuple[str, str]


@dataclass(frozen=True)
class StoryState:
    """What searches answer at one point of the story. Shares are 0..1, None if there was nothing to search with.

    returned: pairs labelled "not the same" of which one face is a match of the other
    joined: share of the faces without a name that are found as the person whom labels say they are
    first_right: share of people without labels who are the first match
    strangers_named: share of strangers who get a name
    """

    point: str
    returned: int
    joined: float | None
    first_right: float | None
    strangers_named: float | None


@dataclass
class Story:
    """The searches that are repeated at each point. They are all with enrolled faces.

    different_pairs: pairs that will be labelled "not the same"
    nameless: face without a name -> the subject that it belongs to
    confirming: face without a name -> a face of that subject
    unseen: people who are never labelled; strangers: faces of people who have no other photo
    """

    client: httpx.Client
    different_pairs: list[Pair] = field(default_factory=list)
    nameless: dict[str, str] = field(default_factory=dict)
    confirming: dict[str, str] = field(default_factory=dict)
    unseen: Faces = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    states: list[StoryState] = field(default_factory=list)

    def look(self, point: str) -> None:
        """Repeat all searches, and note what they answer."""
        self.states.append(
            StoryState(
                point,
                sum(map_with_progress(f"{point}: labelled pairs", self.different_pairs, self._is_match)),
                self._share("faces without a name", point, list(self.nameless.items()), self._is_named_as),
                self._share("people without labels", point, list(self.unseen.items()), self._is_first),
                self._share("strangers", point, self.strangers, self._gets_a_name),
            )
        )

    def _share(self, of: str, point: str, queries: list[Any], holds: Any) -> float | None:
        return statistics.fmean(map_with_progress(f"{point}: {of}", queries, holds)) if queries else None

    def _is_match(self, pair: Pair) -> bool:
        return pair[1] in [match["face_id"] for match in search(self.client, pair[0], group_by="face")["matches"]]

    def _is_named_as(self, query: tuple[str, str]) -> bool:
        return bool((search(self.client, query[0])["subject"] or {}).get("id") == query[1])

    def _is_first(self, query: tuple[str, list[str]]) -> bool:
        matches = [m for m in search(self.client, query[1][0])["matches"] if m["face_id"] != query[1][0]]
        return bool(matches and (matches[0]["subject"] or {}).get("id") == query[0])

    def _gets_a_name(self, face: str) -> bool:
        return bool(search(self.client, face)["decision"] == "match")


def search(client: httpx.Client, face: str, **params: Any) -> dict[str, Any]:
    """Search with an enrolled face, which is left out of its own answer."""
    path = f"/v1/collections/{COLLECTION}/faces/{face}/search"
    return dict(read_answer(client.post(path, params={"limit": MATCHES} | params))["faces"][0])


def demo_corrections(
    data: Annotated[Path | None, typer.Option(exists=True, help="folder, tar or zip of <person>/<photo>")] = None,
    people: Annotated[int, typer.Option(help="number of synthetic people, without --data")] = DEFAULT_PEOPLE,
    labels: Annotated[int, typer.Option(min=TIMED_LABELS, help='most pairs to label "not the same"')] = 1000,
    recogniser: Annotated[
        str, typer.Option(help="what describes the faces; default: auto with --data, lbp without")
    ] = "",
    output: Annotated[Path | None, typer.Option("--json", help="file to write the figures to")] = None,
) -> None:
    """Label pairs, and see them change the next search; then retrain, roll back, restart and import again."""
    started_at = time.monotonic()
    settings = {
        "import_roots": import_root(data),
        "default_recogniser": recogniser or ("auto" if data else "lbp"),
    }
    with tempfile.TemporaryDirectory(prefix="likeness-demo-") as folder:
        home = Path(folder)
        with run_service(home, **settings) as client:
            console.rule("1  upload")
            read_answer(client.put(f"/v1/collections/{COLLECTION}", json={"description": "demo"}))
            upload_gallery(client, data, people, singles=people // 2)
            story = prepare(client, labels)
            story.look("before")
            console.rule("2  label, and search again")
            seconds = label_everything(story)
            story.look("labelled")
            console.rule("3  learn from the labels, and publish")
            choice, verdict = retrain(client)
            story.look("trained and published")
            console.rule("4  roll back")
            wait_for_job(client, client.post(f"{DEPLOYMENT}:rollback"), "roll back")
            story.look("rolled back")
        console.rule("5  restart")
        with run_service(home, **settings) as client:
            story.client = client
            story.look("restarted")
            console.rule(f"6  withdraw all labels of the labeller {SAME_LABELLER}, import the same photos again")
            withdraw(story)
            story.look("withdrawn")
            name_again(story)
            upload_gallery(client, data, people, singles=people // 2)
            story.look("imported again")
    show(story, seconds, choice, verdict)
    if output:
        figures = {
            "states": [asdict(s) for s in story.states],
            "label_seconds": seconds,
            "choice": choice,
            "verdict": verdict,
        }
        output.write_text(json.dumps(figures, indent=1))
    console.print(f"{time.monotonic() - started_at:.0f} s in all. Nothing is kept.")


def prepare(client: httpx.Client, labels: int) -> Story:
    """Choose the searches: half of the people are labelled. Takes the names of some of their faces away."""
    faces = read_faces(client)
    known, unseen = split_people(faces)
    strangers = [ids[0] for ids in faces.values() if len(ids) == 1][:MAX_SEARCHES]
    story = Story(client, find_lookalikes(client, known, labels), unseen=dict(list(unseen.items())[:MAX_SEARCHES]))
    story.strangers = strangers
    separated = {face for pair in story.different_pairs for face in pair}
    for name, ids in known.items():
        spare = [face for face in ids if face not in separated]
        if len(spare) > 1 and len(ids) > 2 and len(story.nameless) < MAX_NAMELESS:
            story.nameless[spare[0]], story.confirming[spare[0]] = name, spare[1]
    for face in story.nameless:
        rename(client, face, None)
    return story


def find_lookalikes(client: httpx.Client, known: Faces, count: int) -> list[Pair]:
    """Return the pairs of faces of different people that are most alike, at most one for each face that is searched."""
    owners = {face: name for name, ids in known.items() for face in ids}

    def find(face: str) -> tuple[float, Pair] | None:
        for match in search(client, face, group_by="face")["matches"]:
            if owners.get(match["face_id"], owners[face]) != owners[face]:
                return match["distance"], (face, match["face_id"])
        return None

    lookalikes = filter(None, map_with_progress("look for people who look alike", list(owners), find))
    nearest = {frozenset(pair): (distance, pair) for distance, pair in lookalikes}
    return [pair for _, pair in sorted(nearest.values())[:count]]


def label_everything(story: Story) -> list[float]:
    """Label every chosen pair. The first ones are labelled one by one: returns the seconds until each acted."""
    seconds = [_time_label(story.client, pair) for pair in story.different_pairs[:TIMED_LABELS]]
    send_labels(story.client, story.different_pairs[TIMED_LABELS:], same=False, by=DIFFERENT_LABELLER)
    send_labels(story.client, list(story.confirming.items()), same=True, by=SAME_LABELLER)
    for pair in [*story.different_pairs[-1:], *list(story.confirming.items())[-1:]]:
        wait_for_label(story.client, pair)
    return seconds


def _time_label(client: httpx.Client, pair: Pair) -> float:
    started = time.monotonic()
    send_labels(client, [pair], same=False, by=DIFFERENT_LABELLER)
    wait_for_label(client, pair)
    return time.monotonic() - started


def send_labels(client: httpx.Client, pairs: Sequence[Pair], same: bool, by: str) -> None:
    rows = [{"face_a": a, "face_b": b, "same": same, "by": by} for a, b in pairs]
    for start in range(0, len(rows), LABELS_PER_REQUEST):
        answer = read_answer(client.post("/v1/labels", json={"labels": rows[start : start + LABELS_PER_REQUEST]}))
        if answer["refused"]:
            raise RuntimeError(f"labels were refused: {answer['refused'][:3]}")


def wait_for_label(client: httpx.Client, pair: Pair, acts: bool = True) -> None:
    """Wait until the label of a pair acts, or no longer acts, on a search with its first face. Raises RuntimeError."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while is_acting(client, pair) != acts:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the label did not act within {MAX_WAIT_SECONDS:.0f} s")
        time.sleep(0.01)


def is_acting(client: httpx.Client, pair: Pair) -> bool:
    labels = search(client, pair[0], group_by="face")["corrected_by"]
    return set(pair) in [{label["face_a"], label["face_b"]} for label in labels]


def withdraw(story: Story) -> None:
    """Withdraw the labels that say whose the faces without a name are."""
    read_answer(story.client.delete("/v1/labels", params={"by": SAME_LABELLER}))
    for pair in list(story.confirming.items())[-1:]:
        wait_for_label(story.client, pair, acts=False)


def name_again(story: Story) -> None:
    """Give the faces without a name their names back: the archive names them too."""
    for face, name in story.nameless.items():
        rename(story.client, face, name)
    story.nameless.clear()


def rename(client: httpx.Client, face: str, subject: str | None) -> None:
    read_answer(client.patch(f"/v1/collections/{COLLECTION}/faces/{face}", json={"subject": subject}))


def retrain(client: httpx.Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learn from the labels by `auto` and publish, by an override where the gate refuses.

    Returns what `auto` chose, and the verdict of the publication.
    """
    sources = [{"task": "identity", "collection": COLLECTION, "from": "labels"}]
    body = {"collection": COLLECTION, "method": "auto", "sources": sources}
    job = wait_for_job(client, client.post("/v1/trainings", json=body), "learn from the labels")
    model = str(job["result"]["model"])
    order = {"model": model, "override": True, "reason": "the demo goes on, whatever the gate says"}
    wait_for_job(client, client.post(f"{DEPLOYMENT}:publish", json=order), "measure, re-embed and publish")
    training = read_answer(client.get(f"/v1/models/{model}"))["training_id"]
    choice = read_answer(client.get(f"/v1/trainings/{training}"))["report"].get("choice", {})
    [move] = read_answer(client.get(DEPLOYMENT))["history"][-1:]
    return choice, move.get("verdict") or {}


def show(story: Story, seconds: Sequence[float], choice: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Print a row for each point of the story."""
    table = Table(
        "",
        '"not the same" that match',
        "without a name, found",
        "never labelled, found first",
        "strangers named",
        title=f"{len(story.different_pairs):,} pairs labelled not the same, {len(story.confirming):,} the same; "
        f"{len(story.unseen):,} people and {len(story.strangers):,} strangers without labels",
    )
    for state in story.states:
        shares = (state.joined, state.first_right, state.strangers_named)
        table.add_row(
            state.point, f"{state.returned:,}", *("" if share is None else f"{share:.1%}" for share in shares)
        )
    console.print(table)
    if seconds:
        console.print(
            f"A label changed the next search after {statistics.median(seconds):.2f} s (median), "
            f"{max(seconds):.2f} s at most, of {len(seconds)}."
        )
    console.print(f"The method auto chose {choice.get('words', 'nothing')}: {choice.get('reason', '')}")
    if not choice.get("changed"):
        console.print("So the model that was published compares faces as the one before.")
    console.print("The gate: passed" if verdict.get("passed") else "The gate would have refused, and was overridden:")
    for reason in verdict.get("reasons", ()):
        console.print(f"  {reason}")
    for promises in verdict.get("labels", {}).values():
        passing = promises["different_passing"]
        console.print(
            f'By distance alone, without the labels, {passing["before"]} pairs "not the same" passed before and '
            f"{passing['after']} pass under the new model."
        )
