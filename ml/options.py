"""Options of a component: dataclass fields that carry their range, unit and meaning.

A component with many options keeps related ones in groups, which are small frozen dataclasses of their own. Outside the
code options are flat: a request, a saved model and a manifest name each one alone, whatever its group.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

METADATA_KEY = "option"
Component = TypeVar("Component")


@dataclass(frozen=True)
class Option:
    """One option of a component, as a form or an API lists it.

    low, high: the range, both ends included; None where there is no bound
    formerly: an earlier name, which is still accepted
    group: the field that holds the option, empty for the component's own fields
    server_only: names a device or a file of the server, so a client cannot set it
    A required option has the default `dataclasses.MISSING`.
    """

    name: str
    type: Any
    default: Any
    low: float | None = None
    high: float | None = None
    unit: str = ""
    help: str = ""
    formerly: str = ""
    group: str = ""
    server_only: bool = False

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values of a Literal; empty for any other type."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    formerly: str = "",
    server_only: bool = False,
) -> Any:
    """Declare a dataclass field that is an option. The parameters are those of `Option`."""
    described = {"help": help, "low": low, "high": high, "unit": unit, "formerly": formerly, "server_only": server_only}
    return field(default=default, metadata={METADATA_KEY: described})


def option_group(group: type[Any], **defaults: Any) -> Any:
    """Declare a dataclass field that holds a group of options.

    group: a frozen dataclass whose options all have defaults; defaults: those that differ for this component
    """
    return field(default=group(**defaults))


def list_options(component: type[Any]) -> tuple[Option, ...]:
    """Return the options of a component and of its groups, in the order of their declaration."""
    return tuple(_iterate_options(component)) if is_dataclass(component) else ()


def _iterate_options(component: type[Any], group: str = "", defaults: Any = None) -> Iterator[Option]:
    """Yield the options of a component or group. defaults: the component's instance of the group; None without one"""
    hints = get_type_hints(component)
    for declared in fields(component):
        kind: type[Any] = hints[declared.name]
        factory = declared.default_factory
        default = declared.default if factory is MISSING else factory()
        if is_dataclass(kind):
            yield from _iterate_options(kind, declared.name, default)
        elif declared.init:
            if defaults is not None:
                default = getattr(defaults, declared.name)
            yield Option(declared.name, kind, default, group=group, **declared.metadata.get(METADATA_KEY, {}))


def use_current_names(known: Iterable[Option], options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace earlier names of options by current ones. Raises TypeError if an option is given under both names."""
    renamed = {o.formerly: o.name for o in known if o.formerly}
    for given in options:
        if renamed.get(given) in options:
            raise TypeError(f"option {given!r} is an earlier name of {renamed[given]!r}: give only one of them")
    return {renamed.get(given, given): value for given, value in options.items()}


def from_options(component: type[Component], options: Mapping[str, Any]) -> Component:
    """Build a component from flat options. Raises TypeError for an option that it does not have."""
    known = {o.name: o for o in list_options(component)}
    own: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in use_current_names(known.values(), options).items():
        if name not in known:
            raise TypeError(f"{component.__name__} has no option {name!r}; it has: {', '.join(known) or 'none'}")
        group = known[name].group
        (grouped.setdefault(group, {}) if group else own)[name] = value
    groups = {group: replace(getattr(component, group), **values) for group, values in grouped.items()}
    return component(**own, **groups)


def flatten_options(component: Any) -> dict[str, Any]:
    """Return the flat options of a built component, from which `from_options` builds an equal one."""
    groups = {o.name: o.group for o in list_options(type(component))}
    return {name: getattr(getattr(component, group) if group else component, name) for name, group in groups.items()}
