"""Values as code: literals that stay what they are, whatever they hold."""

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from backend.models.files import BUILT_IN, BUILT_IN_TITLE

#: The Hub's name of the built-in model.
BUILT_IN_ON_THE_HUB = f"HuggingFaceTB/{BUILT_IN_TITLE}"


class Variable(str):
    """The name of a variable, which is written without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def published(name: str) -> str:
    """A model's name where Decode Derby is not: no library expands "~" in it."""
    if name == BUILT_IN:
        return BUILT_IN_ON_THE_HUB
    # Path's own would take "./" off, and fail for a user that this machine does not have.
    return os.path.expanduser(name)  # noqa: PTH111


def assigned(name: str, text: str) -> list[str]:
    """`name = text` in Python, a line of code for each line of the text."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return [f"{name} = {text!r}"]
    return [f"{name} = (", *(f"    {line!r}" for line in lines), ")"]


def call(head: str, given: Iterable[Any] = (), arguments: Mapping[str, Any] | None = None) -> str:
    """`head(...)` in Python: values by their places, then by their names, one a line."""
    named = (f"{name}={value!r}" for name, value in (arguments or {}).items())
    inside = "".join(f"    {argument},\n" for argument in (*map(repr, given), *named))
    return f"{head}(\n{inside})"


def shell(text: str) -> str:
    """One bash word. What a terminal or an eye could take for something else is written in hex."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"
