"""Answers of the routes for probes and versions."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples

LOADED: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "task": "identity",
    "model": examples.MODEL,
    "version": 3,
    "change": 1042,
    "vectors": 2400,
    "cells": 128,
    "held": [examples.MODEL],
}
RECOGNISER: dict[str, Any] = {
    "name": "dlib_resnet",
    "model": examples.BUILT_IN_MODEL,
    "right_first": 0.97,
    "notice": None,
    "mend": None,
}
INFO: dict[str, Any] = {
    "version": "0.1.0",
    "python": "3.11.7",
    "faiss": "1.15.0",
    "database": "sqlite",
    "detector": "hog",
    "index_device": "auto",
    "recogniser": RECOGNISER,
    "slots": 8,
    "process": "host-1-4711",
    "deployments": [LOADED],
}
NOT_LOADED_REASON = "deployments: 2, not loaded yet"


class AliveOut(BaseModel):
    """The process is alive."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})
    status: Literal["ok"] = "ok"


class ReadyOut(BaseModel):
    """Whether requests may be sent to this process, and the reasons if not."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"status": "ok", "reasons": []},
                {"status": "not ready", "reasons": [NOT_LOADED_REASON]},
            ]
        }
    )
    status: Literal["ok", "not ready"]
    reasons: list[str]


class LoadedOut(BaseModel):
    """A deployment as this process serves it."""

    model_config = ConfigDict(json_schema_extra={"examples": [LOADED]})
    collection: str
    task: str
    model: str = Field(description="the champion")
    version: int = Field(description="the version of the deployment")
    change: int = Field(description="the last change of the collection that the index has applied")
    vectors: int
    cells: int | None
    held: list[str] = Field(description="the models whose indexes are loaded")


class DefaultRecogniserOut(BaseModel):
    """The recogniser that describes the faces of new collections."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECOGNISER]})
    name: str
    model: str = Field(description="the built-in model that serves a new collection")
    right_first: float | None = Field(
        description="share of searches whose first match is the right person, measured on 500 people of LFW; null: not "
        "measured"
    )
    notice: str | None = Field(description="why the recommended recogniser is not used, and what to do; null: it is")
    mend: str | None = Field(description="the command that installs the missing files; null: nothing is missing")


class InfoOut(BaseModel):
    """Versions, important settings and loaded deployments of this process."""

    model_config = ConfigDict(json_schema_extra={"examples": [INFO]})
    version: str
    python: str
    faiss: str
    database: str
    detector: str
    index_device: str
    recogniser: DefaultRecogniserOut = Field(description="the recogniser of new collections")
    slots: int = Field(description="the number of requests that are described at once")
    process: str
    deployments: list[LoadedOut]
