"""Fuzz a parser under the guidance of its coverage, with atheris (libFuzzer), which `make fuzz-guided` installs.

    python -m tests.fuzz.guided PARSER FOLDER -max_total_time=600

PARSER: archive, manifest, labels, tar-header, photo-header, photo or settings. Inputs that reach new code are
kept in FOLDER, and the next run starts from them. It ends at the first input that is neither parsed nor refused with a
sentence, or that takes more than -timeout=5 seconds or -rss_limit_mb=1500, and writes that input to a file.
"""

import io
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

MAX_INPUT_BYTES = 8192
DEFAULTS = ("-timeout=5", "-rss_limit_mb=1500", f"-max_len={MAX_INPUT_BYTES}", "-print_final_stats=1")

with atheris.instrument_imports(include=["app", "ml", "PIL"]):
    from pydantic import ValidationError

    from app.config import Settings
    from app.enrolment.archives.entries import ArchiveLimits, filter_entries
    from app.enrolment.archives.formats import open_parser
    from app.enrolment.archives.gzips import unpack_gzip
    from app.enrolment.archives.manifest import ArchiveManifest
    from app.enrolment.archives.manifest_rows import parse_rows
    from app.enrolment.archives.tar_headers import BLOCK_BYTES, parse_header, parse_pax_records
    from app.errors import AppError, Invalid
    from app.labels.bulk_labels import parse_labels
    from ml.errors import Unreadable
    from ml.image_headers import read_orientation, strip_metadata
    from ml.images import ImageLimits, OpenedPhoto, read
    from tests.fuzz.archive_bytes import mend_checksum
    from tests.fuzz.hostile_archives import HostileArchives
    from tests.fuzz.hostile_images import HostileImages

LIMITS = ArchiveLimits(entries=1000, unpacked=2**20, ratio=200, photo=2**18)
PHOTO_LIMITS = ImageLimits(max_pixels=1_000_000)
GZIP = b"\x1f\x8b"
SETTINGS = tuple(Settings.model_fields)
SEEDS = 300
TEXTS = (
    b"\0path,subject\na.png,ada\n",
    b'\xff{"path": "a.png", "subject": "ada"}\n',
    b"first,second,same\na,b,true\n",
    b'{"first": "a", "second": "b", "same": true}\n',
)


class Parsers:
    """Parse any bytes. What a parser may raise is caught; everything else is a finding. folder: for archives"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def archive(self, data: bytes) -> None:
        """Unpack, list and read an archive as the process that parses archives does."""
        path = self.folder / "archive"
        path.write_bytes(data)
        with suppress(AppError):
            if data.startswith(GZIP):
                unpack_gzip(path, self.folder / "unpacked", LIMITS.unpacked, lambda: None)
                path = self.folder / "unpacked"
            archive = open_parser(path)
            for entry in filter_entries(archive, LIMITS):
                with suppress(Unreadable):
                    archive.read(entry, LIMITS.photo)

    def manifest(self, data: bytes) -> None:
        """The first byte decides whether it is CSV or lines of JSON."""
        name = "manifest.csv" if data[:1] < b"\x80" else "manifest.jsonl"
        with suppress(Invalid):
            ArchiveManifest.load(parse_rows(io.BytesIO(data[1:]), name), name).close()

    def labels(self, data: bytes) -> None:
        with suppress(Invalid):
            parse_labels(data)

    def tar_header(self, data: bytes) -> None:
        """A header with a right checksum, and records of a pax header after it."""
        block = bytearray(data[:BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0"))
        mend_checksum(block)
        with suppress(Invalid):
            parse_header(bytes(block), 0)
        with suppress(Invalid):
            parse_pax_records(data[BLOCK_BYTES:], 0)

    def photo_header(self, data: bytes) -> None:
        with suppress(Unreadable):
            stripped = strip_metadata(data)
            read_orientation(stripped.exif, stripped.xmp)
            OpenedPhoto(data, PHOTO_LIMITS)

    def photo(self, data: bytes) -> None:
        with suppress(Unreadable):
            read(data, PHOTO_LIMITS)

    def settings(self, data: bytes) -> None:
        """The first byte chooses the variable, the rest is its value."""
        name = SETTINGS[data[0] % len(SETTINGS)] if data else SETTINGS[0]
        with suppress(ValidationError):
            Settings.from_env({f"LIKENESS_{name.upper()}": data[1:].decode("utf-8", "surrogateescape")})


def write_seeds(folder: Path) -> None:
    """Write inputs to begin with, so that the first steps of each format need not be guessed."""
    archives, photos = HostileArchives(0), HostileImages(0, max_pixels=PHOTO_LIMITS.max_pixels)
    drawn = [source.draw()[1] for _ in range(SEEDS) for source in (archives, photos)]
    for number, seed in enumerate([*TEXTS, *(data for data in drawn if len(data) <= MAX_INPUT_BYTES)]):
        (folder / f"seed-{number}").write_bytes(seed)


def main() -> None:
    name, corpus, *options = sys.argv[1:]
    folder = Path(corpus)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        write_seeds(folder)
    with tempfile.TemporaryDirectory(prefix="likeness-fuzz-") as temporary:
        parse: Callable[[bytes], None] = getattr(Parsers(Path(temporary)), name.replace("-", "_"))
        atheris.Setup([sys.argv[0], *DEFAULTS, *options, str(folder)], parse)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
