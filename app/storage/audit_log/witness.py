"""Keep the head of the audit log outside of the database, so that a database that was set back is noticed."""

import json
import os
import secrets
from pathlib import Path

from ml.files import parse_json


class HeadWitness:
    """A file with the number and the MAC of the last entry that a process has committed.

    It is a lower bound: of two processes that write it at once, either may be last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[int, str]:
        """Return the number and the MAC; (0, "") if there is no readable file."""
        try:
            content = parse_json(self.path.read_text())
            return int(content["number"]), str(content["mac"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""

    def write(self, number: int, mac: str) -> None:
        """Replace the file; call it after the commit. It is not synced to disk. Raises OSError."""
        part = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            part.write_text(json.dumps({"number": number, "mac": mac}))
            os.replace(part, self.path)
        finally:
            part.unlink(missing_ok=True)
