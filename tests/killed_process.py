"""A process that held the lock of its audit log, and was killed."""

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
