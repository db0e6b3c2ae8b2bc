"""Files that are always answered whole. A range costs a read and two writes, and a request may ask for a hundred."""

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send


class WholeFile(FileResponse):
    """A file, whatever `Range` the request has: a server may ignore it (RFC 9110, section 14.2)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        self.headers["accept-ranges"] = "none"
        headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": headers}, receive, send)
