"""Name uploads by the process that receives them, so that those of a killed one can be removed."""

from pathlib import Path

from app.db.tables import new_id
from app.storage.audit_log.spool import was_killed


def name_upload(process: str) -> str:
    """Return a new name. process: what the files of its audit log are named by"""
    return f"{process}-{new_id()}"


def was_receiver_killed(upload: Path, audit: Path) -> bool:
    """Return whether the process that received an upload was killed. audit: the folder of the audit log"""
    return was_killed(audit, upload.name.partition("-")[0])
