"""The settings of the service, read once from the environment. An unknown variable stops the start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from joblib import cpu_count
from pydantic import BaseModel, Field, field_validator, model_validator

PREFIX = "LIKENESS_"
MODEL_FOLDER, DETECTOR_FOLDER, AUDIT_FOLDER, SNAPSHOT_FOLDER = (
    "models",
    "detectors",
    "audit",
    "snapshots",
)  # of the home
API_PROCESSES_VARIABLE = "LIKENESS_API_PROCESSES"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""With it, prometheus_client counts in files of a folder, from which each process can read what all have counted."""
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

    api_processes: int = Field(
        1, ge=1, le=64, description="Processes of the API that `likeness serve` starts; they share the port."
    )
    workers: int = Field(
        0, ge=0, le=64, description="Worker processes for short jobs that `likeness serve` starts. 0: one per core."
    )
    inference_slots: int = Field(
        0,
        ge=0,
        le=256,
        description="Requests of an API process that are described at once. 0: one per core, shared by the "
        "`api_processes`.",
    )
    request_slots: int = Field(
        0,
        ge=0,
        le=256,
        description="Requests of an API process that run at once. 0: as many as `inference_slots`.",
    )
    min_queued_requests: int = Field(
        16,
        ge=0,
        description="Requests that may always wait for a slot. Those beyond are answered with 503 if they would miss "
        "their deadline.",
    )
    patience_seconds: float = Field(
        10, gt=0, description="How long a request waits for a slot at most before it is answered with 503."
    )
    lease_seconds: float = Field(
        15, gt=0, le=1_800, description="How long a worker may be silent before its job is given to another worker."
    )
    max_training_seconds: float = Field(
        7_200,
        gt=0,
        description="How long a training, an evaluation or another job of the training queue may run. Others wait for "
        "it; one that takes longer fails.",
    )
    poll_seconds: float = Field(
        0.5,
        gt=0,
        le=1,
        description="How often processes look for changes, jobs and revoked keys. An erasure counts on it that each "
        "process has looked lately.",
    )
    wpca_after_faces: int = Field(
        2000,
        ge=0,
        description="At this many gallery faces, a collection that LBP serves gets a first WPCA model, published only "
        "if it is measured to be better. 0: never.",
    )

    require_consent: bool = Field(
        False,
        description="Whether a face is given only to subjects whose `consent` is true. Otherwise it is refused only "
        "where `consent` is false.",
    )

    max_connections: int = Field(
        1_024,
        gt=0,
        description=(
            "Most connections that an API process holds open. A further one closes one that waits for a request, or is "
            "answered with 503."
        ),
    )
    max_connections_per_address: int = Field(
        256,
        gt=0,
        description="Most connections of an API process from one IPv4 address or IPv6 /64 network. A proxy counts as "
        "one address.",
    )
    max_key_requests_per_minute: int = Field(
        0, ge=0, description="How many requests a key may send in a minute before it is answered with 429. 0: any."
    )
    max_address_requests_per_minute: int = Field(
        0, ge=0, description="How many requests an address may send in a minute before it is answered with 429. 0: any."
    )
    max_wrong_keys_per_minute: int = Field(
        60,
        ge=0,
        description="How many wrong keys an address may send in a minute. More are answered with 429 and not looked "
        "up; keys that were right before are accepted. 0: any.",
    )

    oidc_issuer: str = Field(
        "",
        description="Address of an OpenID Connect issuer whose access tokens are accepted beside keys, exactly as its "
        "tokens name it. Empty: only keys are accepted.",
    )
    oidc_audience: str = Field(
        "",
        description="The audience that a token must have: what the issuer calls this service. Needed with an issuer.",
    )
    oidc_keys_url: str = Field(
        "", description="Address of the issuer's public keys. Empty: its discovery document says where they are."
    )
    oidc_roles_claim: str = Field(
        "roles", description="The claim that holds the roles of a token; `realm_access.roles` is one within another."
    )
    oidc_roles: dict[str, Literal["reader", "operator", "admin"]] = Field(
        {"likeness-reader": "reader", "likeness-operator": "operator", "likeness-admin": "admin"},
        description="JSON object: role of the issuer -> role of this service. The highest one counts.",
    )
    oidc_collections_claim: str = Field(
        "",
        description='The claim that lists the collections that a token is bound to, or `"*"` for all. Empty: tokens '
        "are bound to no collection.",
    )

    audit_searches: bool = Field(
        True,
        description="Whether what readers may do is audited too: searches, verifications, and views of photos and "
        "crops. Changes always are.",
    )
    audit_days: int = Field(
        365, ge=0, description="How many days entries of the audit log are kept. 0: they are never removed."
    )

    max_snapshots: int = Field(
        10,
        ge=0,
        description="Most snapshots that are kept in the home. Another one is refused until one is deleted. 0: none "
        "can be taken over HTTP.",
    )

    max_image_bytes: int = Field(20 * MiB, gt=0, description="Largest photo, in bytes of the file.")
    max_image_pixels: int = Field(50_000_000, gt=0, description="Largest photo, in pixels (width x height).")
    max_faces_per_image: int = Field(
        100,
        gt=0,
        description="Most faces enrolled from one photo that names no subject, and most that a photo is searched for.",
    )
    max_json_bytes: int = Field(
        32 * MiB,
        gt=0,
        description="Largest body of a request without a photo or archive; most have a limit of 1 MiB too.",
    )
    max_import_bytes: int = Field(
        64 * 1024 * MiB, gt=0, description="Largest archive or file of vectors, in bytes as it is sent."
    )
    max_import_unpacked_bytes: int = Field(
        512 * 1024 * MiB, gt=0, description="Largest archive, in bytes when it is unpacked."
    )
    max_import_entries: int = Field(
        2_000_000, gt=0, description="Most entries of an archive or folder, or vectors of a file."
    )
    max_import_ratio: int = Field(
        200, gt=0, description="Largest ratio of unpacked to packed bytes, of one entry and of a whole archive."
    )
    archive_timeout_seconds: float = Field(
        60,
        gt=0,
        description="How long the process that parses an archive may give no result. It may use this much processor "
        "time, and a second more for every 4 MiB of the archive.",
    )
    import_roots: tuple[Path, ...] = Field(
        (), description="JSON array: folders on this server from which `:import` may read photos."
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Read the settings. Raises pydantic.ValidationError, which names an unknown or wrong variable."""
        values = {k.removeprefix(PREFIX).lower(): v for k, v in env.items() if k.startswith(PREFIX) and k not in CLIENT}
        return cls.model_validate({k: _parse_json(v) if v[:1] in ("{", "[") else v for k, v in values.items()})

    @field_validator("database_url")
    @classmethod
    def _is_known_database(cls, url: str) -> str:
        if url and not url.startswith(("postgresql://", "postgresql+psycopg://", "sqlite://")):
            raise ValueError("must begin with postgresql:// (or be empty, for SQLite in the home)")
        urlsplit(url).port  # noqa: B018  # raises ValueError if it is no number
        return url

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: str) -> str:
        if url and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix:// (or be empty)")
        return url

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

    @model_validator(mode="after")
    def _issuer_is_complete(self) -> Self:
        if self.oidc_issuer and not self.oidc_audience:
            raise ValueError("oidc_issuer needs oidc_audience, so that tokens for other services are refused")
        for name in ("oidc_issuer", "oidc_keys_url"):
            address = getattr(self, name)
            if address and urlsplit(address).scheme not in ("https", "http"):
                raise ValueError(f"{name} must begin with https:// (or http://, on a network that you trust)")
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
        return self.inference_slots or max(1, cpu_count() // self.api_processes)

    @property
    def threads_per_slot(self) -> int:
        """The threads of the numerical libraries for a request of the API."""
        cores: int = cpu_count()
        return max(1, cores // (self.slots * self.api_processes))

    @property
    def scan_helpers(self) -> int:
        """The threads of an API process that help with long scans of an index: its further cores."""
        cores: int = cpu_count()
        return max(1, cores // self.api_processes) - 1

    @property
    def concurrent_requests(self) -> int:
        return self.request_slots or self.slots


def _parse_json(value: str) -> Any:
    """Return the parsed value; the text itself if it is not JSON, so that its setting is named as not valid."""
    try:
        return json.loads(value)
    except ValueError:
        return value
