"""What the process that forks has loaded and opened, and the threads of the processes that it forks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.test_cli_main import NOT_NEEDED

BEFORE_FORK = """
import json, os, sys
from app.cli.main import main
from app.supervision.supervisor import Supervisor

def show_state(self):
    roles = [*(slot.role for slot in self.api), *self.list_workers()]
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    print("\\n" + json.dumps({
        "threads": len(os.listdir("/proc/self/task")),
        "modules": [name for name in sys.modules],
        "files": files,
        "roles": [role.name for role in roles],
    }))
    return 0

Supervisor.run = show_state
sys.argv = ["likeness", "serve", "--port", "0"]
main()
"""
THREADS = """
import json, os, sys, threading
from app.cli.server.settings import read_settings
settings = read_settings(None)
import faiss, numpy, cv2
from threadpoolctl import threadpool_info
from app.supervision.children import Role, start_child
from app.threads import set_threads

def count_faiss_threads_elsewhere():
    counts = []
    thread = threading.Thread(target=lambda: counts.append(faiss.omp_get_max_threads()))
    thread.start()
    thread.join()
    return counts[0]

def run(threads, report_ready):
    set_threads(threads)
    counts = {pool["num_threads"] for pool in threadpool_info()} | {cv2.getNumThreads(), faiss.omp_get_max_threads()}
    if threads == 2:
        import torch
        counts.add(torch.get_num_threads())
    print(json.dumps([sorted(counts), count_faiss_threads_elsewhere()]), flush=True)

for threads in (settings.threads_per_slot, 2):
    child = start_child(Role("worker training", lambda report_ready: run(threads, report_ready)))
    os.waitpid(child.pid, 0)
"""


def run_python(code: str, home: Path, **settings: str) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if "NUM_THREADS" not in k and not k.startswith("LIKENESS_")}
    environment |= {"LIKENESS_HOME": str(home), "LIKENESS_DEFAULT_RECOGNISER": "lbp", "LOKY_MAX_CPU_COUNT": "2"}
    environment |= {f"LIKENESS_{name}": value for name, value in settings.items()}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not list threads in /proc")
def test_the_process_that_forks_has_one_thread_and_no_open_database(tmp_path: Path) -> None:
    state = json.loads(run_python(BEFORE_FORK, tmp_path / "home", WORKERS="2")[-1])
    assert state["roles"] == ["api", "worker default", "worker default", "worker training"]
    assert state["threads"] == 1
    assert [file for file in state["files"] if str(tmp_path) in file] == []
    assert set(NOT_NEEDED) & set(state["modules"]) == set()
    assert {"workers.main", "app.main"} <= set(state["modules"])


def test_a_forked_process_has_the_library_threads_that_it_was_given(tmp_path: Path) -> None:
    api, training = (json.loads(printed) for printed in run_python(THREADS, tmp_path))
    assert api == [[1], 1]
    assert training == [[2], 1]


def test_the_threads_that_answer_requests_have_the_share_of_their_process(tmp_path: Path) -> None:
    api, _ = (json.loads(printed) for printed in run_python(THREADS, tmp_path, INFERENCE_SLOTS="1"))
    assert api == [[2], 2]
