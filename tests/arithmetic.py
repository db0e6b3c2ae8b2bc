"""Run a command under the arithmetic of another processor.

The numerical libraries choose their kernels by the processor and by the number of threads, and each kernel rounds in
its own way. What passes with one set of kernels may fail with another. An arithmetic is a set of environment variables
that makes all of these libraries take the kernels of some other processor.

    python -m tests.arithmetic list                     what there is, and what this processor can run
    python -m tests.arithmetic run NAME COMMAND...      COMMAND under this arithmetic
    python -m tests.arithmetic each COMMAND...          COMMAND under every arithmetic that this processor can run
    python -m tests.arithmetic rotate COMMAND...        COMMAND under the one that this commit is due
    python -m tests.arithmetic numerical                the tests that compare numbers, one path a line

The exit status is that of the command: of the worst one for `each`.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
NUMPY_ABOVE_AVX2 = ("X86_V4", "AVX512")
NUMPY_ABOVE_SSE4 = ("X86_V3", "AVX2", "FMA3", *NUMPY_ABOVE_AVX2)
"""Prefixes of numpy's kernel names, which differ from release to release."""

UP_TO_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # torch's convolutions
    "MKL_CBWR": "AVX2",  # torch's matrix products
    "FAISS_SIMD_LEVEL": "AVX2",
    "OPENCV_CPU_DISABLE": "AVX512-SKX",
}
UP_TO_SSE4 = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "FAISS_SIMD_LEVEL": "NONE",
    "OPENCV_CPU_DISABLE": "AVX2,AVX512-SKX",
}
TWO_THREADS = {
    "TEST_THREADS": "2",  # read by tests/conftest.py
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait slow a machine of two cores down sevenfold
}


@dataclass(frozen=True)
class Arithmetic:
    """A set of kernels for the numerical libraries.

    variables: the environment that selects the kernels; needs: processor flags that the kernels require
    numpy_without: prefixes of the kernels that numpy must not use
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    numpy_without: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """The variables to set on this machine."""
        disabled = [name for name in numpy_kernels() if name.startswith(self.numpy_without)]
        numpy_variables = {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)} if self.numpy_without and disabled else {}
        return {**self.variables, **numpy_variables}


ARITHMETICS = (
    Arithmetic("native"),
    Arithmetic("two-threads", TWO_THREADS),
    Arithmetic("nehalem", {"OPENBLAS_CORETYPE": "Nehalem", **UP_TO_SSE4}, frozenset({"sse4_2"}), NUMPY_ABOVE_SSE4),
    Arithmetic("haswell", {"OPENBLAS_CORETYPE": "Haswell", **UP_TO_AVX2}, AVX2, NUMPY_ABOVE_AVX2),
    Arithmetic("zen", {"OPENBLAS_CORETYPE": "Zen", **UP_TO_AVX2, **TWO_THREADS}, AVX2, NUMPY_ABOVE_AVX2),
    Arithmetic("skylakex", {"OPENBLAS_CORETYPE": "SkylakeX", "FAISS_SIMD_LEVEL": "AVX512"}, AVX512),
)

NUMERICAL = (
    "tests/ml",
    "tests/app/test_engine.py",
    "tests/app/test_export.py",
    "tests/app/test_mixing.py",
    "tests/app/test_search.py",
    "tests/workers/test_evaluate.py",
    "tests/workers/test_fit_first.py",
    "tests/workers/test_gather.py",
    "tests/workers/test_train.py",
    "tests/flows/test_descriptors.py",
    "tests/flows/test_methods.py",
    "tests/flows/test_search_flow.py",
    "tests/flows/test_swap.py",
)
"""Tests that compare computed numbers; the rest of the suite does not depend on the arithmetic."""


def numpy_kernels() -> list[str]:
    """The names of the kernels that numpy can use on this processor."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__[name]]


def processor_flags() -> frozenset[str]:
    """The flags of this processor as Linux names them; empty if they are unknown."""
    if platform.machine() not in ("x86_64", "AMD64") or not Path("/proc/cpuinfo").exists():
        return frozenset()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next((row.split(":")[1].split() for row in lines if row.startswith("flags")), []))


def runnable(flags: frozenset[str]) -> list[Arithmetic]:
    """Return the kinds of arithmetic that a processor with these flags can run."""
    return [one for one in ARITHMETICS if one.needs <= flags]


def choose(seed: str, among: Sequence[Arithmetic]) -> Arithmetic:
    """Choose one arithmetic: always the same for a seed, and each equally often over many seeds."""
    return among[int(hashlib.sha256(seed.encode()).hexdigest(), 16) % len(among)]


def commit() -> str:
    """The commit that is checked out, or today's date if there is no repository."""
    shown = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout.strip() or datetime.now(UTC).date().isoformat()


def run(one: Arithmetic, command: Sequence[str]) -> int:
    """Run the command and return its exit status. Prints the arithmetic and, after a failure, how to repeat the run."""
    variables = one.environment()
    shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    print(f"arithmetic: {one.name} {shown}".rstrip(), flush=True)
    status = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
    if status:
        again = shlex.join([sys.executable, "-m", "tests.arithmetic", "run", one.name, *command])
        print(f"failed under the arithmetic {one.name}; to repeat it: {again}", flush=True)
    return status


def main(words: Sequence[str]) -> int:
    """Run the command line and return the exit status; 2 if it is invalid."""
    possible = runnable(processor_flags())
    match list(words):
        case ["list"]:
            for one in ARITHMETICS:
                print(f"{one.name:12} {'' if one in possible else 'needs ' + ' '.join(sorted(one.needs))}".rstrip())
            return 0
        case ["numerical"]:
            print("\n".join(NUMERICAL))
            return 0
        case ["run", name, *command] if command and name in [one.name for one in possible]:
            return run(next(one for one in possible if one.name == name), command)
        case ["each", *command] if command:
            return max([run(one, command) for one in possible], key=abs)
        case ["rotate", *command] if command:
            return run(choose(commit(), possible), command)
    print(__doc__, file=sys.stderr)
    print(f"this processor can run: {', '.join(one.name for one in possible)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
