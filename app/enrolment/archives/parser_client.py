"""Start a process that parses an archive, read its messages, and say why it ended."""

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.enrolment.archives.parser_request import ParserRequest
from app.errors import AppError, Invalid, NotFound, TooLarge
from app.storage.blob_store import make_disk_error

log = logging.getLogger("likeness.archives")

ROOT = Path(__file__).resolve().parents[3]
START = "import sys; sys.path.insert(0, sys.argv[1]); from app.enrolment.archives.parser_process import main; main()"
COMMAND = (sys.executable, "-I", "-S", "-c", START, str(ROOT))
"""Isolated and without installed packages, so that it starts fast and sees none of the settings."""
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
LAST_MESSAGES = ("end", "refused", "memory", "disk", "crash")
ERRORS: dict[str, type[AppError]] = {"Invalid": Invalid, "TooLarge": TooLarge, "NotFound": NotFound}

CHECK_SECONDS = 0.25
END_SECONDS = 10.0
READ_BYTES = 2**20
MAX_LINE_BYTES = 64 * 2**20
MiB = 2**20


class ParserCrashed(Invalid):
    """A parser ended by something else than its limits: its own fault, or a signal from outside."""


def run_parser(
    request: ParserRequest, silence_seconds: float, check: Callable[[], None]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Run a parser, and yield its messages and the bytes that follow them.

    silence_seconds: how long it may take for one message; check: called while this waits, and may raise
    Raises Invalid, TooLarge or NotFound if the archive is refused, Busy if the disk is full, and ParserCrashed.
    """
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    process = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the worker only, which stops the parser
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(request.encode())
        messages = _MessageReader(process.stdout.fileno(), silence_seconds, check)
        while text := messages.read_line():
            message = json.loads(text)
            if message.keys() & set(LAST_MESSAGES):
                _raise_refusal(message, request)
                return
            yield message, messages.read_bytes(message.get("photo_bytes", 0))
        raise _explain_end(process, request)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _MessageReader:
    """Reads lines and bytes from a pipe, and waits at most `silence_seconds` for each piece of them."""

    def __init__(self, pipe: int, silence_seconds: float, check: Callable[[], None]) -> None:
        self._pipe, self._silence_seconds, self._check = pipe, silence_seconds, check
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def read_line(self) -> bytes:
        """Return the next line; nothing if the process has ended before a whole one.

        Raises ParserCrashed if the line has more than MAX_LINE_BYTES.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE_BYTES:
                raise _make_crash(f"its parser gave a result of more than {MAX_LINE_BYTES // MiB} MiB")
            if not self._receive():
                return b""
        return self._take(end + 1)

    def read_bytes(self, count: int) -> bytes:
        """Return so many bytes. Raises ParserCrashed if the process ends before."""
        while len(self._buffer) < count:
            if not self._receive():
                raise _make_crash("it ended in the middle of a photo")
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _receive(self) -> bool:
        """Wait for bytes. Returns False at the end.

        Raises TooLarge after `silence_seconds`, and what `check` raises.
        """
        self._check()
        silent_polls = 0  # and not the time: the machine may have been paused, and the parser with it
        while not self._poll.poll(1000 * CHECK_SECONDS):
            self._check()
            silent_polls += 1
            if silent_polls * CHECK_SECONDS > self._silence_seconds:
                raise _make_limit_refusal(
                    f"its parser gave no result for {self._silence_seconds:g} seconds",
                    "or raise LIKENESS_ARCHIVE_TIMEOUT_SECONDS",
                )
        data = os.read(self._pipe, READ_BYTES)
        self._buffer += data
        return bool(data)


def _raise_refusal(message: dict[str, Any], request: ParserRequest) -> None:
    """Raise what the last message of a parser says; nothing after `end`."""
    if "refused" in message:
        kind, detail, code = message["refused"]
        raise ERRORS[kind](detail, code=code)
    if "memory" in message:
        raise _make_limit_refusal(f"parsing it took more than {request.memory_bytes // MiB:,} MiB of memory")
    if "disk" in message:
        error = OSError(message["disk"], os.strerror(message["disk"]))
        raise make_disk_error(error) from error
    if "crash" in message:
        log.warning("parser.crashed task=%s %s", request.task, message["crash"])
        raise _make_crash(f"its parser failed with {message['crash'].strip().splitlines()[-1][:200]}")


def _explain_end(process: subprocess.Popen[bytes], request: ParserRequest) -> AppError:
    """Return the error for a parser that closed its output without a last message."""
    try:
        status = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return _make_crash("its parser stopped in the middle")
    log.warning("parser.ended task=%s status=%d", request.task, status)
    if status == -signal.SIGXCPU:
        return _make_limit_refusal(f"parsing it took more than {request.cpu_seconds:,} seconds of processor time")
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return _make_crash(f"its parser ended with {how}")


def _make_limit_refusal(limit: str, otherwise: str = "or as a plain tar") -> TooLarge:
    detail = f"the archive could not be read: {limit}; send it as several archives, {otherwise}"
    return TooLarge(detail, code="ArchiveTooLarge")


def _make_crash(reason: str) -> ParserCrashed:
    return ParserCrashed(f"the archive could not be read: {reason}; pack it again as a tar", code="InvalidArchive")
