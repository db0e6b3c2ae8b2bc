"""Notifications between threads and processes."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from app.queue.notifier import Notifier

SECONDS = 10.0


@pytest.fixture
def notifier(redis_url: str) -> Iterator[Notifier]:
    opened = Notifier(redis_url)
    yield opened
    opened.close()


def wait_for_notification(notifier: Notifier, sender: Notifier) -> bool:
    """Send notifications until one arrives, since those sent before the listener subscribed are lost."""
    arrived = threading.Event()

    def wait() -> None:
        notifier.wait("jobs", SECONDS)
        arrived.set()

    threading.Thread(target=wait, daemon=True).start()
    deadline = time.monotonic() + SECONDS - 1
    while not arrived.is_set() and time.monotonic() < deadline:
        sender.notify("jobs")
        arrived.wait(0.1)
    return arrived.is_set()


def test_a_notification_reaches_another_process(notifier: Notifier, redis_url: str) -> None:
    sender = Notifier(redis_url)
    assert wait_for_notification(notifier, sender)
    sender.close()


def test_notifications_arrive_again_after_the_connection_was_lost(notifier: Notifier, redis_url: str) -> None:
    sender = Notifier(redis_url)
    assert wait_for_notification(notifier, sender)
    assert notifier._client is not None
    notifier._client.connection_pool.disconnect()
    assert wait_for_notification(notifier, sender)
    assert notifier._listener.is_alive()
    sender.close()


def test_a_listener_ends_at_once(redis_url: str) -> None:
    """Otherwise each process would take half a second longer to stop."""
    seconds = []
    for _ in range(3):
        notifier, sender = Notifier(redis_url), Notifier(redis_url)
        assert wait_for_notification(notifier, sender)
        sender.close()
        started = time.monotonic()
        notifier.close()
        seconds.append(time.monotonic() - started)
        assert not notifier._listener.is_alive()
    assert min(seconds) < 0.1


def test_a_redis_that_hangs_is_waited_for_once() -> None:
    """It accepts connections and never answers, as one that was stopped."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        sender = Notifier(f"redis://127.0.0.1:{hung.getsockname()[1]}")
        started = time.monotonic()
        sender.notify("changes")
        first = time.monotonic() - started
        for _ in range(20):
            sender.notify("changes")
        assert time.monotonic() - started - first < 0.5 * first
        sender.close()
