"""Check the options that a client gives for a component against the options that it has."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from app.errors import Invalid
from ml import registry
from ml.options import Option, use_current_names


def list_client_options(kind: str, name: str) -> tuple[Option, ...]:
    """The options of a component that a client may set: none that names a device or a file of the server."""
    return tuple(option for option in registry.list_options(kind, name) if not option.server_only)


def make_options_model(kind: str, name: str) -> type[BaseModel]:
    """A schema of the component's options, with their types, defaults and ranges."""
    fields: dict[str, Any] = {o.name: (o.type, _make_field(o)) for o in list_client_options(kind, name)}
    return create_model(name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)


def _make_field(option: Option) -> Any:
    return Field(option.default, ge=option.low, le=option.high, description=option.help)


def check_options(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options, with defaults for those not given. An option's earlier name is accepted.

    Raises Invalid with the list of options.
    """
    model = make_options_model(kind, name)
    try:
        return model.model_validate(use_current_names(list_client_options(kind, name), given)).model_dump()
    except TypeError as error:
        raise Invalid(f"{error} (of {name})") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        wrong = ".".join(str(part) for part in first["loc"])
        known = ", ".join(model.model_fields) or "none"
        listed = {n: f"{field.annotation} = {field.default!r}" for n, field in model.model_fields.items()}
        raise Invalid(f"option {wrong!r} of {name}: {first['msg']}; it has: {known}", options=listed) from error
