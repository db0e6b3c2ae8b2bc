"""Notice a client that sends or reads too slowly."""

MAX_STALL_SECONDS = 20.0
MIN_BYTES_PER_STALL = 4_096
"""A client must move so many bytes within MAX_STALL_SECONDS. 200 bytes a second are slower than any network in use."""


class Stall:
    """How long a count of moved bytes has not grown by MIN_BYTES_PER_STALL."""

    def __init__(self) -> None:
        self.count, self.began_at = 0, 0.0

    def restart(self, count: int, now: float) -> None:
        """Begin anew. now: as the event loop's clock has it"""
        self.count, self.began_at = count, now

    def is_over(self, count: int, now: float) -> bool:
        """Whether the client had MAX_STALL_SECONDS and did not move enough.

        count: of all bytes moved so far, or minus the bytes that are still to be moved, of which there may be more
        """
        self.count = min(count, self.count)
        if count - self.count >= MIN_BYTES_PER_STALL:
            self.restart(count, now)
        return now - self.began_at > MAX_STALL_SECONDS
