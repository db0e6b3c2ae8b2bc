"""Add to every answer the headers that say what a browser, or a cache on the way, may do with it."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY = (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'")
"""Nothing may be loaded or run. Pages that do more send a policy of their own."""
CACHE_POLICY = (b"cache-control", b"no-store")
"""Answers name people, and a cache between would give them to anybody. What may be kept, the page's files, says so."""
SECURITY_HEADERS = (
    CONTENT_POLICY,
    CACHE_POLICY,
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class SecurityHeadersMiddleware:
    """Adds SECURITY_HEADERS to every answer that does not have them yet."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                message["headers"] = headers + [header for header in SECURITY_HEADERS if header[0] not in names]
            await send(message)

        await self.app(scope, receive, send_with_headers)
