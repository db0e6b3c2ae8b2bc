"""A follower notices that a server has taken over which lacks the last changes, and gives their numbers again."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, text, update

from app.db.session import reading, writing
from app.db.tables import Collection, Embedding, Face, Subject
from app.resources import Resources
from app.serving import follower
from app.serving.engine import Engine, open_engine
from tests.app.test_paused_follower import wait_for
from tests.paused_follower import pause_follower
from tests.rows import GalleryWriter, make_model

MODEL = make_model("m-one")
DRAW = np.random.default_rng(0)


def draw_rows(count: int) -> dict[str, Any]:
    return {MODEL.id: DRAW.standard_normal((count, 8)).astype(np.float32)}


def read_names(engine: Engine) -> dict[int, str | None]:
    """Return face -> subject of the faces of the index whose names are in memory."""
    with engine.use("staff") as serving:
        ids = serving.deployment.champion.index.ids()
        found = serving.deployment.faces.read(ids, 0.0)
        return {pk: face.subject for pk, face in found.items()}


def read_vectors(engine: Engine) -> dict[int, bytes]:
    with engine.use("staff") as serving:
        index = serving.deployment.champion.index
        ids = index.ids()
        return {pk: row.tobytes() for pk, row in zip(ids.tolist(), index.rows(ids), strict=True)}


def lose_changes_since(resources: Resources, change: int, last_pk: int) -> None:
    """Set the collection back to a change, as a server has it that lacks the later ones."""
    with writing(resources.database) as session:
        session.execute(delete(Face).where(Face.pk > last_pk))
        session.execute(update(Collection).values(change=change))
        if resources.database.dialect.name == "sqlite":
            session.execute(text("update sqlite_sequence set seq = :pk where name = 'faces'"), {"pk": last_pk})
        else:
            session.execute(text("select setval('faces_pk_seq', :pk)"), {"pk": last_pk})


@pytest.fixture
def engine(resources: Resources) -> Any:
    with open_engine(resources) as opened:
        yield opened


@pytest.mark.parametrize("new_faces", [0, 3, 5, 7])
def test_what_a_server_has_lost_is_not_served(
    resources: Resources, engine: Engine, monkeypatch: pytest.MonkeyPatch, new_faces: int
) -> None:
    monkeypatch.setattr(follower, "read_server_start", lambda _: 1.0)
    gallery = GalleryWriter(resources).make(MODEL)
    gallery.add(draw_rows(20), ["ann"] * 10 + ["bob"] * 10)
    last_pk = gallery.pks[-1]
    gallery.add(draw_rows(5), ["cy"] * 5)
    wait_for(lambda: len(read_names(engine)) == 25)
    go_on = pause_follower(engine, monkeypatch)

    lose_changes_since(resources, 1, last_pk)
    with writing(resources.database) as session:
        session.execute(update(Collection).values(change=2))
        ann = session.scalars(select(Subject).where(Subject.id == "ann")).one()
        ann.consent = False
        session.execute(update(Face).where(Face.subject_pk == ann.pk).values(change=2))
        session.execute(update(Collection).values(change=2 - bool(new_faces)))
    gallery.pks = gallery.pks[:20]
    if new_faces:
        gallery.add(draw_rows(new_faces), ["dee"] * new_faces)
    expected = dict.fromkeys(gallery.pks[10:20], "bob") | dict.fromkeys(gallery.pks[20:], "dee")
    with reading(resources.database) as session:
        stored = {e.face_pk: e.vector for e in session.scalars(select(Embedding))}
    monkeypatch.setattr(follower, "read_server_start", lambda _: 2.0)
    go_on.set()
    wait_for(lambda: read_names(engine) == expected, 10)
    wait_for(lambda: read_vectors(engine) == stored, 10)
