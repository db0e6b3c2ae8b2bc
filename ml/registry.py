"""Find components by name. Each file `ml/<kind>/<name>.py` defines one public class: that is the whole plugin system.

`base.py` of a kind holds the interface; `ml/<kind>/common/` holds what several components share.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from ml import options as component_options
from ml.errors import UnknownComponent
from ml.options import Option


def names(kind: str) -> tuple[str, ...]:
    """Return the sorted names of the components of a kind ("descriptors", "embedders", "indexes", ...)."""
    return _list_names(tuple(import_module(f"ml.{kind}").__path__))


@cache
def _list_names(folders: tuple[str, ...]) -> tuple[str, ...]:
    modules = (module.name for module in pkgutil.iter_modules(folders) if not module.ispkg)
    return tuple(sorted(name for name in modules if name != "base" and not name.startswith("_")))


@cache
def component(kind: str, name: str) -> type[Any]:
    """Return the one public class that `ml/<kind>/<name>.py` defines.

    Raises UnknownComponent if there is no such file.
    """
    if name not in names(kind):
        raise UnknownComponent(kind, name, names(kind))
    module = import_module(f"ml.{kind}.{name}")
    [defined] = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and not value.__name__.startswith("_")
    ]
    return defined


def build(kind: str, name: str, **options: Any) -> Any:
    """Build a component from flat options. Raises UnknownComponent, and TypeError for an unknown option."""
    built = component(kind, name)
    return built.from_options(**options) if hasattr(built, "from_options") else built(**options)


def list_options(kind: str, name: str) -> tuple[Option, ...]:
    """Return the options of a component with their types, defaults, ranges, units and help.

    A component that is no dataclass may name one with its options as `option_class`. Raises UnknownComponent.
    """
    described = component(kind, name)
    return component_options.list_options(getattr(described, "option_class", described))


def summarise(kind: str, name: str) -> str:
    """Return what a component is, in one line: the first line of the docstring of its file. Raises UnknownComponent."""
    return (import_module(component(kind, name).__module__).__doc__ or "").strip().partition("\n")[0]


def name_of(component: type[Any]) -> str:
    """Return the name of a component's class: that of its file."""
    return component.__module__.rpartition(".")[2]
