"""A newer version migrates the database while this one serves."""

from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli.server.api_process import find_schema_fault
from app.config import Settings
from app.errors import Busy
from app.resources import Resources
from app.serving.engine import open_engine
from app.startup import CannotStart
from tests.app.test_paused_follower import wait_for
from tests.raw_http import find_free_port
from tests.rows import GalleryWriter, make_model
from tests.service_subprocess import ServiceSubprocess
from tests.workers.test_database_check import set_revision


def test_the_service_ends(tmp_path: Path) -> None:
    service = ServiceSubprocess(tmp_path, find_free_port())
    try:
        assert service.process is not None
        service.execute("update alembic_version set version_num = '9999'")
        assert service.process.wait(30) == 1
        assert "likeness cannot go on: the database has the schema 9999, which a newer version" in (
            service.read_log_end()
        )
        with pytest.raises(httpx.TransportError):
            service.client.get("/livez")
    finally:
        service._end()


def test_nothing_is_served_any_more(resources: Resources) -> None:
    model = make_model("m-one")
    gallery = GalleryWriter(resources).make(model)
    gallery.add({model.id: np.eye(8, dtype=np.float32)}, ["ann"] * 8)
    faults: list[CannotStart] = []
    with open_engine(resources) as engine:
        engine.follower.when_outdated = faults.append
        with engine.use("staff") as serving:
            assert serving.face_count == 8
        set_revision(resources, "9999")
        wait_for(lambda: bool(faults), 10)
        with pytest.raises(Busy), engine.use("staff"):
            pass
    assert "9999" in str(faults[0])


def test_a_process_that_is_started_again_does_not_serve(resources: Resources, settings: Settings) -> None:
    assert find_schema_fault(settings) is None
    set_revision(resources, "9999")
    assert "9999" in str(find_schema_fault(settings))
