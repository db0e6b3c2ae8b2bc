"""The spelling of the documentation, and of the docstrings and comments of the code."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

from tests.house.source_files import ROOT, list_nodes, read

codespell = pytest.importorskip("codespell_lib")

CODE = ("app", "ml", "workers", "papers", "benchmarks", "migrations", "tests")


def prose(path: Path) -> str:
    """The docstrings and comments of a module, each after its line number."""
    lines = []
    for node in list_nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.append(f"{node.lineno}: {node.value.value}")
    text = read(path)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline) if "#" in text else ()  # slow
    lines += [f"{token.start[0]}: {token.string}" for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(lines)


def is_misspelt(*paths: Path) -> bool:
    """Whether codespell finds a misspelt word; it prints each."""
    return bool(codespell.main("--toml", str(ROOT / "pyproject.toml"), *map(str, paths)))


def test_the_linter_finds_a_misspelt_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("a face that was " + "reci" + "eved\n")
    assert is_misspelt(page)
    assert "received" in capsys.readouterr().out


def test_pages_are_spelt_correctly(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ml").rglob("*.md")]
    assert not is_misspelt(*pages), capsys.readouterr().out


def test_docstrings_and_comments_are_spelt_correctly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for top in CODE:
        for path in (ROOT / top).rglob("*.py"):
            copy = tmp_path / path.relative_to(ROOT).with_suffix(".txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(prose(path.relative_to(ROOT)))
    assert not is_misspelt(tmp_path), capsys.readouterr().out
