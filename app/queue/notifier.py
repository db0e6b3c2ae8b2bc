"""Notify waiting threads and processes of new jobs, changes and revoked keys.

Redis only saves the wait: without it, every process polls the database twice a second.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args
from uuid import uuid4

if TYPE_CHECKING:
    from redis import Redis

Topic = Literal["jobs", "changes", "keys"]
CHANNEL = "likeness"
AWAY_SECONDS = 5.0
"""For so long a Redis that did not answer is left alone: to wait for one that hangs takes each write seconds."""


class Notifier:
    """Wakes those who wait for a topic, in this process and, through Redis, in the others."""

    def __init__(self, url: str = "") -> None:
        self._client = _connect(url) if url else None
        self._rung: dict[str, threading.Event] = {topic: threading.Event() for topic in get_args(Topic)}
        self._away_until = float("-inf")  # by the monotonic clock
        self._listeners: list[tuple[Topic, Callable[[], None]]] = []
        self._closed = threading.Event()
        self._own_channel = f"{CHANNEL}:{uuid4().hex}"  # a message there wakes the listener, to end it
        self._listener = threading.Thread(target=self._listen, name="notifier", daemon=True)
        if self._client is not None:
            self._listener.start()

    def listen(self, topic: Topic, callback: Callable[[], None]) -> None:
        """Have a short function called at each notification of this topic, in the thread that receives it."""
        self._listeners.append((topic, callback))

    def notify(self, topic: Topic) -> None:
        """Wake those who wait for this topic. Call it after the commit."""
        self._deliver(topic)
        self._publish(CHANNEL, topic)

    def wait(self, topic: Topic, seconds: float) -> None:
        """Return at the next notification of this topic, or after so many seconds."""
        self._rung[topic].wait(seconds)
        self._rung[topic].clear()

    def close(self) -> None:
        self._closed.set()
        for event in self._rung.values():
            event.set()
        if self._client is not None:
            self._publish(self._own_channel, "closed")
            self._listener.join(timeout=3)
            self._client.close()

    def _publish(self, channel: str, message: str) -> None:
        if self._client is not None and time.monotonic() >= self._away_until:
            from redis import RedisError  # only where Redis is used

            try:
                self._client.publish(channel, message)
            except (RedisError, OSError, ValueError):  # the last two: the connection is being closed
                self._away_until = time.monotonic() + AWAY_SECONDS  # the other processes poll

    def _deliver(self, topic: str) -> None:
        if topic not in self._rung:
            return  # of a newer version
        self._rung[topic].set()
        for heard, callback in self._listeners:
            if heard == topic:
                callback()

    def _listen(self) -> None:
        from redis import RedisError  # only where Redis is used

        assert self._client is not None
        while not self._closed.is_set():
            try:
                with self._client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(CHANNEL, self._own_channel)
                    while not self._closed.is_set():
                        message = channel.get_message(timeout=0.5)
                        if message is not None:
                            self._deliver(message["data"].decode())
            except (RedisError, OSError, ValueError):  # the last two: its socket was closed meanwhile
                self._closed.wait(1)


def _connect(url: str) -> "Redis":
    """Return a client of Redis. A process without Redis does not import the library: that takes a tenth of a second."""
    from redis import Redis

    return Redis.from_url(url, socket_timeout=2, socket_connect_timeout=1)
