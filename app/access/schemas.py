from pydantic import BaseModel, ConfigDict, Field

from app.deps.caller import Role


class KeyIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"role": "operator", "name": "upload desk", "collections": ["staff"]}]},
    )
    role: Role
    name: str = Field("", max_length=255)
    collections: tuple[str, ...] = Field((), description="empty: all collections")


class KeyOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    id: str
    role: Role
    name: str
    collections: list[str]
    created_at: float
    revoked_at: float | None


class NewKeyOut(KeyOut):
    key: str = Field(description="shown here and never again")


class KeysOut(BaseModel):
    keys: list[KeyOut]
    next_token: str | None = None
