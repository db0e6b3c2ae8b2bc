"""SHA-256 as hexadecimal text."""

import hashlib


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of the data as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
