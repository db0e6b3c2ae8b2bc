"""The sockets of the API's processes share a port, and nobody else's."""

import socket
from collections.abc import Iterator

import pytest

from app.cli.server.listeners import open_listeners
from app.startup import CannotStart


@pytest.fixture(params=[1, 3])
def listeners(request: pytest.FixtureRequest) -> Iterator[list[socket.socket]]:
    opened = open_listeners("127.0.0.1", 0, request.param)
    assert len(opened) == request.param
    yield opened
    for listener in opened:
        listener.close()


def test_all_are_bound_to_the_same_port(listeners: list[socket.socket]) -> None:
    assert len({listener.getsockname() for listener in listeners}) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_second_service_is_refused_the_port(listeners: list[socket.socket], count: int) -> None:
    for listener in listeners:
        listener.listen()
    port = listeners[0].getsockname()[1]
    with pytest.raises(CannotStart, match=f"port {port}: Address already in use"):
        open_listeners("127.0.0.1", port, count)
