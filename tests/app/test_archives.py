"""The parsers of archives: they list in bounded memory, read in any order, and refuse what is hostile."""

import gzip
import io
import os
import stat
import struct
import subprocess
import tarfile
import time
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.enrolment.archives.entries import Archive, ArchiveLimits, Entry, filter_entries
from app.enrolment.archives.folders import Folder
from app.enrolment.archives.formats import open_parser, recognise_format
from app.enrolment.archives.gzips import unpack_gzip
from app.enrolment.archives.manifest import ArchiveManifest
from app.enrolment.archives.manifest_rows import parse_rows
from app.enrolment.archives.tars import MAX_EXTENDED_HEADERS, MAX_HEADER_BYTES
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
    return list(filter_entries(open_files(path), limits))


def open_files(path: Path) -> Archive:
    return Folder(path) if path.is_dir() else open_parser(path)


def read_manifest(lines: bytes, name: str = "manifest.csv") -> ArchiveManifest:
    return ArchiveManifest.load(parse_rows(io.BytesIO(lines), name), name)


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
    archive = open_files(path)
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


def test_a_gzip_file_is_unpacked_within_its_limit(tmp_path: Path) -> None:
    path, target = tar(tmp_path / "a", FILES, "w:gz"), tmp_path / "b"
    assert recognise_format(path) == "gzip"
    unpack_gzip(path, target, 10**6, lambda: None)
    assert sorted(e.name for e in listed(target)) == sorted(FILES)
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(TooLarge, match="500,000 bytes"):
        unpack_gzip(path, target, 500_000, lambda: None)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(np.random.default_rng(3).bytes(10_000))
    for data in (
        whole[:-10],
        whole[:15],
        whole[:12] + b"\xff" * 50 + whole[62:],
        whole + b"\x1f\x8b\x08",
        whole[:-1] + b"x",
    ):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(Invalid, match="not a complete gzip file"):
            unpack_gzip(tmp_path / "a", tmp_path / "b", 10**6, lambda: None)


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
        open_files(path).read(Entry("link.jpg", 1, 1), 10_000)


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
        open_parser(path).read(entry, 10_000)


def test_a_large_header_is_not_read_into_memory(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.XHDTYPE, 2 * 2**30
    (tmp_path / "a").write_bytes(huge.tobuf() + bytes(10_240))
    with pytest.raises(Invalid, match="the header at byte 0 has"):
        listed(tmp_path / "a")


def pax_header(data: bytes, type_: bytes = tarfile.XHDTYPE) -> bytes:
    """A header block, and data of any content that pretend to be an extended header."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = type_, len(data)
    return header.tobuf() + data + bytes(-len(data) % 512)


def test_a_pax_header_of_digits_is_refused_in_linear_time(tmp_path: Path) -> None:
    began = time.process_time()
    for count in (MAX_HEADER_BYTES, 900_000):
        (tmp_path / "a").write_bytes(pax_header(b"1" * count) + tar(tmp_path / "b", FILES).read_bytes())
        with pytest.raises(Invalid, match=r"header at byte 0"):
            listed(tmp_path / "a")
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "data",
    [
        b"7 path=",
        b"99 path=a\n",
        b"-5 path=a\n",
        b"0 path=a\n",
        b"10 pathxa\n",
        b"x path=a\n",
        b"11 size=0x1\n",
        b"12 size=1e10\n",
    ],
)
def test_a_damaged_pax_record_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pax_header(data) + tar(tmp_path / "b", FILES).read_bytes())
    with pytest.raises(Invalid, match="extended header at byte 0 is damaged"):
        listed(tmp_path / "a")


@pytest.mark.parametrize("type_", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_many_extended_headers_in_a_row_are_refused(type_: bytes, tmp_path: Path) -> None:
    header, rest = pax_header(b"12 mtime=12\n", type_), tar(tmp_path / "b", FILES).read_bytes()
    (tmp_path / "a").write_bytes(header * 5_000 + rest)
    with pytest.raises(Invalid, match=f"more than {MAX_EXTENDED_HEADERS} extended headers"):
        listed(tmp_path / "a")
    (tmp_path / "a").write_bytes(header * 3)
    with pytest.raises(Invalid, match="ends after an extended header"):
        listed(tmp_path / "a")
    if type_ != tarfile.GNUTYPE_LONGNAME:
        (tmp_path / "a").write_bytes(header * 3 + rest)
        assert sorted(e.name for e in listed(tmp_path / "a")) == sorted(FILES)


def test_a_sparse_file_and_a_global_path_are_refused(tmp_path: Path) -> None:
    rest = tar(tmp_path / "b", FILES).read_bytes()
    (tmp_path / "a").write_bytes(pax_header(b"22 GNU.sparse.major=1\n") + rest)
    with pytest.raises(Invalid, match="link or a device"):
        listed(tmp_path / "a")
    (tmp_path / "a").write_bytes(pax_header(b"10 path=x\n", tarfile.XGLTYPE) + rest)
    with pytest.raises(Invalid, match="one path or size"):
        listed(tmp_path / "a")


NAMES = ["a.jpg", "x" * 100, "y" * 101, "d" * 90 + "/" + "e" * 90, "grün/ü.jpg", "g" * 600, "nach Süden/" + "ß" * 120]


@pytest.mark.parametrize("archive_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_sizes_and_offsets_are_those_that_the_standard_library_reads(archive_format: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a", "w", format=archive_format) as archive:
        for number, name in enumerate(NAMES):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = 300 * number, 1.5 * number, "jürgen"
            if archive_format != tarfile.USTAR_FORMAT or (len(name) != 101 and len(name.encode()) < 200):
                archive.addfile(member, io.BytesIO(bytes([number]) * member.size))
        folder_member = tarfile.TarInfo("folder")
        folder_member.type = tarfile.DIRTYPE
        archive.addfile(folder_member)
    with tarfile.open(tmp_path / "a") as archive:
        expected = [(m.name, m.size, m.offset_data) for m in archive if m.isreg()]
    assert [(e.name, e.size, e.location[0]) for e in listed(tmp_path / "a", LIMITS)] == expected
    assert len(expected) >= 4


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax"], ["--format=ustar"], ["--format=v7"]])
def test_tars_of_the_system_are_read(options: list[str], tmp_path: Path) -> None:
    folder(tmp_path / "f", FILES | {"deep/" + "n" * 60 + "/b.jpg": b"five"})
    subprocess.run(["tar", *options, "-cf", tmp_path / "a", "-C", tmp_path / "f", "."], check=True)
    entries = {e.name: open_parser(tmp_path / "a").read(e, 10_000) for e in listed(tmp_path / "a")}
    assert entries == FILES | {"deep/" + "n" * 60 + "/b.jpg": b"five"}


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
    assert open_parser(tmp_path / "b").read(entries[-1], 10) == b"x"


def overlapping(path: Path, count: int = 3) -> Path:
    """A zip whose entries all have the bytes of the first."""
    data = packed(path, {"1.jpg": b"x" * 1000}, zipfile.ZIP_STORED).read_bytes()
    at, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    tail = bytearray(data[end:])
    tail[8:12] = struct.pack("<2H", count, count)
    tail[12:16] = struct.pack("<L", count * (end - at))
    path.write_bytes(data[:at] + data[at:end] * count + bytes(tail))
    return path


def test_a_zip_whose_entries_share_bytes_is_refused(tmp_path: Path) -> None:
    assert len(listed(overlapping(tmp_path / "a", 1))) == 1
    with pytest.raises(Invalid, match="two of its entries share the bytes from 0 on"):
        listed(overlapping(tmp_path / "a", 3))


def test_a_zip_that_unpacks_to_too_much_as_a_whole_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "a", {f"{n}.jpg": bytes(60_000) for n in range(50)})
    limits = ArchiveLimits(entries=100, unpacked=10**8, ratio=200, photo=10**5)
    with pytest.raises(TooLarge, match=f"more than {200 * path.stat().st_size:,} bytes"):
        listed(path, limits)


@pytest.mark.parametrize("offset", [2**62, 2**63 - 1, 2**64 - 1, 5_000])
def test_a_zip64_offset_outside_of_the_archive_is_refused(offset: int, tmp_path: Path) -> None:
    data = packed(tmp_path / "a", {"1.jpg": b"x"}).read_bytes()
    at, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = bytearray(data[at:end])
    entry[42:46] = b"\xff" * 4
    entry[30:32] = struct.pack("<H", 12)
    entry += struct.pack("<2HQ", 1, 8, offset)
    tail = bytearray(data[end:])
    tail[12:16] = struct.pack("<L", len(entry))
    (tmp_path / "a").write_bytes(data[:at] + entry + tail)
    with pytest.raises(Invalid, match="outside of the archive"):
        listed(tmp_path / "a")


@pytest.mark.parametrize("position", [0, 2**40, 2**62, 2**63, 2**64 - 1])
def test_a_zip64_directory_that_is_nowhere_is_refused(position: int, tmp_path: Path) -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, position, 1)
    (tmp_path / "a").write_bytes(b"PK\x03\x04" + bytes(100) + locator + end)
    with pytest.raises(Invalid, match="not a complete zip"):
        listed(tmp_path / "a")


def test_an_entry_that_unpacks_to_nothing_is_not_read_for_long(tmp_path: Path) -> None:
    empty_blocks = b"\0\0\0\xff\xff" * 1_000_000
    with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("1.jpg", empty_blocks)
    data = bytearray((tmp_path / "a").read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 10 : at + 12], data[at + 24 : at + 28] = b"\x08\0", b"\x01\0\0\0"
    (tmp_path / "a").write_bytes(data)
    [entry] = listed(tmp_path / "a", ArchiveLimits(10, 10**7, 200, 10**7))
    with pytest.raises(Unreadable, match="damaged"):
        open_parser(tmp_path / "a").read(entry, 10**7)


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
                open_parser(tmp_path / "a").read(entry, 10_000)
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
    table = read_manifest(lines)
    first = table.take("a.jpg")
    assert first is not None
    assert (first.subject, first.role, first.metadata) == ("ada", "distractor", {"age": "36", "desk": 1})
    assert table.take("c.jpg") is None
    assert list(table.iterate_unused()) == ["b.jpg"]
    table.close()
    lines = b'{"file": "a.jpg", "subject": "ada", "age": 36}\n\n{"file": "b.jpg"}\n'
    table = read_manifest(lines, "manifest.jsonl")
    first = table.take("a.jpg")
    assert first is not None
    assert first.metadata == {"age": 36}
    table.close()


def test_a_manifest_states_the_source_of_a_photo() -> None:
    table = read_manifest(b"file,subject,source\na.jpg,ada,gate-2\nb.jpg,ada,\n")
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
        b"file,subject,subject\na,ada,bob\n",
        b"file,subject\na,..\n",
        b"file,role\na,hero\n",
        b"file,metadata\na,[1]\n",
        b'file,metadata\na,"{""x"": NaN}"\n',
        b"\xff\xfe",
    ],
)
def test_a_manifest_with_an_invalid_line_is_refused_with_the_line_number(lines: bytes) -> None:
    with pytest.raises(Invalid, match=r"line \d of manifest\.csv"):
        read_manifest(lines)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b'{"file": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than"),
        (b'{"file": "a", "x": ' + b"[" * 80 + b"]" * 80 + b"}", "nested more than"),
        (b'{"file": "a", "metadata": "' + b"[" * 5_000 + b'"}', "nested more than"),
        (b'{"file": "a", "x": "' + b"y" * 2**20 + b'"}', "more than 1,048,576 characters"),
        (b'{"file": "a", "x": ' + b"9" * 5_000 + b"}", "digits"),
        (b'{"file": "\\ud800"}', "unicode"),
        (b"[]", "not a JSON object"),
        (b'{"file": "a", "subject": "ada", "subject": "bob"}', "the key 'subject' twice"),
        (b'{"file": "a", "metadata": "{\\"age\\": 1, \\"age\\": 2}"}', "the key 'age' twice"),
        (b'{"file": "a", "subject": "ada", "consent": false}', "consent belongs to a subject"),
        (b'{"file": "a", "retain_until": "2030-01-01T00:00:00Z"}', "retain_until belongs to a subject"),
        (b'{"file": "a", "Retain Until": "2030-01-01T00:00:00Z"}', "Retain Until belongs to a subject"),
        (b'{"file": "a", "Subject": "ada"}', "'Subject' is not read as 'subject'"),
        (b'{"file": "a", "externalId": "7"}', "'externalId' is not read as 'external_id'"),
        (b"\x00", "Expecting value"),
    ],
)
def test_a_hostile_json_manifest_is_refused_with_the_line_number(lines: bytes, reason: str) -> None:
    with pytest.raises(Invalid, match=f"line 1 of manifest.jsonl: .*{reason}"):
        read_manifest(lines, "manifest.jsonl")


def test_a_manifest_of_too_many_columns_is_refused() -> None:
    with pytest.raises(Invalid, match="1,000 columns"):
        read_manifest(b"file," + b",".join(b"c%d" % n for n in range(1000)) + b"\n" + b"a\n")


@pytest.mark.parametrize(
    "header",
    [
        b"file;subject", b"subject\tteam", b"subject;consent", b"file,subject,x;y", b'"file;subject"', b"sep=;",
        b"subject|team", b"\xef\xbb\xbfsubject;team,,",
    ],
)  # fmt: skip
def test_columns_that_other_characters_than_commas_separate_are_refused(header: bytes) -> None:
    with pytest.raises(Invalid, match=r"line 1 of table\.csv: columns must be separated by commas"):
        list(parse_rows(io.BytesIO(header + b"\na5;x\n"), "table.csv"))


def test_separators_of_other_programs_may_be_in_values_and_in_a_name_among_others() -> None:
    [row] = parse_rows(io.BytesIO(b"subject,dc|title\na5;x,b|c\n"), "table.csv")
    assert row == {"subject": "a5;x", "metadata": {"dc|title": "b|c"}}


@pytest.mark.parametrize(("named", "stored"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")])
def test_a_manifest_finds_a_file_whose_name_another_system_decomposed(named: str, stored: str) -> None:
    name = "Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}.jpg"
    manifest = read_manifest(f"file,subject\n{unicodedata.normalize(named, name)},zoe\n".encode())
    found = manifest.take(unicodedata.normalize(stored, name))
    assert found is not None
    assert found.subject == "zoe"
    assert list(manifest.iterate_unused()) == []


def test_columns_without_a_name_may_be_many() -> None:
    """Spreadsheets write them behind the last column."""
    found = read_manifest(b"file,subject,,\na,ada,,\n").take("a")
    assert found is not None
    assert (found.subject, found.metadata) == ("ada", {})


def test_a_folder_is_listed_by_name_at_any_depth_and_refused_if_it_is_gone(tmp_path: Path) -> None:
    path = folder(tmp_path / "f", {"b/2.jpg": b"x", "a/c/1.jpg": b"x", "a/0.jpg": b"x", "a.jpg": b"x"})
    assert [e.name for e in listed(path)] == ["a/0.jpg", "a/c/1.jpg", "a.jpg", "b/2.jpg"]
    with pytest.raises(Invalid, match="cannot be read"):
        list(filter_entries(Folder(tmp_path / "none"), LIMITS))


def test_a_file_that_is_removed_while_its_folder_is_listed_fails_no_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(b"photo")
    read_status = Path.stat

    def read_and_remove(path: Path, **options: Any) -> os.stat_result:
        status = read_status(path, **options)
        if path.name == "b.jpg":
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", read_and_remove)
    archive = Folder(tmp_path)
    entries = list(archive.entries())
    assert [entry.name for entry in entries] == ["a.jpg", "b.jpg", "c.jpg"]
    with pytest.raises(Unreadable, match="cannot be opened"):
        archive.read(entries[1], 100)


def test_a_row_that_goes_over_many_lines_has_the_same_limit(tmp_path: Path) -> None:
    field = b',"' + b"x\n" * 60_000 + b'"'
    with pytest.raises(Invalid, match=r"line 1 of manifest\.csv: it has more than 1,048,576 characters"):
        read_manifest(b"file" + b"".join(b",c%d" % n for n in range(20)) + b"\na" + field * 20 + b"\n")
    rows = b"".join(b'%d.jpg,"' % n + b"x\n" * 20_000 + b'"\n' for n in range(40))
    read_manifest(b"file,x\n" + rows).close()
