"""What was measured of a model in a deployment, as the deployment's row holds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ml.calibration import Calibration
from ml.identification.open_set import OpenSetCalibration
from ml.indexes import OperatingPoint

DEFAULT_FMR = 0.001


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
