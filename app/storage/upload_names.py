"""Name uploads by the process that receives them, so that those of one that has ended can be removed."""

from pathlib import Path

from app.db.tables import new_id
from app.storage.audit_log.spool import has_ended


def name_upload(process: str) -> str:
    """Return a new name. process: what the files of its audit log are named by"""
    return f"{process}-{new_id()}"


def has_receiver_ended(upload: Path, audit: Path) -> bool:
    """Return whether the process that received an upload has ended. audit: the folder of the audit log

    False if the name was not made by `name_upload`.
    """
    process, hyphen, _ = upload.name.partition("-")
    return bool(hyphen) and has_ended(audit, process)
