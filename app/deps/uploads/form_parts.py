"""Parse a multipart form as it arrives, part by part."""

from collections.abc import AsyncIterator, Sequence

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import Invalid


async def iterate_form_parts(
    blocks: AsyncIterator[bytes], boundary: bytes, names: Sequence[str], expected: str
) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the names of the parts with their bytes, a block at a time.

    names: of the parts that the form may have, each once; the first one is required
    expected: says in a refusal what the form should be
    Raises Invalid.
    """
    parts = _FormParts(names, expected)
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]
        async for block in blocks:
            parser.write(block)
            for part in parts.take_data():
                yield part
    except FormParserError as error:
        raise Invalid(f"the body is not complete multipart/form-data: {error}", code="InvalidRequest") from error
    if names[0] not in parts.names_seen:
        raise Invalid(f"the form has no part named `{names[0]}`", code="InvalidRequest")
    if not parts.is_complete:
        raise Invalid("the form ends before its last boundary: the upload was cut off", code="InvalidRequest")


class _FormParts:
    """Collects what the parser reports: the headers of each part, its bytes, and the end of the form.

    names_seen: the names of the parts so far; is_complete: the form has its last boundary
    """

    def __init__(self, names: Sequence[str], expected: str) -> None:
        self.names_seen: list[str] = []
        self.is_complete = False
        self._names, self._expected = names, expected
        self._name = self._value = b""
        self._blocks: list[tuple[str, bytes]] = []

    def callbacks(self) -> dict[str, object]:
        return {
            "on_header_field": self._on_name,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }

    def take_data(self) -> list[tuple[str, bytes]]:
        """Return the bytes since the last call, each block with the name of its part."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        name, value = self._name.lower(), self._value
        self._name = self._value = b""
        if name != b"content-disposition":
            return
        part = parse_options_header(value)[1].get(b"name", b"").decode("latin-1")
        if part not in self._names or part in self.names_seen:
            raise Invalid(f"{self._expected}, not {part!r}")
        self.names_seen.append(part)
        self._blocks.append((part, b""))  # a part may be empty

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if not self.names_seen:
            raise Invalid(f"{self._expected}, not a part without a name")
        self._blocks.append((self.names_seen[-1], data[start:end]))

    def _on_end(self) -> None:
        self.is_complete = True
