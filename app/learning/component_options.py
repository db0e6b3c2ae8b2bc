"""The options of a component that a client may give, checked against what it has."""

from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from app.errors import Invalid
from ml import registry

INNER = {"device", "threads", "manifest", "vocabulary", "pin"}
"""Options that are the machine's affair, or name files of the server, and so are not the client's."""


def known(kind: str, name: str) -> type[BaseModel]:
    """The options with their types and defaults, as the component's dataclass fields say."""
    made = registry.component(kind, name)
    hints = get_type_hints(made)
    told: dict[str, Any] = {f.name: (hints[f.name], f.default) for f in fields(made) if f.name not in INNER}
    return create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **told)


def checked(kind: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All options, those not given at their defaults. Raises Invalid with the list of them."""
    model = known(kind, name)
    listed = {n: f"{field.annotation} = {field.default!r}" for n, field in model.model_fields.items()}
    try:
        options = model.model_validate(given).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        wrong = ".".join(str(part) for part in first["loc"])
        has = ", ".join(model.model_fields) or "none"
        raise Invalid(f"option {wrong!r} of {name}: {first['msg']}; it has: {has}", options=listed) from error
    negative = [n for n, v in options.items() if isinstance(v, int | float) and v < 0]
    if negative or not options.get("dim", 1) or not options.get("steps", 1):
        raise Invalid(f"option {(negative or ['dim and steps'])[0]!r} of {name} is too small", options=listed)
    return options
