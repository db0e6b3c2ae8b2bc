"""Configure the server that runs the application."""

import os
import resource
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from app.config import Settings
from app.deps.server.connections import REFUSED_SHARE, ConnectionRegister
from app.deps.server.protocol import LimitedHttpProtocol

MAX_STOP_SECONDS = 3
TRUSTED_PROXIES = "FORWARDED_ALLOW_IPS"
"""The variable that says whose `X-Forwarded-For` is believed. uvicorn's default is to believe all on this machine."""
RESERVED_FILES = 512
"""Files of a process that are no connections: database, indexes, uploads, pipes."""


def configure_server(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server with limits. Raises the limit of open files if connections need more.

    options: of uvicorn.Config, such as host and port
    """
    raise_file_limit(settings.max_connections + settings.max_connections // REFUSED_SHARE + RESERVED_FILES)
    register = ConnectionRegister(settings.max_connections, settings.max_connections_per_address)
    return uvicorn.Config(
        app,
        http=partial(LimitedHttpProtocol, register=register),  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,  # uvicorn would put together each line of a log that nobody reads
        server_header=False,
        proxy_headers=bool(os.environ.get(TRUSTED_PROXIES)),
        timeout_graceful_shutdown=MAX_STOP_SECONDS,
        **options,
    )


def raise_file_limit(count: int) -> None:
    """Allow this process to open `count` files, or as many as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
