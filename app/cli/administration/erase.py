"""`likeness erase`: check a receipt, search every store for what was erased, and write the database anew."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Engine, select

from app.cli.client import console, open_progress
from app.cli.home import read_settings, require_database
from app.config import Settings
from app.db.compaction import rewrite_database
from app.db.session import close_database, open_database, reading
from app.db.tables import Erasure
from app.galleries.erasure_receipts import build_receipt, hash_subject, is_receipt_signed
from app.galleries.erasure_scan import ErasedBytes, ScanResult, scan_stores
from app.galleries.erasures import FINAL, MAX_FINGERPRINTED_FACES
from app.startup import exit_with_reason
from app.storage.fingerprints import MAX_BYTES, Fingerprint, Fingerprinter
from app.storage.installation_key import InstallationKey, read_installation_key
from app.storage.text_encodings import list_text_encodings
from ml.files import hash_bytes

MIN_TEXT_BYTES = 4
ERASURE_ID = re.compile(r"[0-9a-f]{24}")

app = typer.Typer(help="What was erased.", no_args_is_help=True)


@app.callback()
def _erase() -> None:
    """What was erased."""


@app.command()
def verify(
    receipt: Annotated[
        str, typer.Argument(help="id of an erasure, file of its receipt (.json), or id of the subject that was erased")
    ] = "",
    text: Annotated[list[str] | None, typer.Option(help="also search for this text; may be repeated")] = None,
    photo: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="also search for this photo; may be repeated")
    ] = None,
) -> None:
    """Check the signature of a receipt, and search the home and the database for what was erased.

    Exit code 0: nothing was found; 1: something was found, or the receipt does not hold.
    """
    settings = read_settings()
    require_database(settings)
    if not receipt and not text and not photo:
        raise typer.BadParameter("name a receipt, a subject, --text or --photo")
    key = read_installation_key(settings.home)
    with _open(settings) as database:
        receipts = _find_receipts(database, key, receipt) if receipt else NamedReceipts([], [])
        failed = [erasure.id for erasure in receipts.erasures if not _check_receipt(key, erasure, receipts.stated)]
        texts = {name: list_text_encodings(name) for name in [*receipts.texts, *(text or ())]}
        texts |= _sample_photos(photo or [])
        result = _search(database, settings.home, key, receipts.erasures, texts)
    _print_result(result)
    _print_limits(receipts.erasures)
    if result.hits or failed:
        raise typer.Exit(1)


@contextmanager
def _open(settings: Settings) -> Iterator[Engine]:
    database = open_database(settings.database, settings.home)
    try:
        with exit_with_reason(settings):
            yield database
    finally:
        close_database(database)


def _search(
    database: Engine, home: Path, key: InstallationKey, erasures: list[Erasure], texts: dict[str, set[bytes]]
) -> ScanResult:
    """Search every store for the fingerprints of erasures and for texts. Raises typer.BadParameter for short ones."""
    _refuse_short(texts)
    fingerprints = [Fingerprint(**values) for erasure in erasures for values in erasure.fingerprints]
    console.print(f"searching for {len(fingerprints)} fingerprints and {len(texts)} texts or photos", soft_wrap=True)
    erased = ErasedBytes(Fingerprinter(key).open_finder(fingerprints), texts)
    with open_progress() as progress:
        task = progress.add_task("bytes searched", total=None)
        return scan_stores(database, home, erased, lambda count: progress.advance(task, count))


@dataclass(frozen=True)
class NamedReceipts:
    """What the argument of `verify` names. texts: to search for besides; stated: the receipt that a file holds"""

    erasures: list[Erasure]
    texts: list[str]
    stated: dict[str, Any] | None = None


def _find_receipts(database: Engine, key: InstallationKey, receipt: str) -> NamedReceipts:
    """Find the erasures of an id, a file or a subject. Raises typer.BadParameter if an id or a file is of none."""
    path = Path(receipt)
    stated = json.loads(path.read_text()) if path.suffix == ".json" and path.is_file() else None
    wanted = receipt if stated is None else str(stated.get("id"))
    with reading(database) as session:
        rows = list(session.scalars(select(Erasure).order_by(Erasure.id)))
    by_id = [row for row in rows if row.id == wanted]
    if by_id or stated is not None or ERASURE_ID.fullmatch(wanted):
        if not by_id:
            raise typer.BadParameter(
                f"this installation has no erasure {wanted}. If its database was put back to a time before, what was "
                "erased since is there again: delete it again. `likeness audit verify` says whether it was put back"
            )
        return NamedReceipts(by_id, [], stated)
    of_subject = [row for row in rows if row.contents.get("subject") == hash_subject(key, row.collection_id, wanted)]
    if not of_subject:
        console.print(f"no receipt names a subject {wanted!r}; only this text is searched for", soft_wrap=True)
    return NamedReceipts(of_subject, [wanted])


def _check_receipt(key: InstallationKey, erasure: Erasure, stated: dict[str, Any] | None) -> bool:
    """Print whether a receipt is final and signed. stated: the receipt in a file, which must be the same"""
    if erasure.state != FINAL:
        console.print(f"erasure {erasure.id} is {erasure.state}: not everything is erased yet", soft_wrap=True)
        return False
    record = build_receipt(erasure)
    is_same = stated in (None, record | {"signature": erasure.signature})
    if is_same and is_receipt_signed(key, record, erasure.signature):
        console.print(f"receipt {erasure.id}: signed by this installation")
        return True
    console.print(f"receipt {erasure.id}: NOT as this installation has signed it")
    return False


def _sample_photos(paths: list[Path]) -> dict[str, set[bytes]]:
    """Return what to search for of each photo: its hash, which names its files, and bytes from its middle."""
    samples: dict[str, set[bytes]] = {}
    for path in paths:
        data = path.read_bytes()
        middle = max(0, len(data) // 2 - MAX_BYTES // 2)
        samples |= {
            f"{path} (its hash)": {hash_bytes(data).encode()},
            f"{path} (its bytes)": {data[middle : middle + MAX_BYTES]},
        }
    return samples


def _refuse_short(texts: dict[str, set[bytes]]) -> None:
    for name, encodings in texts.items():
        if min(map(len, encodings)) < MIN_TEXT_BYTES:
            raise typer.BadParameter(
                f"{name!r} has fewer than {MIN_TEXT_BYTES} bytes, and would be found by chance; name the receipt"
            )


def _print_result(result: ScanResult) -> None:
    console.print(f"searched {result.searched_bytes / 2**20:,.1f} MiB")
    for (store, kind), count in sorted(result.hits.items()):
        console.print(f"FOUND {kind} in {store}: {count}", soft_wrap=True)
    if result.in_use:
        console.print(f"{len(result.in_use)} texts belong to somebody who is stored now, and were left out")
    if result.copies:
        console.print(
            f"{len(result.copies)} photos, crops, descriptors or vectors belong to faces that are stored now, of the "
            "same photos, and were left out"
        )
    if not result.hits:
        console.print("nothing was found")


def _print_limits(erasures: list[Erasure]) -> None:
    """Say what of these erasures stays with others, and what a search cannot recognise."""
    removed = [erasure.contents.get("removed", {}) for erasure in erasures]
    kept = sum(counts.get("photos_kept", 0) for counts in removed)
    if kept:
        console.print(f"{kept} photos were kept, since somebody else is enrolled from them too", soft_wrap=True)
    if any(counts.get("faces", 0) > MAX_FINGERPRINTED_FACES for counts in removed):
        console.print(
            f"of a receipt with more faces, only the first {MAX_FINGERPRINTED_FACES:,} can be recognised; "
            "name others with --text or --photo",
            soft_wrap=True,
        )


@app.command()
def compact() -> None:
    """Write the whole database anew, without free space; the service waits meanwhile. Needed once after an upgrade."""
    settings = read_settings()
    require_database(settings)
    with _open(settings) as database:
        if not rewrite_database(database):
            console.print("the database is in use; stop the service, and try again")
            raise typer.Exit(1)
    console.print("the database was written anew")
