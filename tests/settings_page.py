"""Generate the page of settings from `app/config.py`.

python -m tests.settings_page            writes docs/operate/settings.md
"""

import json
from pathlib import Path
from typing import Any

from app.config import PREFIX, Settings

PAGE = Path(__file__).resolve().parents[1] / "docs/operate/settings.md"
HEAD = """# Settings

<!-- Written by `python -m tests.settings_page` from app/config.py. Edit the descriptions there. -->

Every setting is an environment variable and has a default. A variable that starts with `LIKENESS_` and is not in this
table stops the service at its start, so a misspelt setting is never ignored. Objects and arrays are written as JSON.

Give every process of an installation, API or worker, the same settings.

| variable | default | values | meaning |
|---|---|---|---|
"""
TAIL = """
The command-line client reads two more variables: `LIKENESS_URL`, the address of the service, and
`LIKENESS_KEY`, the key that it sends.
"""


def page() -> str:
    """The whole page in Markdown."""
    properties = Settings.model_json_schema()["properties"]
    return HEAD + "".join(_row(name, schema) for name, schema in properties.items()) + TAIL


def _row(name: str, schema: dict[str, Any]) -> str:
    cells = (f"`{PREFIX}{name.upper()}`", f"`{_default(name)}`", _values(schema), schema["description"])
    return f"| {' | '.join(cells)} |\n"


def _default(name: str) -> str:
    value = Settings.model_fields[name].default
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, str) and value else json.dumps(value)


def _values(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = {"array": "JSON array", "object": "JSON object", "integer": "whole number"}.get(
        schema["type"], schema["type"]
    )
    if schema["type"] == "string":
        return "path" if schema.get("format") == "path" else "text"
    limit = f" to {schema['maximum']}" if "maximum" in schema else " or more"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']}{limit}"
    above = f"{kind} above {schema.get('exclusiveMinimum')}"
    return kind if "exclusiveMinimum" not in schema else f"{above}, up{limit}" if "maximum" in schema else above


if __name__ == "__main__":
    PAGE.write_text(page())
