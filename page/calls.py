"""What a browser may call: a request's body must be a call of one of the page's own functions."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from annotated_types import Len

from backend.errors import DerbyError
from backend.untrusted import Untrusted, read_as, read_json

#: By the address that takes the calls: how many values each function takes, by its number.
Functions = Mapping[str, Mapping[int, int]]

#: The name that a browser gives its session; gradio's have eleven characters.
Session = Annotated[str, Len(1, 64)]

#: Lists and objects within one another; the line-up's editor sends eight.
MAX_DEPTH = 16


class Call(Untrusted):
    """What gradio's page sends, with the fields that are needed here."""

    fn_index: int
    data: list[Any]
    session_hash: Session
    trigger_id: int | None = None


def read_call(
    body: bytes, arities: Mapping[int, int], session: Callable[[str], str]
) -> tuple[str, bytes]:
    """The session that `session` makes of the named one, and the call in the form that gradio may
    get. Raises DerbyError if the body is not a call of one of these functions.
    """
    call: Call = read_json(Call, body, "The request")
    if (count := arities.get(call.fn_index)) is None:
        raise DerbyError(f"The page has no function {call.fn_index!r:.60}: reload it.")
    if len(call.data) != count:
        raise DerbyError(f"The request has {len(call.data)} values; {count} are needed.")
    _require_plain(call.data)
    named = session(call.session_hash)
    try:
        text = json.dumps({**call.model_dump(), "session_hash": named}, allow_nan=False)
    except ValueError as error:
        raise DerbyError("The request contains a number that is not finite.") from error
    return named, text.encode()


def named_session(name: object) -> str:
    """The name that a browser gave its session. Raises DerbyError for anything else."""
    return read_as(Session, name, "The session's name")


def require_shallow(value: Any) -> list[dict[Any, Any]]:
    """The objects within a JSON value. Raises DerbyError if it is nested deeper than MAX_DEPTH."""
    level, found = [value], list[dict[Any, Any]]()
    for _ in range(MAX_DEPTH):
        dicts = [item for item in level if isinstance(item, dict)]
        found += dicts
        level = [child for item in level if isinstance(item, list) for child in item]
        level += [child for item in dicts for child in item.values()]
    if level:
        raise DerbyError(f"The request is nested more than {MAX_DEPTH} deep.")
    return found


def _require_plain(value: Any) -> None:
    """Raise DerbyError for a value that is nested too deeply, or that gradio would take for a file:
    it would fetch the address or path in it before the function is called.
    """
    if any("path" in item and "meta" in item for item in require_shallow(value)):
        raise DerbyError("The page takes no files.")
