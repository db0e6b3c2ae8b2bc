"""Limit the keys, values and depth of JSON before it is parsed and validated, and refuse a key that is there twice.

A parser makes objects of all that a text holds, and a schema makes an error for each key that it does not know. Both
cost a hundred times the bytes, so that a small limit of bytes is no limit of time and memory.

Of a key that an object has twice, one parser takes the first value and another the last: what a proxy has checked might
not be what counts.
"""

import json
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from app.errors import Invalid

MAX_KEYS = 1_000
MAX_VALUES = 100_000
MAX_DEPTH = 64
MAX_QUOTED_CHARACTERS = 100
"""Of a key that a refusal names."""
MAX_TOKENS_PER_VALUE = 6
"""A value of valid JSON has at most a comma or an opening bracket, a closing one, a key, a colon and a string."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},:]', re.DOTALL)


class JsonLimits(NamedTuple):
    """keys: of one object; values: of all arrays and objects together; depth: of arrays and objects in each other"""

    keys: int = MAX_KEYS
    values: int = MAX_VALUES
    depth: int = MAX_DEPTH


DEFAULT_LIMITS = JsonLimits()


def is_surely_accepted(data: bytes | bytearray, limits: JsonLimits = DEFAULT_LIMITS) -> bool:
    """Return whether JSON has one key at most, and is within the limits even if no string has characters of structure.

    This takes about a millisecond for 10 MB. If it is False, `check_json` decides.
    """
    return _is_surely_within(data, limits, 1)


def _is_surely_within(data: bytes | bytearray, limits: JsonLimits, max_keys: int) -> bool:
    opened = data.count(b"{") + data.count(b"[")
    return (
        opened <= limits.depth
        and data.count(b":") <= max_keys
        and opened + data.count(b",") <= limits.values
    )  # fmt: skip


def check_json(data: bytes | bytearray | str, limits: JsonLimits = DEFAULT_LIMITS, name: str = "the JSON") -> None:
    """Check the structure of a JSON text. Raises Invalid, which names the limit, or the key that is there twice.

    name: of the text, for the error

    A text that is not valid JSON may pass: a parser refuses it where it is wrong, and so far it is within the limits.
    """
    data = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if is_surely_accepted(data, limits):
        return
    if not _is_surely_within(data, limits, limits.keys):
        _check_limits(data, limits, name)
    with suppress(ValueError):
        json.loads(data, object_pairs_hook=partial(_check_keys, name))


def _check_keys(name: str, pairs: list[tuple[str, Any]]) -> None:
    """Raises Invalid if an object has a key twice. pairs: its keys and values"""
    if len(dict(pairs)) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise Invalid(f"{name} has an object with the key {key[:MAX_QUOTED_CHARACTERS]!r} twice; send each key once")


def _check_limits(data: bytes | bytearray, limits: JsonLimits, name: str) -> None:
    """Count in bounded memory. Raises Invalid."""
    values, keys = 0, [0]  # keys: of the objects that are open, the innermost last
    for count, token in enumerate(_TOKEN.finditer(data)):
        mark = data[token.start()]
        if mark in b"{[":
            keys.append(0)
            values += 1
            if len(keys) - 1 > limits.depth:
                raise _make_refusal(name, f"is more than {limits.depth} levels deep")
        elif mark in b"}]":
            keys.pop()
            if not keys:
                return  # nothing was open: a parser stops here
        elif mark in b":":
            keys[-1] += 1
            if keys[-1] > limits.keys:
                raise _make_refusal(name, f"has an object with more than {limits.keys:,} keys")
        elif mark in b",":
            values += 1
        if values > limits.values or count > MAX_TOKENS_PER_VALUE * (limits.values + 1):
            raise _make_refusal(name, f"has more than {limits.values:,} values")


def _make_refusal(name: str, reason: str) -> Invalid:
    return Invalid(f"{name} {reason}; send less, or several requests")
