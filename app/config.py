"""The settings of the service, read once from the environment. An unknown variable stops the start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from joblib import cpu_count
from pydantic import BaseModel, Field, model_validator

PREFIX = "LIKENESS_"
MODEL_FOLDER, DETECTOR_FOLDER = "models", "detectors"  # of the home
CLIENT = {"LIKENESS_URL", "LIKENESS_KEY"}  # where the commands find a service; no setting of one
MiB = 2**20
REPLACED = dict.fromkeys(("onnx_manifests", "cnn_manifests"), "descriptor_manifests")
"""Settings of an earlier version, and those that took their place."""
AUTO, LBP, DLIB_RESNET = "auto", "lbp", "dlib_resnet"


class Settings(BaseModel, frozen=True, extra="forbid"):
    """The settings. `LIKENESS_DATABASE_URL` sets `database_url`, and so on; every setting has a default."""

    home: Path = Field(Path(".likeness"), description="The folder that holds everything the service keeps on disk.")
    database_url: str = Field(
        "", description="Empty: SQLite in the home. Otherwise `postgresql://user:password@host/name`."
    )
    redis_url: str = Field(
        "", description="Empty: processes poll for jobs and changes. Otherwise `redis://host`, and they are notified."
    )

    detector: Literal["hog", "yunet"] = Field(
        "hog", description="The face detector. `yunet` needs `likeness detectors pull yunet` first."
    )
    descriptor_manifests: dict[str, Path] = Field(
        {},
        description="JSON object: name of a recogniser -> manifest of its model file, beside the recognisers in the "
        "home. The manifest's fields say which descriptor runs the file.",
    )
    default_recogniser: str = Field(
        AUTO,
        description="What describes the faces of a new collection: `dlib_resnet`, `lbp`, or a name in "
        "descriptor_manifests. `auto`: `dlib_resnet` if its weights are installed, otherwise `lbp`.",
    )
    index_device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where search indexes live. `auto`: on the GPU if FAISS finds one, otherwise on the CPU."
    )

    workers: int = Field(
        0, ge=0, le=64, description="Worker processes for short jobs that `likeness serve` starts. 0: one per core."
    )
    inference_slots: int = Field(
        0, ge=0, le=256, description="Requests of an API process that are described at once. 0: one per core."
    )
    patience_seconds: float = Field(
        10, gt=0, description="How long a request waits for a slot before it is answered with 503."
    )
    lease_seconds: float = Field(
        15, gt=0, description="How long a worker may be silent before its job is given to another worker."
    )
    poll_seconds: float = Field(
        0.5, gt=0, description="How often followers look for changes and idle workers for jobs."
    )
    wpca_after_faces: int = Field(
        2000,
        ge=0,
        description="At this many gallery faces, a collection that LBP serves gets a first WPCA model, published only "
        "if it is measured to be better. 0: never.",
    )

    max_image_bytes: int = Field(20 * MiB, gt=0, description="Largest photo, in bytes of the file.")
    max_image_pixels: int = Field(50_000_000, gt=0, description="Largest photo, in pixels (width x height).")
    max_faces_per_image: int = Field(100, gt=0, description="Most faces enrolled from one photo that names no subject.")
    max_json_bytes: int = Field(32 * MiB, gt=0, description="Largest body of a request without a photo or archive.")
    max_import_bytes: int = Field(64 * 1024 * MiB, gt=0, description="Largest archive, in bytes as it is sent.")
    max_import_unpacked_bytes: int = Field(
        512 * 1024 * MiB, gt=0, description="Largest archive, in bytes when it is unpacked."
    )
    max_import_entries: int = Field(2_000_000, gt=0, description="Most entries of an archive or folder.")
    max_import_ratio: int = Field(200, gt=0, description="Largest ratio of unpacked to packed bytes of one entry.")
    import_roots: tuple[Path, ...] = Field(
        (), description="JSON array: folders on this server from which `:import` may read photos."
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Read the settings. Raises pydantic.ValidationError, which names an unknown or wrong variable."""
        values = {k.removeprefix(PREFIX).lower(): v for k, v in env.items() if k.startswith(PREFIX) and k not in CLIENT}
        return cls.model_validate({k: json.loads(v) if v[:1] in ("{", "[") else v for k, v in values.items()})

    @model_validator(mode="before")
    @classmethod
    def _refuse_replaced(cls, values: dict[str, Any]) -> dict[str, Any]:
        for old in REPLACED.keys() & values.keys():
            raise ValueError(
                f"{PREFIX}{old.upper()} is now {PREFIX}{REPLACED[old].upper()}, which takes the same value"
            )
        return values

    @model_validator(mode="after")
    def _default_is_known(self) -> Self:
        known = (AUTO, LBP, DLIB_RESNET, *sorted(self.descriptor_manifests))
        if self.default_recogniser not in known:
            raise ValueError(f"default_recogniser is {self.default_recogniser!r}; there are: {', '.join(known)}")
        return self

    @property
    def database(self) -> str:
        """The address of the database, with the driver for SQLAlchemy."""
        if not self.database_url:
            return f"sqlite:///{self.home / 'likeness.sqlite'}"
        return self.database_url.replace("postgresql://", "postgresql+psycopg://", 1)

    @property
    def model_folder(self) -> Path:
        return self.home / MODEL_FOLDER

    @property
    def detector_folder(self) -> Path:
        return self.home / DETECTOR_FOLDER

    @property
    def slots(self) -> int:
        return self.inference_slots or cpu_count()
