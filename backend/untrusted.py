"""Reads untrusted values by pydantic, within bounds; what pydantic says of a wrong one becomes one
clause for our sentence.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, get_args

from annotated_types import Ge, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from backend.errors import DerbyError

#: Characters of a wrong value, or of where it stands, that a sentence repeats.
_SHOWN = 60

#: What a JSON value begins with, or is followed by: they count how many values a text may hold.
_COUNTED = (b",", b"[", b"{")

#: What a value must be, by how pydantic's name of the error begins.
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "dataclass": "an object",
}


#: What is said of a place, whatever stands there.
_SAID = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "unexpected_keyword_argument": "is not known",
    "union_tag_invalid": "is unknown",
    "union_tag_not_found": "is unknown",
    "string_unicode": "contains half of a surrogate pair: remove it",
}


class Untrusted(BaseModel):
    """Fields that somebody sent, each of its declared type; unknown ones are ignored. A field's
    `title` is what a sentence calls it.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class UntrustedError(DerbyError):
    """What was sent is none of what may be sent. `clause` is the sentence without its full stop,
    `field` the first one that is wrong, "" where it is the whole.
    """

    def __init__(self, clause: str, field: str = "") -> None:
        super().__init__(f"{clause}.")
        self.clause = clause
        self.field = field


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("int_type", "It is not a number.")
    return value


#: A whole number of 64 bits as JSON may have it: 3 or 3.0, but not "3" or true.
Whole = Annotated[int, Strict(strict=False), Ge(-(2**63)), Le(2**63 - 1), BeforeValidator(_number)]


def read_as(kind: Any, value: object, name: str = "It") -> Any:
    """The value as the model or type `kind`. Raises UntrustedError, where `name` is the whole."""
    return _read(kind, name, lambda adapter: adapter.validate_python(value))


def read_json(kind: Any, data: bytes, name: str = "It", most_values: int | None = None) -> Any:
    """The same of JSON in UTF-8, whose bytes are the caller's to bound. The values in it are
    counted before any of it is parsed, some twice; None: there may be any number.
    """
    values = sum(map(data.count, _COUNTED))
    if most_values is not None and values > most_values:
        raise UntrustedError(
            f"{name} holds some {values:,} values, and {most_values:,} are the most"
        )
    return _read(kind, name, lambda adapter: adapter.validate_json(data))


def _read(kind: Any, name: str, validate: Callable[[TypeAdapter[Any]], Any]) -> Any:
    try:
        return validate(_adapter(kind))
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        raise UntrustedError(_fault(error, kind, name), str(place[0]) if place else "") from error


@lru_cache(maxsize=512)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _fault(error: ValidationError, kind: Any, name: str) -> str:
    """The first thing that is wrong, as a clause without a full stop: where, what stands there and
    what must. `kind` is what was read, and `name` what the whole of it is called.
    """
    first = error.errors(include_url=False)[0]
    where, value, message = _called(first["loc"], name, kind), first["input"], first["msg"]
    context = first.get("ctx", {})
    match first["type"]:
        case flaw if flaw in _SAID:
            said = f"{where} {_SAID[flaw]}"
        case "json_invalid":
            said = f"{where} is not JSON ({message.removeprefix('Invalid JSON: ')})"
        case "value_error":
            clause = str(context.get("error", message)).rstrip(".")
            said = f"{where}: {clause}" if first["loc"] else clause
        case "string_too_long" | "string_too_short" | "too_long" | "too_short":
            units = ("character", "characters") if isinstance(value, str) else ("entry", "entries")
            unit = units[len(value) != 1]
            said = f"{where} has {len(value):,} {unit}; it must have {_count(context)}"
        case "literal_error" | "enum":
            expected = context["expected"].replace(" or ", ", ").replace("'", "")
            said = f"{where} is {_shown(value)}; choose from {expected}"
        case "greater_than_equal" | "less_than_equal":
            number = _shown(value).strip("' ")  # it may have come as text
            said = f"{where} is {number}; it must {_range(context, first['loc'], kind)}"
        case other if wanted := _WANTED.get(other.partition("_")[0]):
            said = f"{where} is {_shown(value)}; it must be {wanted}"
        case _:
            said = f"{where} is {_shown(value)}: {message}"
    return said


def _shown(value: object) -> str:
    """A value as a sentence repeats it: one short line that any encoding can write."""
    if isinstance(value, str):
        text = ascii(value) if not value.isprintable() else f"'{value}'"
    elif isinstance(value, list | tuple | dict | set):
        text = f"a {type(value).__name__} of {len(value):,}"
    elif value is None:
        text = "empty"
    else:
        text = f"{value!r:.{_SHOWN + 1}}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 6]} [...]"


def _called(place: tuple[int | str, ...], name: str, kind: Any) -> str:
    """What a sentence calls a place: a field by its title, if it has one."""
    if not place:
        return name
    title = getattr(_field(kind, place[0]), "title", None)
    return title or _shown(".".join(map(str, place)))


def _field(kind: Any, name: int | str) -> Any:
    fields = getattr(kind, "__pydantic_fields__", {})
    aliases = (field for field in fields.values() if field.alias == name)
    return fields.get(name) or next(aliases, None)


def _count(context: Any) -> str:
    bounds = (("min_length", "at least"), ("max_length", "at most"))
    return next(f"{words} {context[name]:,}" for name, words in bounds if name in context)


def _range(context: Any, place: tuple[int | str, ...], kind: Any) -> str:
    """The bounds that a number must keep, both where its type declares both."""
    field = _field(kind, place[0]) if place else None
    bounds = list(_bounds(kind if field is None else (field.annotation, *field.metadata)))
    lows = [bound.ge for bound in bounds if isinstance(bound, Ge)]
    highs = [bound.le for bound in bounds if isinstance(bound, Le)]
    if lows and highs:
        return f"lie between {lows[-1]} and {highs[-1]}"
    return f"be at least {context['ge']}" if "ge" in context else f"be at most {context['le']}"


def _bounds(annotation: Any) -> Iterator[Ge | Le]:
    """The bounds within a type, the outermost last."""
    if isinstance(annotation, Ge | Le):
        yield annotation
    for part in annotation if isinstance(annotation, tuple) else get_args(annotation):
        yield from _bounds(part)
