"""What a browser may call: the body of a request is a call of one of the page's own functions."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from backend.errors import DerbyError

#: By the address that takes the calls: how many values each function takes, by its number.
Functions = Mapping[str, Mapping[int, int]]

#: Characters of the name that a browser gives its session; gradio's have eleven.
MAX_SESSION = 64

#: Lists and objects within one another; the line-up's editor sends eight.
MAX_DEPTH = 16


def read_call(
    body: bytes, arities: Mapping[int, int], session: Callable[[str], str]
) -> tuple[str, bytes]:
    """The session that `session` makes of the one named, and the call as gradio may have it:
    nothing but what it needs. Raises DerbyError for what is no call of these functions.
    """
    sent = _parsed(body)
    if not isinstance(sent, dict):
        raise DerbyError("The request must be a JSON object.")
    number, data = sent.get("fn_index"), sent.get("data")
    if isinstance(number, bool) or not isinstance(number, int) or number not in arities:
        raise DerbyError(f"The page has no function {number!r:.60}: reload it.")
    if not isinstance(data, list) or len(data) != arities[number]:
        count = len(data) if isinstance(data, list) else "no"
        raise DerbyError(f"The request has {count} values; {arities[number]} are needed.")
    trigger = sent.get("trigger_id")
    call = {
        "data": data,
        "fn_index": number,
        "trigger_id": trigger if isinstance(trigger, int) and 0 <= trigger < 2**31 else None,
        "session_hash": session(named_session(sent.get("session_hash"))),
    }
    return call["session_hash"], json.dumps(call, separators=(",", ":")).encode()


def named_session(name: Any) -> str:
    """The name that a browser gave its session. Raises DerbyError if it is none."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_SESSION:
        raise DerbyError(f"A session's name has 1 to {MAX_SESSION} characters.")
    return name


def _parsed(body: bytes) -> Any:
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DerbyError("The request is not JSON that can be read.") from error
    _require_plain(value)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _require_plain(value: Any) -> None:
    """Raise DerbyError for what is nested too deep, and for what gradio takes for a file: it would
    fetch the address or the path in it before the function is called.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        dicts = [item for item in level if isinstance(item, dict)]
        if any("path" in item and "meta" in item for item in dicts):
            raise DerbyError("The page takes no files.")
        level = [child for item in level if isinstance(item, list) for child in item]
        level += [child for item in dicts for child in item.values()]
    if level:
        raise DerbyError(f"The request is nested more than {MAX_DEPTH} deep.")
