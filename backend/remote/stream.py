"""Server-sent events, as far as servers stream answers by them: JSON objects behind "data:"."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from backend.errors import DerbyError

#: Bytes of one event. A token with its twenty best alternatives takes some four thousand.
MOST_EVENT = 1 << 20

#: What stands for the end of a stream.
DONE: dict[str, Any] = {}


def messages(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects that a stream holds, wherever its bytes were cut; DONE last, if it says so.

    Raises DerbyError for an event that is too long, no UTF-8 or no JSON object.
    """
    data = bytearray()
    for line in _lines(pieces):
        if line.startswith(b"data:"):
            data += line[5:].removeprefix(b" ") + b"\n"
            if len(data) > MOST_EVENT:
                raise _too_long()
        elif not line and data:
            message = _message(bytes(data))
            yield message
            if message is DONE:
                return
            data.clear()
    if data:
        yield _message(bytes(data))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, without their ends; a last one that has none is cut off."""
    rest = bytearray()
    for piece in pieces:
        *ended, last = piece.split(b"\n")
        for end in ended:
            rest += end
            yield bytes(rest.removesuffix(b"\r"))
            rest.clear()
        rest += last
        if len(rest) > MOST_EVENT:
            raise _too_long()


def _message(data: bytes) -> dict[str, Any]:
    if data.strip() == b"[DONE]":
        return DONE
    try:
        message = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DerbyError(
            "The server sent bytes that are not UTF-8: the server has a bug."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DerbyError(
            "The server sent an event that is not JSON: check that it is a server for text."
        ) from (error)
    if not isinstance(message, dict):
        raise DerbyError(
            "The server sent an event that is not a JSON object: the server has a bug."
        )
    return message


def _too_long() -> DerbyError:
    return DerbyError(
        f"The server sent an event of more than {MOST_EVENT:,} bytes, the most that is read."
    )
