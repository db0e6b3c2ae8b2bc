"""A file is a component: `ml/<kind>/<name>.py` defines one class, and that is the whole plugin system."""

import pkgutil
from importlib import import_module
from typing import Any

from ml import options as component_options
from ml.errors import UnknownComponent
from ml.options import Option

NOT_COMPONENTS = {"base", "train"}


def names(kind: str) -> tuple[str, ...]:
    """The components of a kind ("descriptors", "embedders", ...), sorted."""
    package = import_module(f"ml.{kind}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(n for n in found if n not in NOT_COMPONENTS and not n.startswith("_")))


def component(kind: str, name: str) -> type[Any]:
    """The one public class that `ml/<kind>/<name>.py` defines.

    Raises UnknownComponent where there is no such file.
    """
    if name not in names(kind):
        raise UnknownComponent(kind, name, names(kind))
    module = import_module(f"ml.{kind}.{name}")
    [found] = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and c.__module__ == module.__name__ and not c.__name__.startswith("_")
    ]
    return found


def build(kind: str, name: str, **options: Any) -> Any:
    """Builds a component from flat options. Raises TypeError for an unknown option."""
    found = component(kind, name)
    return found.from_options(**options) if hasattr(found, "from_options") else found(**options)


def list_options(kind: str, name: str) -> tuple[Option, ...]:
    """The options of a component with their types, defaults, ranges, units and help. Raises UnknownComponent."""
    return component_options.list_options(component(kind, name))
