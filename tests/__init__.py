"""Tests, and what they share."""

import os
import sys

# Some machines forbid Python to keep what it has compiled. The tests start hundreds of processes, which would compile
# the service and, with pytest's assertions, the tests anew each time: half a second, and five seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
