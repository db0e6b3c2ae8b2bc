"""Processes that are killed: one that held the lock of its audit log, and one that saved an index."""

import subprocess
import sys
from pathlib import Path

KILLED = """
import os, signal, sys
from pathlib import Path
from app.storage.audit_log.spool import AuditSpool
spool = AuditSpool(Path(sys.argv[1]))
print(spool.process, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_process(audit: Path) -> str:
    """Start a process with a spool in this folder, kill it, and return what it named its files."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(audit)], capture_output=True, text=True, check=False)
    assert ended.returncode < 0, ended.stderr
    return ended.stdout.strip()


SAVING = """
import os, signal, sys
from pathlib import Path
import numpy as np
from app.serving.index_builder import IndexKey
from app.serving.index_snapshots import SnapshotStore
from ml.indexes.flat import FlatIndex

folder, change, syncs = Path(sys.argv[1]), int(sys.argv[2]), iter(range(int(sys.argv[3])))
store, index = SnapshotStore(folder), FlatIndex(8)
index.add(np.arange(5), np.eye(5, 8, dtype=np.float32))
os.fsync = lambda handle: next(syncs, None) is None and os.kill(os.getpid(), signal.SIGKILL)
store.save(IndexKey("staff", "identity", "m", 5.0), index, change, "")
"""


def kill_saving_process(folder: Path, change: int, syncs: int) -> list[Path]:
    """Kill a process that saves an index of the collection `staff` here, after so many syncs of files and folders.

    Returns what it has left of the index.
    """
    command = [sys.executable, "-c", SAVING, str(folder), str(change), str(syncs)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode < 0, ended.stderr
    return list(folder.glob("*.index*"))
