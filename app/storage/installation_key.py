"""The key of an installation: it signs receipts, and hashes what receipts may name but not show."""

import hmac
import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

log = logging.getLogger("likeness.storage")

KEY_FILE = "installation.key"
KEY_BYTES = 32


class InstallationKey:
    """Computes HMAC-SHA256 with a secret that lies in the home. purpose: keeps equal data of two uses apart."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def hash_bytes(self, purpose: str, data: bytes) -> bytes:
        """Return 32 bytes."""
        return hmac.digest(self._secret, purpose.encode() + b"\0" + data, "sha256")

    def hash_text(self, purpose: str, *parts: str) -> str:
        """Return 32 hex digits that stand for a name, such as that of a subject in a collection."""
        return self.hash_bytes(purpose, "\0".join(parts).encode()).hex()[:32]

    def sign(self, purpose: str, record: dict[str, Any]) -> str:
        """Return the signature of a record of JSON values, in hex."""
        return self.hash_bytes(purpose, json.dumps(record, sort_keys=True).encode()).hex()

    def is_signed(self, purpose: str, record: dict[str, Any], signature: str) -> bool:
        """Whether this key has made the signature for this record."""
        return hmac.compare_digest(self.sign(purpose, record), signature)


def read_installation_key(home: Path) -> InstallationKey:
    """Return the key of the installation with this home. The first call makes it. Raises OSError."""
    return InstallationKey(read_secret(home / KEY_FILE))


def read_secret(path: Path) -> bytes:
    """Return the secret in a file. The first process that needs it makes it; only the service's user can read it."""
    if not path.exists():
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, secrets.token_bytes(KEY_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(part, path)
        except FileExistsError:
            log.info("key.was_there path=%s", path)
        finally:
            part.unlink()
    return path.read_bytes()
