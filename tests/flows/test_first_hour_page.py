"""The commands of README.md and docs/use/first-hour.md, run as they stand."""

import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from app.config import Settings
from ml.images import encode_png
from ml.synthetic_faces import draw, person
from tests.service import Service, run_service

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
STARTS = ("make run", ".venv/bin/pip")
"""Blocks that install and start the service, which runs already here."""
CALM = 0.3
"""Strength of light, pose and noise: photos that any recogniser tells apart."""

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, which is not installed")


def read_commands(page: str) -> list[str]:
    """The shell blocks of a page, without those that start the service or set its address and key."""
    blocks = [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in BLOCK.findall(_text(page))]
    return [
        re.sub(r"^export (URL|KEY)=.*\n", "", block, flags=re.MULTILINE)
        for block in blocks
        if not block.startswith(STARTS)
    ]


def _text(page: str) -> str:
    return (ROOT / page).read_text()


def write_photos(folder: Path) -> None:
    """Write photos under the names that the pages use, and a command `.venv/bin/likeness`."""
    for shot in (1, 2):
        (folder / f"ada-{shot}.jpg").write_bytes(encode_png(draw(person(1), shot, strength=CALM)))
    with tarfile.open(folder / "photos.tar", "w") as archive:
        for who in (2, 3):
            data = encode_png(draw(person(who), 1, strength=CALM))
            entry = tarfile.TarInfo(f"person-{who}/1.png")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    command = folder / ".venv/bin/likeness"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m app.cli "$@"\n')
    command.chmod(0o755)


def run_page(page: str, service: Service, folder: Path) -> list[str]:
    """Run the blocks of the page at a reader's pace; return what each printed. Fails if one of them fails."""
    write_photos(folder)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "URL": service.url,
        "KEY": service.client.headers["Authorization"].removeprefix("Bearer "),
        "LIKENESS_HOME": str(service.resources.settings.home),
    }
    printed = []
    exports = ""
    for block in read_commands(page):
        script = "set -e\n" + exports + block.replace("curl ", "curl --fail-with-body --silent ")
        done = subprocess.run(["bash", "-c", script], env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
        exports += "".join(f"{line}\n" for line in block.splitlines() if line.startswith("export "))
        printed.append(done.stdout)
        service.wait_for_indexes()
    return printed


@pytest.mark.parametrize("page", ["README.md", "docs/use/first-hour.md"])
def test_the_commands_of_a_page_end_in_the_right_match(page: str, tmp_path: Path) -> None:
    with run_service(Settings(home=tmp_path / "home", workers=1, poll_seconds=0.05)) as service:
        printed = run_page(page, service, tmp_path)
        searched = [text for text in printed if '"decision"' in text]
        assert len(searched) == 1
        assert '"subject":{"id":"ada"' in searched[0].replace(" ", "")
        if page != "README.md":
            assert service.client.get("/v1/collections/staff").json()["subject_count"] == 3
