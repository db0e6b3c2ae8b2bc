"""Every public function of `ml` explains itself, with the shapes of the arrays that it takes or returns."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "ml").rglob("*.py")
)
ARRAYS = re.compile(r"\b(ndarray|NDArray|Tensor|Rows|Ids|Crops|Image|Points)\b")
SHAPE = re.compile(r"\((\.\.\.|[\w|*+ ]+)\s*,[^()]*\)")
"""Such as (N, d), (n,) or (..., 2)."""


def public_functions(module: Any) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(name, docstring of its class, function) of what the module defines for others; views of an object aside."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name, "", value
        if inspect.isclass(value):
            for method in vars(value):
                bound = getattr(value, method, None)
                if not method.startswith("_") and (inspect.isfunction(bound) or inspect.ismethod(bound)):
                    yield f"{name}.{method}", inspect.getdoc(value) or "", bound


def explain_gap(about_class: str, function: Callable[..., Any]) -> str | None:
    """Explain what the docstring lacks, which a method may inherit; None if it is complete."""
    text = inspect.getdoc(function)
    if not text:
        return "no docstring"
    hints = " ".join(str(hint) for hint in getattr(function, "__annotations__", {}).values())
    if ARRAYS.search(hints) and not SHAPE.search(f"{about_class} {text}"):
        return "no shapes"
    return None


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_of_ml_have_docstrings_with_shapes(name: str) -> None:
    functions = public_functions(importlib.import_module(name))
    gaps = {name: gap for name, about_class, function in functions if (gap := explain_gap(about_class, function))}
    assert not gaps


@pytest.mark.parametrize(
    ("text", "gap"),
    [(None, "no docstring"), ("Return rows.", "no shapes"), ("Return (N, d) rows.", None), ("Return (n,) ids.", None)],
)
def test_the_check_sees_what_is_missing(text: str | None, gap: str | None) -> None:
    def function(rows: "Rows") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Replaced."""

    function.__doc__ = text
    assert explain_gap("", function) == gap
