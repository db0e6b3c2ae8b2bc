"""Import a file of vectors into a running service, for `likeness import`."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import typer

from app.cli.client import read_answer, wait_for_job
from app.enrolment.vectors.npy_file import open_npy
from app.errors import Invalid

SUFFIX = ".npy"


def import_vectors(
    client: httpx.Client, collection: str, vectors: Path, table: Path | None, descriptor: dict[str, str]
) -> dict[str, Any]:
    """Upload vectors and their table, and return the job once it has ended.

    descriptor: name and metric of the vectors, for a collection that does not exist yet
    Raises typer.BadParameter if the file cannot be imported.
    """
    try:
        dim = open_npy(vectors, sys.maxsize).dim
    except Invalid as error:
        raise typer.BadParameter(error.detail, param_hint="FILE") from error
    path = f"/v1/collections/{collection}"
    if client.get(path).status_code == 404:
        read_answer(client.put(path, json={"descriptor": {"external": descriptor | {"dim": dim}}}))
    with ExitStack() as stack:
        files = {"vectors": stack.enter_context(vectors.open("rb"))}
        if table is not None:
            files["table"] = stack.enter_context(table.open("rb"))
        answer = client.post(f"{path}/faces:import-embeddings", files=files)
    return wait_for_job(client, answer, f"import {vectors.name}")
