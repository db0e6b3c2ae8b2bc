"""The sockets on which the processes of the API listen."""

import socket
import sys

from app.startup import CannotStart

SHARES_CONNECTIONS = sys.platform == "linux"
"""Whether the kernel distributes the connections of a port among the sockets that are bound to it."""


def open_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """Return a socket for each of `count` processes, all bound to this address. Raises CannotStart.

    With one socket for all, a process that is idle may take all connections of a client, one after the other.
    """
    listeners: list[socket.socket] = []
    try:
        _bind(host, port, is_shared=False).close()  # sharing a port, two services would not notice each other
        is_shared = count > 1 and SHARES_CONNECTIONS
        listeners.append(_bind(host, port, is_shared))
        port = listeners[0].getsockname()[1]
        while len(listeners) < count:
            listeners.append(_bind(host, port, is_shared) if is_shared else listeners[0].dup())
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise CannotStart(
            f"it cannot listen on {host}, port {port}: {error.strerror}. Stop the process that uses the port, or "
            "choose another with --port"
        ) from error
    return listeners


def _bind(host: str, port: int, is_shared: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
