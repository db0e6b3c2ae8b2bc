"""Archives: listed in bounded memory, read in any order, and refused when they are hostile."""

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.enrolment.archives import ArchiveLimits, filter_entries, is_gzip, open_archive, unpack_gzip
from app.enrolment.archives.entries import Entry
from app.enrolment.archives.manifest import ArchiveManifest
from app.errors import Invalid, TooLarge
from ml.errors import Unreadable

LIMITS = ArchiveLimits(entries=100, unpacked=10**6, ratio=200, photo=10**5)
FILES = {"ada/1.jpg": b"one", "ada/2.jpg": b"two" * 900, "top.png": b"three", "grün/ü.jpg": b"four"}
HIDDEN = {"__MACOSX/ada/._1.jpg": b"x", ".DS_Store": b"x", "ada/.hidden.jpg": b"x", "ada/Thumbs.db": b"x"}


def tar(path: Path, files: dict[str, bytes], kind: str = "w", **changes: object) -> Path:
    with tarfile.open(path, kind) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in changes.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data))
    return path


def packed(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def listed(path: Path, limits: ArchiveLimits = LIMITS) -> list[Entry]:
    return list(filter_entries(open_archive(path).entries(), limits))


@pytest.mark.parametrize("kind", ["tar", "zip", "stored zip", "folder"])
def test_every_file_is_listed_and_can_be_read_in_any_order(kind: str, tmp_path: Path) -> None:
    everything = FILES | HIDDEN
    path = {
        "tar": lambda: tar(tmp_path / "a", everything),
        "zip": lambda: packed(tmp_path / "a", everything),
        "stored zip": lambda: packed(tmp_path / "a", everything, zipfile.ZIP_STORED),
        "folder": lambda: folder(tmp_path / "a", everything),
    }[kind]()
    entries = listed(path)
    assert sorted(e.name for e in entries) == sorted(FILES)
    archive = open_archive(path)
    assert {e.name: archive.read(e, 10_000) for e in reversed(entries)} == FILES
    assert {e.name: e.folder for e in entries} == {
        "ada/1.jpg": "ada",
        "ada/2.jpg": "ada",
        "top.png": None,
        "grün/ü.jpg": "grün",
    }
    with pytest.raises(Unreadable, match=r"the limit is 3|more than 3 bytes"):
        archive.read(next(e for e in entries if e.size > 3), 3)


def test_a_tar_that_contains_the_folder_itself_is_accepted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.add(folder(tmp_path / "f", FILES), ".")
    assert sorted(e.name for e in listed(tmp_path / "a")) == sorted(FILES)


def test_a_compressed_tar_is_decompressed_in_place(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", FILES, "w:gz")
    assert is_gzip(path)
    unpack_gzip(path, LIMITS)
    assert sorted(e.name for e in listed(path)) == sorted(FILES)
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(TooLarge, match="bytes"):
        unpack_gzip(path, LIMITS)
    path.write_bytes(gzip.compress(b"x" * 1000)[:-10])
    with pytest.raises(Invalid, match="gzip"):
        unpack_gzip(path, LIMITS)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "name", ["../evil.jpg", "a/../../evil.jpg", "/etc/passwd", "C:/evil.jpg", "a\\..\\evil.jpg", "x" * 1025]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_that_lead_outside_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = (tar if kind == "tar" else packed)(tmp_path / "a", {"good/1.jpg": b"x", name: b"x"})
    with pytest.raises(Invalid) as refused:
        listed(path)
    assert refused.value.code == "InvalidArchive"


@pytest.mark.parametrize(
    "type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(type_: bytes, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="link or a device"):
        listed(tar(tmp_path / "a", {"link": b""}, type=type_, linkname="/etc/passwd"))


def test_links_and_secrets_in_a_zip_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(Invalid, match="link or a device"):
        listed(tmp_path / "a")
    data = bytearray(packed(tmp_path / "b", {"1.jpg": b"x"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(Invalid, match="encrypted"):
        listed(tmp_path / "b")


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", FILES)
    (path / "link.jpg").symlink_to("/etc/passwd")
    (path / "linked").symlink_to("/etc")
    assert sorted(e.name for e in listed(path)) == sorted(FILES)
    with pytest.raises(Unreadable):
        open_archive(path).read(Entry("link.jpg", 1, 1), 10_000)


def test_an_archive_over_a_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    many = tar(tmp_path / "many", {f"{n}.jpg": b"" for n in range(101)})
    with pytest.raises(TooLarge, match="100 entries"):
        listed(many)
    large = tar(tmp_path / "large", {f"{n}.jpg": bytes(10**5) for n in range(11)})
    with pytest.raises(TooLarge, match="1,000,000 bytes"):
        listed(large)
    bomb = packed(tmp_path / "bomb", {"bomb.jpg": bytes(9 * 10**5)})
    with pytest.raises(TooLarge, match="200 times"):
        listed(bomb)


def test_an_entry_with_a_false_size_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = packed(tmp_path / "a", {"1.jpg": bytes(10**6)})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    [entry] = listed(path)
    with pytest.raises(Unreadable, match="damaged"):
        open_archive(path).read(entry, 10_000)


def test_a_large_header_is_not_read_into_memory(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.XHDTYPE, 2 * 2**30
    (tmp_path / "a").write_bytes(huge.tobuf() + bytes(10_240))
    with pytest.raises(Invalid, match="a header has"):
        listed(tmp_path / "a")


def test_a_zip64_archive_can_be_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive, archive.open("ada/1.jpg", "w", force_zip64=True) as file:
        file.write(b"one")
    count = 65_600
    with zipfile.ZipFile(tmp_path / "b", "w") as archive:
        for n in range(count):
            archive.writestr(f"{n}.jpg", b"x")
    assert [e.name for e in listed(tmp_path / "a")] == ["ada/1.jpg"]
    entries = listed(tmp_path / "b", ArchiveLimits(100_000, 10**6, 200, 10))
    assert len(entries) == count
    assert open_archive(tmp_path / "b").read(entries[-1], 10) == b"x"


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_damaged_archive_is_either_read_or_refused_and_never_crashes(kind: str, tmp_path: Path) -> None:
    whole = (tar if kind == "tar" else packed)(tmp_path / "a", FILES).read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), 4):
            data[at] = rng.integers(256)
        (tmp_path / "a").write_bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)
        try:
            for entry in listed(tmp_path / "a"):
                open_archive(tmp_path / "a").read(entry, 10_000)
        except (Invalid, TooLarge, Unreadable):
            continue


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_truncated_archive_is_refused(kind: str, tmp_path: Path) -> None:
    path = (tar if kind == "tar" else packed)(tmp_path / "a", FILES)
    path.write_bytes(path.read_bytes()[:1600] if kind == "tar" else path.read_bytes()[:-30])
    with pytest.raises(Invalid):
        listed(path)


def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"text", bytes(range(256)) * 8, b"\x89PNG\r\n\x1a\n" + bytes(1000)):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(Invalid, match="neither tar"):
            listed(tmp_path / "a")


def test_a_manifest_assigns_photos_to_subjects() -> None:
    lines = b'file,subject,role,age,metadata\na.jpg,ada,distractor,36,"{""desk"": 1}"\nb.jpg,,,,\n'
    table = ArchiveManifest.read(lines, "manifest.csv")
    first = table.take("a.jpg")
    assert first is not None
    assert (first.subject, first.role, first.metadata) == ("ada", "distractor", {"age": "36", "desk": 1})
    assert table.take("c.jpg") is None
    assert list(table.iterate_unused()) == ["b.jpg"]
    table.close()
    lines = b'{"file": "a.jpg", "subject": "ada", "age": 36}\n\n{"file": "b.jpg"}\n'
    table = ArchiveManifest.read(lines, "manifest.jsonl")
    first = table.take("a.jpg")
    assert first is not None
    assert first.metadata == {"age": 36}
    table.close()


def test_a_manifest_states_the_source_of_a_photo() -> None:
    table = ArchiveManifest.read(b"file,subject,source\na.jpg,ada,gate-2\nb.jpg,ada,\n", "manifest.csv")
    first, second = table.take("a.jpg"), table.take("b.jpg")
    assert first is not None
    assert second is not None
    assert (first.source, first.metadata, second.source) == ("gate-2", {}, None)


@pytest.mark.parametrize(
    "lines",
    [
        b"subject\nada\n",
        b"file\na\na\n",
        b"file,subject\na,b,c\n",
        b"file,subject\na,..\n",
        b"file,role\na,hero\n",
        b"file,metadata\na,[1]\n",
        b'file,metadata\na,"{""x"": NaN}"\n',
        b"\xff\xfe",
    ],
)
def test_a_manifest_with_an_invalid_line_is_refused_with_the_line_number(lines: bytes) -> None:
    with pytest.raises(Invalid, match=r"line \d of manifest\.csv"):
        ArchiveManifest.read(lines, "manifest.csv")
