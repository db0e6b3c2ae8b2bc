"""A sweep removes what killed processes have left of models."""

import os
from typing import Any

import pytest

from app.queue.messages import Sweep
from app.resources import Resources
from ml.embedders.wpca import Wpca
from ml.model import save_model
from tests.rows import make_model
from tests.workers.test_erase import context
from workers.handlers.sweep import sweep_all


class Killed(BaseException):
    pass


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sweep_removes_models_that_were_never_complete(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    folder = resources.models.folder
    kept = save_model(make_model("kept"), folder)
    monkeypatch.setattr("ml.model.shutil.rmtree", die)
    monkeypatch.setattr(Wpca, "save", lambda self, part: (part.mkdir(), die()))
    with pytest.raises(Killed):
        save_model(make_model("half"), folder)
    monkeypatch.undo()
    [staged] = [path for path in folder.iterdir() if path.name.startswith(".")]
    sweep_all(Sweep(), context(resources))
    assert staged.exists(), "it may be completed yet"
    for path in (staged, kept):
        os.utime(path, (1.0, 1.0))
    sweep_all(Sweep(), context(resources))
    assert not staged.exists()
    assert kept.exists()
