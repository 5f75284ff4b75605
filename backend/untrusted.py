"""Reads untrusted values by pydantic, within bounds; what pydantic says of a wrong one becomes one
clause for our sentence.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from backend.errors import DerbyError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

#: Characters of a wrong value, or of where it stands, that a sentence repeats.
_SHOWN = 60

#: What a JSON value begins with, or is followed by: they count how many values a text may hold.
_COUNTED = (b",", b"[", b"{")


def read(
    reader: "TypeAdapter[T]", value: object, refusal: Callable[[str], DerbyError], **options: Any
) -> T:
    """The value as `reader` reads it. Raises `refusal` of a clause that says what is wrong.

    `options` are those of TypeAdapter.validate_python.
    """
    from pydantic import ValidationError

    try:
        return reader.validate_python(value, **options)
    except ValidationError as error:
        raise refusal(fault(error)) from error


def read_json(
    reader: "TypeAdapter[T]",
    data: bytes,
    refusal: Callable[[str], DerbyError],
    most_values: int,
    **options: Any,
) -> T:
    """The same of JSON in UTF-8 that holds at most so many values; they are counted before any of
    it is parsed, and some may be counted twice. The bytes are the caller's to bound.
    """
    from pydantic import ValidationError

    values = sum(map(data.count, _COUNTED))
    if values > most_values:
        raise refusal(f"it holds some {values:,} values, and {most_values:,} are the most")
    try:
        return reader.validate_json(data, **options)
    except ValidationError as error:
        raise refusal(fault(error)) from error


def fault(error: "ValidationError") -> str:
    """The first thing that is wrong, as a clause without a full stop: where, what stands there and
    what should.
    """
    first = error.errors(include_url=False)[0]
    place, message = ".".join(map(str, first["loc"])), first["msg"]
    where = shown(place) if place else "it"
    match first["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{where} is not known"
        case "json_invalid":
            return f"it is not JSON ({message.removeprefix('Invalid JSON: ')})"
        case "value_error":
            clause = str(first.get("ctx", {}).get("error", message)).rstrip(".")
            return f"{where}: {clause}" if place else clause
        case _:
            _, should, rest = message.partition(" should ")
            wrong = f"{where} is {shown(first['input'])}"
            return f"{wrong}, but should {rest}" if should else f"{wrong}: {message}"


def shown(value: object) -> str:
    """A value as a sentence repeats it: one short line that any encoding can write."""
    if isinstance(value, str):
        text = ascii(value) if not value.isprintable() else f"'{value}'"
    elif isinstance(value, list | tuple | dict | set):
        text = f"a {type(value).__name__} of {len(value):,}"
    else:
        text = f"{value!r:.{_SHOWN + 1}}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 6]} [...]"
