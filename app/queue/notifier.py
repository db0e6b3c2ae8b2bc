"""Notify waiting threads and processes of new jobs and changes.

Redis only saves the wait: without it, every process polls the database twice a second.
"""

import threading
from typing import Literal

import redis

Topic = Literal["jobs", "changes"]
CHANNEL = "likeness"


class Notifier:
    """Wakes those who wait for a topic, in this process and, through Redis, in the others."""

    def __init__(self, url: str = "") -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=1) if url else None
        self._rung: dict[str, threading.Event] = {"jobs": threading.Event(), "changes": threading.Event()}
        self._closed = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="notifier", daemon=True)
        if self._client is not None:
            self._listener.start()

    def notify(self, topic: Topic) -> None:
        """Wake those who wait for this topic. Call it after the commit."""
        self._rung[topic].set()
        if self._client is not None:
            try:
                self._client.publish(CHANNEL, topic)
            except (redis.RedisError, OSError, ValueError):  # the last two: the connection is being closed
                return  # the other processes poll

    def wait(self, topic: Topic, seconds: float) -> None:
        """Return at the next notification of this topic, or after so many seconds."""
        self._rung[topic].wait(seconds)
        self._rung[topic].clear()

    def close(self) -> None:
        self._closed.set()
        for event in self._rung.values():
            event.set()
        if self._client is not None:
            self._listener.join(timeout=3)
            self._client.close()

    def _listen(self) -> None:
        assert self._client is not None
        while not self._closed.is_set():
            try:
                with self._client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(CHANNEL)
                    while not self._closed.is_set():
                        message = channel.get_message(timeout=0.5)
                        if message is not None:
                            self._rung[message["data"].decode()].set()
            except (redis.RedisError, OSError, ValueError):  # the last two: its socket was closed meanwhile
                self._closed.wait(1)
