"""What was measured of a model in a deployment: thresholds and speed, and the corrections of sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.tables import Deployment, StoredCompensation
from ml.calibration import Calibration
from ml.identification.open_set import OpenSetCalibration
from ml.indexes import OperatingPoint

DEFAULT_FMR = 0.001
KEPT_WITHOUT_CORRECTIONS = ("seen_share",)
"""The part of a measurement that holds for embeddings however they are corrected."""


@dataclass(frozen=True)
class Measurement:
    """An entry of `Deployment.measurements`: see `app.serving.calibration.gallery_calibration.measure_gallery`.

    change, named_faces, last_face: None if an earlier version measured it; labelled_faces: named by labels alone
    last_face: the largest pk of the faces; refused_faces: might not be used then; joined_people: people and distractors
    whom labels had joined to somebody else; labels_hash: of whom labels named and joined, None if not known
    learned_change: see `LearnedGallery.learned_change`
    people: with a name; None if an earlier version measured it; subjects: those who might be searched for
    """

    calibration: Calibration | None = None
    default_fmr: float = DEFAULT_FMR
    faces: int = 0
    named_faces: int | None = None
    labelled_faces: int = 0
    change: int | None = None
    curve: tuple[OperatingPoint, ...] = ()
    open_set: OpenSetCalibration | None = None
    candidates: int | None = None
    last_face: int | None = None
    refused_faces: int = 0
    joined_people: int = 0
    labels_hash: str | None = None
    people: int | None = None
    subjects: int = 0
    learned_change: int | None = None

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Raises ml.Corrupt, TypeError, KeyError, AttributeError or ValueError if this is no measurement."""
        calibration, open_set, candidates = (stored.get(name) for name in ("calibration", "open_set", "candidates"))
        return cls(
            calibration=Calibration.from_dict(calibration) if calibration else None,
            default_fmr=float(stored.get("default_fmr", DEFAULT_FMR)),
            faces=int(stored.get("faces", 0)),
            named_faces=None if stored.get("named_faces") is None else int(stored["named_faces"]),
            labelled_faces=int(stored.get("labelled_faces", 0)),
            refused_faces=int(stored.get("refused_faces", 0)),
            joined_people=int(stored.get("joined_people", 0)),
            labels_hash=stored.get("labels_hash"),
            people=None if stored.get("people") is None else int(stored["people"]),
            subjects=int(stored.get("subjects", 0)),
            learned_change=None if stored.get("learned_change") is None else int(stored["learned_change"]),
            change=None if stored.get("change") is None else int(stored["change"]),
            curve=tuple(OperatingPoint(**point) for point in stored.get("curve", ())),
            open_set=OpenSetCalibration.from_dict(open_set["calibration"]) if open_set else None,
            candidates=None if candidates is None else int(candidates),
            last_face=None if stored.get("last_face") is None else int(stored["last_face"]),
        )


def forget_corrections(session: Session, collection_id: str, *conditions: ColumnElement[bool]) -> None:
    """Empty the source compensations of a locked collection that meet these conditions, with what was measured by them.

    From the means of sources, the embedding of an erased face can be computed. The version is raised rather than used
    again, so that no index, atlas or measurement counts as made with the next one.
    """
    of_collection = StoredCompensation.collection_id == collection_id, StoredCompensation.data != b""
    deployments = select(Deployment).where(Deployment.collection_id == collection_id)
    fresh = {"populate_existing": True}
    for stored in session.scalars(
        select(StoredCompensation).where(*of_collection, *conditions), execution_options=fresh
    ):
        stored.version += 1
        stored.data, stored.decisions, stored.faces = b"", {}, {}
        for deployment in session.scalars(deployments.where(Deployment.task == stored.task), execution_options=fresh):
            deployment.measurements = {
                model: _drop_corrected(entry) if model == stored.model_id else entry
                for model, entry in deployment.measurements.items()
            }


def _drop_corrected(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {name: measured[name] for name in KEPT_WITHOUT_CORRECTIONS if name in measured}


def is_measured_as_corrected(session: Session, deployment: Deployment, model: str) -> bool:
    """Whether what was measured of a model was measured with its source compensation as it is now."""
    name = (deployment.collection_id, deployment.task, model)
    stored = session.get(StoredCompensation, name, populate_existing=True)
    measured = deployment.measurements.get(model) or {}
    return bool(measured.get("compensation", 0) == (stored.version if stored else 0))
