"""Redis only rings the bell: whoever waits looks at once. Without it, they look every half second anyway."""

import threading
from typing import Literal

import redis

Topic = Literal["jobs", "changes"]
CHANNEL = "likeness"


class Notifier:
    """`ring` after a commit; `wait` returns at the next ring, or when the time is over."""

    def __init__(self, url: str = "") -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=1) if url else None
        self._rung: dict[str, threading.Event] = {"jobs": threading.Event(), "changes": threading.Event()}
        self._closed = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="bell", daemon=True)
        if self._client is not None:
            self._listener.start()

    def notify(self, topic: Topic) -> None:
        self._rung[topic].set()
        if self._client is not None:
            try:
                self._client.publish(CHANNEL, topic)
            except redis.RedisError:
                return  # they will look by themselves

    def wait(self, topic: Topic, seconds: float) -> None:
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
                with self._client.pubsub(ignore_subscribe_messages=True) as heard:  # type: ignore[no-untyped-call]
                    heard.subscribe(CHANNEL)
                    while not self._closed.is_set():
                        message = heard.get_message(timeout=0.5)
                        if message is not None:
                            self._rung[message["data"].decode()].set()
            except redis.RedisError:
                self._closed.wait(1)
