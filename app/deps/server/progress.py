"""Notice a client that sends or reads too slowly."""

MAX_STALL_SECONDS = 20.0
MIN_BYTES_PER_STALL = 4_096
"""A client must move so many bytes within MAX_STALL_SECONDS. 200 bytes a second are slower than any network in use."""


MIN_CROWDED_RATE = 16_384
"""Bytes a second that a client must move, on average, while others are kept out: a photo of 100 KB in six seconds."""


class Stall:
    """How long a count of moved bytes has not grown by MIN_BYTES_PER_STALL, and how fast it grows on average."""

    def __init__(self) -> None:
        self.restart(0, 0.0)

    def restart(self, count: int, now: float) -> None:
        """Begin anew. now: as the event loop's clock has it"""
        self.first_count = self.count = count
        self.first_at = self.began_at = now

    def is_over(self, count: int, now: float) -> bool:
        """Whether the client had MAX_STALL_SECONDS and did not move enough.

        count: of all bytes moved so far, or minus the bytes that are still to be moved, of which there may be more
        """
        self.count = min(count, self.count)
        if count - self.count >= MIN_BYTES_PER_STALL:
            self.count, self.began_at = count, now
        return now - self.began_at > MAX_STALL_SECONDS

    def find_slow_since(self, count: int, now: float) -> float | None:
        """Return since when less than MIN_CROWDED_RATE was moved on average; None if it was more."""
        return self.first_at if count - self.first_count < MIN_CROWDED_RATE * (now - self.first_at) else None
