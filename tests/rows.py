"""Write faces directly into the tables, as enrolment does, for tests of the code that reads them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import uuid4

import numpy as np
from sqlalchemy import delete, insert, select

from app.db.session import writing
from app.db.tables import Collection, Deployment, Embedding, Face, Label, Removal, Subject
from app.resources import Resources
from ml.calibration import Calibration
from ml.embedders.wpca import Wpca
from ml.model import Model, Recipe
from ml.types import Rows

WIDTH = 9860


def make_model(name: str, dim: int = 8, seed: int = 0) -> Model:
    """A model with a random projection of the LBP descriptor to `dim` numbers, and no calibration."""
    embedder = Wpca(dim=dim)
    draw = np.random.default_rng(seed)
    embedder.learned = {
        "projection": draw.standard_normal((dim, WIDTH), dtype=np.float32),
        "offset": np.zeros(dim, np.float32),
    }
    return Model(name, Recipe(), "wpca", embedder, provenance={"made": "for a test"})


@cache
def _fit_calibration(genuine: bytes, impostor: bytes) -> dict[str, Any]:
    """Fit a calibration to distances as float64, and describe it. Tests of a module calibrate with the same ones."""
    return Calibration.fit(np.frombuffer(genuine), np.frombuffer(impostor)).to_dict()


def people(count: int, photos: int, dim: int = 8, seed: int = 0, spread: float = 0.2) -> tuple[Rows, list[str]]:
    """Draw (count * photos, dim) embeddings, clustered around a centre per person; return them and their subjects."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count, dim)).repeat(photos, axis=0)
    rows = (centres + spread * draw.standard_normal(centres.shape)).astype(np.float32)
    return rows, [f"p{i:03}" for i in np.arange(count).repeat(photos)]


@dataclass
class GalleryWriter:
    """Write a collection and its faces. Every write raises the change counter of the collection, as services do."""

    resources: Resources
    collection: str = "staff"
    pks: list[int] = field(default_factory=list)

    def make(self, champion: Model, task: str = "identity", **pointers: Any) -> "GalleryWriter":
        with writing(self.resources.database) as session:
            if session.get(Collection, self.collection) is None:
                session.add(Collection(id=self.collection))
                session.flush()
            for model in (champion, *(m for m in pointers.values() if m)):
                self.resources.models.keep(session, model)
            session.flush()
            others = {name: model.id for name, model in pointers.items()}
            session.add(Deployment(collection_id=self.collection, task=task, champion=champion.id, **others))
        return self

    def add(
        self,
        vectors: dict[str, Rows],
        subjects: Sequence[str | None],
        role: str = "gallery",
        metadata: Sequence[dict[str, Any]] | None = None,
        task: str = "identity",
    ) -> list[str]:
        """Enrol faces with their embeddings, vectors: model id -> (n, dim). Returns the face ids."""
        with writing(self.resources.database) as session:
            change = self._raised(session)
            subject_pks = {s.id: s.pk for s in session.scalars(select(Subject).where(self._here(Subject)))}
            for name in sorted({s for s in subjects if s} - subject_pks.keys()):
                subject = Subject(collection_id=self.collection, id=name, external_id=f"x-{name}")
                subject.attributes = {"team": "red" if name[-1] in "02468" else "blue"}
                session.add(subject)
                session.flush()
                subject_pks[name] = subject.pk
            faces = [
                {
                    "face_id": str(uuid4()),
                    "collection_id": self.collection,
                    "subject_pk": subject_pks[name] if name else None,
                    "role": role,
                    "image_id": uuid4().hex * 2,
                    "bounding_box": {"x": 0, "y": 0, "width": 9, "height": 9},
                    "landmarks": [],
                    "quality": {},
                    "attributes": metadata[i] if metadata else {},
                    "change": change,
                }
                for i, name in enumerate(subjects)
            ]
            pks = session.scalars(insert(Face).returning(Face.pk, sort_by_parameter_order=True), faces).all()
            for model, rows in vectors.items():
                embeddings = zip(pks, np.ascontiguousarray(rows, "<f4"), strict=True)
                known_as = {"model_id": model, "task": task}
                session.execute(
                    insert(Embedding), [known_as | {"face_pk": pk, "vector": r.tobytes()} for pk, r in embeddings]
                )
            self.pks += pks
        self.resources.notifier.notify("changes")
        return [str(face["face_id"]) for face in faces]

    def label(self, pairs: Iterable[tuple[int, int]], *, same: bool) -> None:
        """Label pairs of faces, known by their pks, as the API does."""
        with writing(self.resources.database) as session:
            for pair in pairs:
                face_a, face_b = sorted(pair)
                session.add(Label(task="identity", face_a=face_a, face_b=face_b, same=same, by="test"))
            collection = session.get_one(Collection, self.collection)
            collection.change += 1
            collection.label_change = collection.change
        self.resources.notifier.notify("changes")

    def remove(self, pks: Sequence[int]) -> None:
        with writing(self.resources.database) as session:
            change = self._raised(session)
            session.execute(delete(Face).where(Face.pk.in_(pks)))
            session.add_all(Removal(collection_id=self.collection, face_pk=pk, change=change) for pk in pks)
        self.pks = [pk for pk in self.pks if pk not in set(pks)]
        self.resources.notifier.notify("changes")

    def point(self, task: str = "identity", **pointers: str | None) -> None:
        """Move pointers of the deployment, as publishing does."""
        with writing(self.resources.database) as session:
            self._raised(session)
            deployment = session.get_one(Deployment, (self.collection, task))
            for name, model in pointers.items():
                setattr(deployment, name, model)
            deployment.version += 1
        self.resources.notifier.notify("changes")

    def calibrate(
        self,
        model: str,
        genuine: Rows,
        impostor: Rows,
        open_set: dict[str, Any] | None = None,
        task: str = "identity",
    ) -> None:
        """Write the measurements of a deployment as publishing does.

        genuine, impostor: distances of pairs of the same and of different people
        """
        measurements = {
            "calibration": _fit_calibration(np.float64(genuine).tobytes(), np.float64(impostor).tobytes()),
            "default_fmr": 0.001,
            "faces": len(self.pks),
        }
        measurements["open_set"] = open_set and {"calibration": open_set, "rates": []}
        with writing(self.resources.database) as session:
            deployment = session.get_one(Deployment, (self.collection, task))
            deployment.measurements = deployment.measurements | {model: measurements}
        self.resources.notifier.notify("changes")

    def _raised(self, session: Any) -> int:
        collection = session.get_one(Collection, self.collection, with_for_update=True)
        collection.change += 1
        return int(collection.change)

    def _here(self, row: Any) -> Any:
        return row.collection_id == self.collection
