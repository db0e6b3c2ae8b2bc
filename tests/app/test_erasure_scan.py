"""What a scan finds in files and tables, and what it tells apart. No job runs."""

import json
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from app.db.session import writing
from app.db.tables import Collection, Embedding, Face, Job
from app.galleries.erasure_scan import ErasedBytes, ScanResult, scan_stores
from app.resources import Resources
from app.storage.blob_store import MAX_SINGLE_FILES, Blobs
from app.storage.fingerprints import Fingerprint, Fingerprinter
from app.storage.model_cache import LBP_MODEL
from app.storage.recognisers.external_models import make_external_model
from app.storage.text_encodings import list_text_encodings
from ml.descriptors.external import External

IMAGE = "a1" * 32
PHOTO, CROP, VECTOR = (np.random.default_rng(seed).bytes(256) for seed in range(3))
NAME = unicodedata.normalize("NFD", 'Zoë "Quux" Érasme')


@pytest.fixture
def resources(lasting_sqlite: Resources) -> Iterator[Resources]:
    with writing(lasting_sqlite.database) as session:
        session.add(Collection(id="later", change=0))
    yield lasting_sqlite
    with writing(lasting_sqlite.database) as session:
        for table in (Embedding, Face, Job, Collection):
            session.execute(delete(table))
    lasting_sqlite.blobs.set_aside("later")
    lasting_sqlite.blobs.empty_trash()


def scan(resources: Resources, *texts: str) -> ScanResult:
    """Search for the erased photo, crop and vector, and for texts."""
    fingerprinter = Fingerprinter(resources.installation_key)
    made: list[Fingerprint | None] = [
        fingerprinter.make("photo", PHOTO), fingerprinter.make("crop", CROP), fingerprinter.make("vector", VECTOR[:64]),
    ]  # fmt: skip
    finder = fingerprinter.open_finder(one for one in made if one)
    named = {text: list_text_encodings(text) for text in texts}
    return scan_stores(resources.database, resources.settings.home, ErasedBytes(finder, named))


def put_photo(resources: Resources) -> None:
    resources.blobs.put("later", [(Blobs.photo(IMAGE), PHOTO), (Blobs.crop(IMAGE, 0, "grey"), CROP)])


def enrol(resources: Resources, image: str, model: str = LBP_MODEL) -> None:
    """Store a face of a photo with the erased vector."""
    place = {"bounding_box": {}, "landmarks": [], "quality": {}, "change": 0}
    with writing(resources.database) as session:
        session.add(face := Face(collection_id="later", image_id=image, **place))
        session.flush()
        session.add(Embedding(model_id=model, task="identity", face_pk=face.pk, vector=VECTOR))


def test_the_same_photo_of_another_face_is_no_alarm(resources: Resources) -> None:
    put_photo(resources)
    enrol(resources, IMAGE)
    index = resources.indexes / "rows.npy"
    index.write_bytes(bytes(99) + VECTOR)
    result = scan(resources)
    index.unlink()
    assert (dict(result.hits), len(result.copies)) == ({}, 3)


def test_the_same_imported_vector_of_another_face_is_no_alarm(resources: Resources) -> None:
    external = make_external_model(External(size=64, metric="l2"))
    with writing(resources.database) as session:
        resources.models.keep(session, external)
        session.flush()
        session.get_one(Collection, "later").external_model = external.id
    enrol(resources, IMAGE, external.id)
    assert (dict(scan(resources).hits), len(scan(resources).copies)) == ({}, 1)
    with writing(resources.database) as session:
        session.get_one(Collection, "later").external_model = None
    assert ("table embeddings", "vector") in scan(resources).hits, "the embedding of another photo"


def test_files_of_no_face_are_found_and_so_is_the_vector_of_another_photo(resources: Resources) -> None:
    put_photo(resources)
    (stray := resources.blobs.root / "c-later" / "crops" / "stray").write_bytes(PHOTO)
    enrol(resources, "b2" * 32)
    result = scan(resources)
    assert {hit for hit in result.hits if not hit[0].startswith("likeness.sqlite")} == {
        (f"blobs/c-later/{Blobs.photo(IMAGE)}", "photo"),
        (f"blobs/c-later/{Blobs.crop(IMAGE, 0, 'grey')}", "crop"),
        ("blobs/c-later/crops/stray", "photo"),
        ("table embeddings", "vector"),
    }
    assert result.copies == set()
    stray.unlink()


def test_a_folder_that_vanishes_during_the_search_has_no_files(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := resources.settings.home / "note.txt").write_text(NAME)
    (folder := resources.models.folder / ".staged").mkdir()
    list_entries = os.scandir

    def remove_and_list(listed: Any) -> Any:
        if Path(listed) == folder:
            folder.rmdir()
        return list_entries(listed)

    monkeypatch.setattr(os, "scandir", remove_and_list)
    result = scan(resources, NAME)
    path.unlink()
    assert not folder.exists()
    assert result.hits["note.txt", "text"] == 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_name_is_found_in_json_within_json(resources: Resources, depth: int) -> None:
    text = f"like {NAME}."
    for _ in range(depth):
        text = json.dumps({"text": text})
    (path := Path(resources.settings.home) / "note.txt").write_text(text)
    with writing(resources.database) as session:
        session.add(Job(id="j", kind="examine", body={}, result={"advice": text}))
    result = scan(resources, unicodedata.normalize("NFC", NAME))
    path.unlink()
    assert result.hits["note.txt", "text"] == 1
    assert result.hits["table jobs", "text"] > 0, "a column of JSON adds a depth"


def test_a_segment_is_searched_file_by_file_and_between_its_files(resources: Resources) -> None:
    others = [Blobs.digest(f"other {n}".encode()) for n in range(MAX_SINGLE_FILES)]
    files = {Blobs.photo(IMAGE): PHOTO, Blobs.crop(IMAGE, 0, "grey"): CROP}
    resources.blobs.put("later", [*files.items(), *((Blobs.photo(image), image.encode()) for image in others)])
    [segment] = (resources.blobs.root / "c-later" / "segments").glob("*.seg")
    store = str(segment.relative_to(resources.settings.home))
    assert {hit for hit in scan(resources).hits if hit[0] == store} == {(store, "photo"), (store, "crop")}
    enrol(resources, IMAGE)
    assert dict(scan(resources).hits) == {}
    data = segment.read_bytes()
    resources.blobs.remove("later", files)
    with writing(resources.database) as session:
        for table in (Embedding, Face):
            session.execute(delete(table))
    assert {hit for hit in scan(resources).hits if hit[0] == store} == set()
    assert resources.blobs.has("later", map(Blobs.photo, others))
    with segment.open("r+b") as file:  # what a removal without overwriting would leave
        file.seek(data.index(PHOTO))
        file.write(PHOTO)
    assert {hit for hit in scan(resources).hits if hit[0] == store} == {(store, "photo")}
