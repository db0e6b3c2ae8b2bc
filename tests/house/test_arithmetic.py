"""Each arithmetic that the suite runs under, and how one is chosen for a commit."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import arithmetic
from tests.arithmetic import ARITHMETICS, AVX2, AVX512, NUMERICAL, ROOT, TWO_THREADS, Arithmetic, choose, main, runnable

WITHOUT_AVX512 = AVX2 | {"sse4_2"}
SHOWS_KERNELS = """
import faiss, numpy, threadpoolctl, torch
from numpy._core._multiarray_umath import __cpu_features__ as kernels
blas = {library["architecture"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}
print(*blas, torch.backends.cpu.get_cpu_capability(), faiss.SIMDConfig.get_level_name(), kernels.get("X86_V4"))
"""


def names(choices: list[Arithmetic]) -> set[str]:
    return {one.name for one in choices}


def test_a_processor_runs_only_the_kernels_it_has() -> None:
    assert names(runnable(frozenset())) == {"native", "two-threads"}
    assert names(runnable(frozenset({"sse4_2"}))) == {"native", "two-threads", "nehalem"}
    assert names(runnable(WITHOUT_AVX512)) == names(list(ARITHMETICS)) - {"skylakex"}
    assert runnable(WITHOUT_AVX512 | AVX512) == list(ARITHMETICS)
    assert "skylakex" not in names(runnable((WITHOUT_AVX512 | AVX512) - {"avx512vl"}))


def test_a_commit_always_gets_the_same_arithmetic_and_many_commits_get_all() -> None:
    counts = Counter(choose(f"commit {n}", ARITHMETICS).name for n in range(600))
    assert counts == Counter(choose(f"commit {n}", ARITHMETICS).name for n in range(600))
    assert counts.keys() == names(list(ARITHMETICS))
    assert min(counts.values()) > 60, "100 each is fair"


def test_every_kernel_that_once_failed_a_test_is_in_the_list() -> None:
    settings = {item for one in ARITHMETICS for item in one.variables.items()}
    kernels = {("OPENBLAS_CORETYPE", core) for core in ("Haswell", "Zen", "SkylakeX")}
    assert kernels | {("ATEN_CPU_CAPABILITY", "default"), ("ATEN_CPU_CAPABILITY", "avx2")} <= settings
    assert ("TEST_THREADS", "2") in settings
    assert any("TEST_THREADS" not in one.variables for one in ARITHMETICS)


def test_the_command_is_run_with_the_variables_and_its_status_returned(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Arithmetic("other", {"OPENBLAS_CORETYPE": "Haswell"})
    monkeypatch.setattr(arithmetic, "ARITHMETICS", (one,))
    shows = [sys.executable, "-c", "import os; print('core', os.environ['OPENBLAS_CORETYPE'])"]
    assert main(["run", "other", *shows]) == 0
    printed = capfd.readouterr().out
    assert "arithmetic: other OPENBLAS_CORETYPE=Haswell" in printed
    assert "core Haswell" in printed
    assert "to repeat it" not in printed
    assert main(["rotate", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert "-m tests.arithmetic run other" in capfd.readouterr().out


def test_each_runs_every_arithmetic_and_returns_the_worst_status(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = tuple(Arithmetic(name, {"STATUS": status}) for name, status in (("a", "0"), ("b", "1"), ("c", "0")))
    monkeypatch.setattr(arithmetic, "ARITHMETICS", some)
    assert main(["each", sys.executable, "-c", "import os; raise SystemExit(int(os.environ['STATUS']))"]) == 1
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith(("arithmetic", "failed"))][1:] == [
        "arithmetic: b STATUS=1",
        f"failed under the arithmetic b; to repeat it: {sys.executable} -m tests.arithmetic run b {sys.executable} "
        "-c 'import os; raise SystemExit(int(os.environ['\"'\"'STATUS'\"'\"']))'",
        "arithmetic: c STATUS=0",
    ]


@pytest.mark.parametrize("words", [[], ["run", "native"], ["run", "none", "true"], ["each"], ["rotate"], ["some"]])
def test_an_invalid_command_line_prints_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "this processor can run: native" in capsys.readouterr().err


def test_without_a_repository_the_date_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git, which is not installed")
    monkeypatch.setattr(arithmetic, "ROOT", tmp_path)
    assert len(arithmetic.commit()) == len("2026-11-22")


def test_the_listed_numerical_tests_exist() -> None:
    assert [path for path in NUMERICAL if not (ROOT / path).exists()] == []


def names_kernels(one: Arithmetic) -> bool:
    """Whether this arithmetic chooses kernels, and not only a number of threads."""
    return any(variable not in TWO_THREADS for variable in one.variables)


@pytest.mark.parametrize(
    "one", [*filter(names_kernels, runnable(arithmetic.processor_flags()))], ids=lambda one: one.name
)
def test_the_libraries_use_the_kernels_that_are_named(one: Arithmetic) -> None:
    environment = {**os.environ, **one.environment()}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SHOWS_KERNELS]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stderr == "", "a library warns of a variable that it does not know"
    words = shown.stdout.split()
    for variable in ("OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY"):
        if variable in one.variables:
            assert one.variables[variable].lower() in shown.stdout.lower()
    if "FAISS_SIMD_LEVEL" in one.variables:
        assert words[-2].split("_")[0] == one.variables["FAISS_SIMD_LEVEL"]
    if "X86_V4" in one.environment().get("NPY_DISABLE_CPU_FEATURES", ""):
        assert words[-1] == "False"
