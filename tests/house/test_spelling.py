"""The spelling of the documentation, and of the docstrings and comments of the code."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

codespell = pytest.importorskip("codespell_lib")

ROOT = Path(__file__).resolve().parents[2]
CODE = ("app", "ml", "workers", "papers", "benchmarks", "migrations", "tests")


def prose(path: Path) -> str:
    """The docstrings and comments of a module, each after its line number."""
    text = path.read_text()
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.append(f"{node.lineno}: {node.value.value}")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines.append(f"{token.start[0]}: {token.string}")
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
            copy.write_text(prose(path))
    assert not is_misspelt(tmp_path), capsys.readouterr().out
