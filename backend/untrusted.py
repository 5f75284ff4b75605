"""Reads by pydantic what somebody sent or stored: what is wrong with it becomes one sentence."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from backend.errors import DerbyError

#: Characters of a wrong value, or of where it stands, that a sentence repeats.
_LONGEST = 60


class Untrusted(BaseModel):
    """Fields that somebody sent, each of its declared type; unknown ones are ignored, or refused
    with `extra="forbid"`, within its dataclasses, too.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class UntrustedError(DerbyError):
    """What was sent is none of what may be sent. `clause` is the sentence without its full stop."""

    def __init__(self, clause: str) -> None:
        super().__init__(f"{clause}.")
        self.clause = clause


def read_as(kind: Any, value: object, name: str = "It") -> Any:
    """The value as the model or type `kind`. Raises UntrustedError, where `name` is the whole."""
    return _read(kind, name, lambda adapter: adapter.validate_python(value))


def read_json(kind: Any, data: bytes, name: str = "It") -> Any:
    """The same of JSON in UTF-8, whose bytes are the caller's to bound."""
    return _read(kind, name, lambda adapter: adapter.validate_json(data))


def _read(kind: Any, name: str, validate: Callable[[TypeAdapter[Any]], Any]) -> Any:
    try:
        return validate(_adapter(kind))
    except ValidationError as error:
        raise UntrustedError(_fault(error, name)) from error


@lru_cache(maxsize=512)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _fault(error: ValidationError, name: str) -> str:
    """The first thing that is wrong: where, what stands there, and pydantic's words on it."""
    first = error.errors(include_url=False)[0]
    where = _excerpt(".".join(map(str, first["loc"]))) if first["loc"] else name
    value = "" if first["type"] == "missing" else f" is {_excerpt(first['input'])}"
    return f"{where}{value}: {first['msg'].rstrip('.')}"


def _excerpt(value: object) -> str:
    """A value as a sentence repeats it: one short line."""
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value):,}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 6]} [...]"
