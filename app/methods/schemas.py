"""Answers of the route for methods."""

from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from app.learning.method_catalogue import DescriptorEntry, MethodEntry
from ml.options import Option

OptionType = Literal["boolean", "integer", "number", "string", "array"]
Scalar = bool | int | float | str

DIM: dict[str, Any] = {
    "name": "dim", "type": "integer", "items": None, "default": 128, "minimum": 1, "maximum": None,
    "choices": [], "unit": "numbers", "help": "numbers of an embedding", "group": "",
}  # fmt: skip
START: dict[str, Any] = {
    "name": "start", "type": "string", "items": None, "default": "lda", "minimum": None, "maximum": None,
    "choices": ["lda", "wpca", "pca", "random", "learned"], "unit": "", "help": "where the map starts", "group": "map",
}  # fmt: skip
MIRRORED: dict[str, Any] = {
    "name": "mirrored", "type": "boolean", "items": None, "default": False, "minimum": None, "maximum": None,
    "choices": [], "unit": "", "help": "describe each crop by the mean over the crop and its mirror image", "group": "",
}  # fmt: skip
METHOD: dict[str, Any] = {
    "name": "ldml",
    "summary": "Logistic discriminant metric learning: one linear map, learned from pairs.",
    "learns": True,
    "options": [DIM, START],
}
DESCRIPTOR: dict[str, Any] = {
    "name": "sift",
    "summary": "SIFT at nine places of the aligned face, at three scales.",
    "dim": 3456,
    "installed": True,
    "install": "",
    "options": [MIRRORED],
}


class OptionOut(BaseModel):
    """An option that a training may set."""

    model_config = ConfigDict(json_schema_extra={"examples": [DIM, START]})
    name: str = Field(description="its key in `options` of a training")
    type: OptionType = Field(description="JSON type of the value")
    items: OptionType | None = Field(description="JSON type of the elements of an array; null for other types")
    default: Scalar | list[Scalar] = Field(description="the value that it has unless a training sets it")
    minimum: int | float | None = Field(description="the smallest allowed value; null: no bound")
    maximum: int | float | None = Field(description="the largest allowed value; null: no bound")
    choices: list[Scalar] = Field(description="the only allowed values; empty: any of the type and range")
    unit: str = Field(description="the unit of a number; empty for a share, a factor, or another type")
    help: str = Field(description="the meaning of the option")
    group: str = Field(description="options of the same group belong together; empty: no group")

    @classmethod
    def of(cls, option: Option) -> Self:
        kind, items = _find_json_type(option.type)
        return cls(
            name=option.name,
            type=kind,
            items=items,
            default=option.default,
            minimum=option.low,
            maximum=option.high,
            choices=list(option.choices),
            unit=option.unit,
            help=option.help,
            group=option.group,
        )


class MethodOut(BaseModel):
    """A way to learn a metric."""

    model_config = ConfigDict(json_schema_extra={"examples": [METHOD]})
    name: str = Field(description="the name for `method` of a training")
    summary: str = Field(description="a description in one sentence")
    learns: bool = Field(description="whether it learns from the faces; false: it compares descriptors by a fixed rule")
    options: list[OptionOut] = Field(description="the options that a training can set")

    @classmethod
    def of(cls, entry: MethodEntry) -> Self:
        options = [OptionOut.of(option) for option in entry.options]
        return cls(name=entry.name, summary=entry.summary, learns=entry.learns, options=options)


class DescriptorOut(BaseModel):
    """A way to describe faces."""

    model_config = ConfigDict(json_schema_extra={"examples": [DESCRIPTOR]})
    name: str = Field(description="the name for `descriptor` or `descriptors` of a training")
    summary: str = Field(description="a description in one sentence")
    dim: int | None = Field(description="size of its vectors with the default options; null: unknown")
    installed: bool = Field(description="whether it can be used now")
    install: str = Field(description="the command that installs it, or why it cannot be used; empty if installed")
    options: list[OptionOut] = Field(description="the options that a training can set")

    @classmethod
    def of(cls, entry: DescriptorEntry) -> Self:
        return cls(
            name=entry.name,
            summary=entry.summary,
            dim=entry.dim,
            installed=not entry.install,
            install=entry.install,
            options=[OptionOut.of(option) for option in entry.options],
        )


class MethodsOut(BaseModel):
    """The methods and descriptors that trainings and evaluations can name."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"default_method": "auto", "methods": [METHOD], "descriptors": [DESCRIPTOR]}]}
    )
    default_method: str = Field(description="the method of a training that names none")
    methods: list[MethodOut]
    descriptors: list[DescriptorOut]


@lru_cache
def _find_json_type(annotation: Any) -> tuple[OptionType, OptionType | None]:
    """Return the JSON type of an option's Python type, and that of its elements."""
    schema = TypeAdapter(annotation).json_schema()
    return schema["type"], schema.get("items", {}).get("type")
