"""Whether a finished text is valid under its JSON Schema, by an independent validator.

For the sandbox's child: a schema's patterns may take any time, and the validator is native code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

Verdict = Literal["valid", "invalid", "unchecked"]

#: Steps back that a pattern may take: no limit that is ever reached, because the process has a
#: deadline. A pattern that gave up would count as one that does not match, and so be valid under
#: `not`.
_NO_LIMIT = 2**62
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why` says why a text is not valid, at the JSON `pointer`, or why it could not be checked.
    `later` holds pointers to the parts of the schema that the grammar had left out; `forbidden`
    says that an invalid text breaks the other parts.
    """

    verdict: Verdict
    pointer: str = ""
    why: str = ""
    later: tuple[str, ...] = ()
    forbidden: bool = False


VALID = Judgement("valid")


def unchecked(why: str) -> Judgement:
    """Nothing is claimed of the text."""
    return Judgement("unchecked", why=shortened(why))


def judge(schema: str, text: str) -> Judgement:
    """Check `text` with a JSON Schema, both given as text. Formats are checked, and nothing is
    fetched. Numbers are exact: in binary, 19.99 is not a multiple of 0.01.
    """
    try:
        found = _first_error(schema, _read(text))
    except _WrongError as error:
        return Judgement("invalid", why=shortened(str(error)), forbidden=True)
    except _UnclearError as error:
        return unchecked(str(error))
    return VALID if found is None else _said(found)


def _first_error(schema: str, value: Any) -> ValidationError | None:
    """Raises _UnclearError if the validator cannot tell."""
    from jsonschema_rs import FancyRegexOptions, ValidationError, validator_for

    try:
        validator = validator_for(
            json.loads(schema, parse_float=Decimal),
            validate_formats=True,
            offline=True,
            pattern_options=FancyRegexOptions(backtrack_limit=_NO_LIMIT),
        )
        return next(iter(validator.iter_errors(value)), None)
    except ValidationError as error:
        raise _UnclearError(f"the validator refuses the schema: {error.message}") from error
    except UnicodeEncodeError as error:
        why = "a string in it holds half of a surrogate pair, which is not a character"
        raise _UnclearError(why) from error
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise _UnclearError(f"the validator cannot read it ({error})") from error


def asserted(name: str) -> bool:
    """True if `judge` checks the `format` of that name; others say nothing of a text."""
    from jsonschema_rs import ValidationError, validator_for

    try:
        validator_for({"format": name}, validate_formats=True, ignore_unknown_formats=False)
    except (ValidationError, ValueError):
        return False
    return True


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901) to the value at `path`."""
    words = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return "".join(f"/{word}" for word in words)


def shortened(text: str) -> str:
    """One line of `text`, at most _LONGEST characters that any encoding can write."""
    line = " ".join(text.encode(errors="replace").decode().split()).rstrip(".")
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} [...] {line[-half:]}"


def _said(found: ValidationError) -> Judgement:
    where = shortened(pointer(found.instance_path))
    if isinstance(found.kind, _gave_up()):
        return unchecked(f"a pattern of the schema cannot be tried at {where or 'its root'}")
    return Judgement("invalid", where, shortened(found.message), forbidden=True)


def _gave_up() -> tuple[type, ...]:
    from jsonschema_rs import ValidationErrorKind

    return ValidationErrorKind.BacktrackLimitExceeded, ValidationErrorKind.RegexEngineFailure


class _WrongError(Exception):
    """The text is not JSON, or different readers would read it differently."""


class _UnclearError(Exception):
    """It cannot be decided whether the text is valid."""


def _read(text: str) -> Any:
    """Raises _WrongError or _UnclearError."""
    try:
        return json.loads(
            text, parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_without_doubles
        )
    except json.JSONDecodeError as error:
        raise _WrongError(f"it is not JSON: {error}") from error
    except (ValueError, ArithmeticError) as error:
        raise _UnclearError("a number in it has too many digits") from error
    except RecursionError as error:
        raise _UnclearError("it is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise _WrongError(f"{constant} is not JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values under one name, some readers see the first and some the last."""
    read: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            raise _WrongError(f"the name {json.dumps(name)} occurs twice in one object")
        read[name] = value
    return read
