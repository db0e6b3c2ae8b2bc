"""Tests, and what they share."""

import gc
import os
import sys

if "pytest" in sys.modules:  # no program of this folder
    gc.disable()  # until the tests are collected (see conftest.py): what modules define stays

# Some machines forbid Python to keep what it has compiled. The tests start hundreds of processes, which would compile
# the service and, with pytest's assertions, the tests anew each time: half a second, and five seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
