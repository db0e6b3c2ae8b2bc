"""Write tar, gzip and zip files as bytes, also such as no honest program writes."""

import gzip
import io
import struct
import tarfile
import zipfile

GNU_HEADER_TYPES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
END = struct.Struct("<4s4H2LH")


def make_tar(files: dict[str, bytes], member_type: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """Write a tar. member_type, link: of all members"""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(data), member_type, link
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def make_extended_header(data: bytes, header_type: bytes = tarfile.XHDTYPE) -> bytes:
    """Write a header block, and data of any content that pretend to be an extended header."""
    header = tarfile.TarInfo("extended")
    header.type, header.size = header_type, len(data)
    return header.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def mend_checksum(archive: bytearray) -> None:
    """State the right checksum in the first header of a tar."""
    archive[148:156] = b"%06o\0 " % (sum(archive[:148]) + 8 * 32 + sum(archive[156:512]))


def make_gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def make_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Write a zip. A zero byte in a name, at which the standard library cuts it, is written all the same."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name.replace("\0", "\1").encode("utf-8", "replace").decode())
            archive.writestr(info, data, method)
    written = file.getvalue()
    for name in files:
        if "\0" in name:
            raw = name.encode("utf-8", "replace")
            written = written.replace(raw.replace(b"\0", b"\1"), raw)
    return written


def make_directory_end(count: int, size: int, offset: int) -> bytes:
    """Write the end of a zip's directory, of so many entries and bytes, which begins at this offset."""
    return END.pack(b"PK\x05\x06", 0, 0, count & 0xFFFF, count & 0xFFFF, size, offset, 0)
