"""Parsers of other people's making that judge the texts of the shipped grammars."""

import ast
import json
import re
import sys
import warnings
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from email.headerregistry import Address
from typing import Any

import sqlglot
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from lark import Lark
from lark.exceptions import LarkError
from pycparser import CParser
from pycparser.c_parser import ParseError
from sqlglot import exp
from sqlglot.errors import SqlglotError

from backend.grammar.sources import shipped

#: Raises ValueError for a text that is not of the language.
Judge = Callable[[str], None]

_FORMATS = FormatChecker()

_CONTACT = "full_name email_address phone_number favourite_hobby occupation"


@_FORMATS.checks("email", raises=(ValueError, IndexError))
def _is_address(value: object) -> bool:
    """The standard library's mail header parser: jsonschema's own check looks for an @ only."""
    return not isinstance(value, str) or Address(addr_spec=value).addr_spec == value


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise ValueError(complaint)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require(len({key for key, _ in pairs}) == len(pairs), "a key occurs twice")
    return dict(pairs)


def _validate(validator: Draft202012Validator, text: str) -> None:
    """Decimals, because 0.15 is a multiple of 0.05 in no binary arithmetic."""
    value = json.loads(text, parse_float=Decimal, object_pairs_hook=_unique)
    try:
        validator.validate(value)
    except ValidationError as error:
        raise ValueError(error.message) from error


def _follows(schema: Any) -> Judge:
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=_FORMATS)
    return lambda text: _validate(validator, text)


def _parse(parser: Lark, text: str, start: str) -> None:
    try:
        parser.parse(text, start=start)
    except LarkError as error:
        raise ValueError(f"{text!r}: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def judge_json(text: str) -> None:
    """An object or an array, whose strings are whole characters."""
    value = json.loads(text, parse_constant=_refuse)
    _require(isinstance(value, (dict, list)), "neither an object nor an array")
    json.dumps(value, ensure_ascii=False).encode()


_ARITHMETIC = Lark(
    r"""
    equation: operation "=" SIGNED
    operation: term (ADD term)+ | factor (MULTIPLY factor)+
    term: factor (MULTIPLY factor)*
    factor: WHOLE | "(" operation ")"
    ADD: "+" | "-"
    MULTIPLY: "*" | "/"
    WHOLE: "0" | "1".."9" ("0".."9")*
    SIGNED.1: "-"? WHOLE ("." ("0".."9")*)?
    %ignore " "
    """,
    parser="earley",
    lexer="dynamic",
    start="equation",
)


def judge_arithmetic(text: str) -> None:
    """An operation, whatever its spacing, and a value."""
    _parse(_ARITHMETIC, text, "equation")


_CHESS = Lark(
    r"""
    white: (officer | pawn RISE | pawn "8" "=" CROWN) MARK?
    black: (officer | pawn FALL | pawn "1" "=" CROWN) MARK?
    officer: "O-O" "-O"? | "K" "x"? square | CROWN FILE? RANK? "x"? square
    pawn: (FILE "x")? FILE
    square: FILE RANK
    FILE: "a".."h"
    RANK: "1".."8"
    RISE: "3".."7"
    FALL: "2".."6"
    CROWN: "Q" | "R" | "B" | "N"
    MARK: "+" | "#"
    """,
    parser="earley",
    start=["white", "black"],
)
_WINS = ("1-0", "0-1")


def judge_chess(text: str) -> None:
    """Numbers in order, moves that their colour could write, and a mate that ends the game."""
    *words, result = re.sub(r"\b([0-9]+\.)", r"\1 ", text).split() or [""]
    _require(result in {*_WINS, "1/2-1/2", "*"}, f"no result: {result!r}")
    numbers, plies = words[::3], [word for i, word in enumerate(words) if i % 3]
    _require(numbers == [f"{i + 1}." for i in range(len(numbers))], "the numbers are wrong")
    _require(len(plies) > max(0, 2 * len(numbers) - 2), "a number without a move")
    for i, ply in enumerate(plies):
        _parse(_CHESS, ply, ("white", "black")[i % 2])
        if ply[0].islower() and ply[1] == "x":
            _require(abs(ord(ply[0]) - ord(ply[2])) == 1, f"no pawn captures like {ply}")
        if ply.endswith("#"):
            _require(i == len(plies) - 1, "a move after the mate")
            _require(result == _WINS[i % 2], f"{ply} does not end in {result}")


def _words(limit: int, *also: str) -> dict[str, Any]:
    return {"type": ["string", *also], "minLength": 1, "maxLength": limit}


_TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": _words(40), "unit": {"enum": ["celsius", "fahrenheit"]}},
    "send_message": {"to": _words(40), "text": _words(160)},
    "set_timer": {
        "minutes": {"type": "integer", "minimum": 1, "maximum": 600},
        "label": _words(40, "null"),
    },
}
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_CALLS = {
    tool: _follows(_object({"name": {"const": tool}, "arguments": _object(arguments)}))
    for tool, arguments in _TOOLS.items()
}


def judge_tool_call(text: str) -> None:
    """Text without a tag, then calls of known tools, one block after another."""
    prose, *rest = _CALL.split(text)
    calls, gaps = rest[::2], rest[1::2]
    _require(not re.search(r"</?tool_call", prose), "a tag in the text")
    _require(gaps == (["\n"] * len(gaps))[1:] + [""] * bool(gaps), "text after a call")
    for call in calls:
        _require(not re.search(r"</?tool_call", call), "a tag in a call")
        value = json.loads(call)
        _require(isinstance(value, dict) and value.get("name") in _CALLS, "no such tool")
        _CALLS[value["name"]](call)


def judge_date(text: str) -> None:
    """A day of the calendar."""
    _require(date.fromisoformat(text).isoformat() == text, "another form of a date")


def judge_contact(text: str) -> None:
    """Five filled fields in their order, written as Python's json module indents them."""
    fields = json.loads(text, object_pairs_hook=_unique)
    _require(json.dumps(fields, indent=2, ensure_ascii=False) == text, "another layout")
    _require(" ".join(fields) == _CONTACT, "other fields, or another order")
    for value in fields.values():
        _require(isinstance(value, str) and 1 <= len(value) <= 60, "no short text")
    _require("." in Address(addr_spec=fields["email_address"]).domain, "no address")
    _require(re.fullmatch("[0-9 ]+", fields["phone_number"]), "no phone number")


def judge_yes_no(text: str) -> None:
    """One sentence: a verdict and its reason."""
    verdict, because, reason = text.partition(", because ")
    _require(verdict in {"Yes", "No"} and because, "no verdict")
    _require(reason.endswith(".") and reason.count(".") == 1, "not one sentence")
    _require(reason.isascii() and reason[:-1], "no reason")


def judge_list(text: str) -> None:
    """Three to seven items, one short line each."""
    *items, end = text.split("\n")
    _require(not end and 3 <= len(items) <= 7, f"{len(items)} whole lines")
    for item in items:
        bullet, words = item[:2], item[2:]
        _require(bullet == "- " and words[:1].isascii() and words[:1].isalnum(), "no item")
        _require(len(words) <= 80 and not re.search(r"[\x00-\x1f\x7f]", words), "no short line")


#: The spelling by which `grammars/c.lark` tells type names from other names.
_TYPE_NAME = re.compile(
    r"[A-Za-z_]\w*_t|FILE|DIR|bool|va_list|jmp_buf|[A-Z]+[a-z][A-Za-z0-9]*", re.ASCII
)
_LITERAL_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?P<comment>/\*.*?\*/|//[^\n]*)', re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)


def judge_c(text: str) -> None:
    """Raise ValueError if pycparser rejects the text; every type-like name counts as declared."""
    bare = _DIRECTIVE.sub("", _without_comments(text.replace("\\\n", "")))
    words = set(re.findall(r"[A-Za-z_]\w*", bare, re.ASCII))
    names = sorted(word for word in words if _TYPE_NAME.fullmatch(word))
    declared = "".join(f"typedef int {name};\n" for name in names)
    try:
        CParser().parse(declared + bare)
    except (ParseError, AssertionError, AttributeError) as error:
        raise ValueError(f"pycparser rejects the text: {error}") from error


def _without_comments(text: str) -> str:
    """The text with each comment as one space, as C's third translation phase leaves it."""
    return _LITERAL_OR_COMMENT.sub(lambda match: " " if match["comment"] else match[0], text)


def judge_python(text: str) -> None:
    """Raises ValueError if the text is not a Python module."""
    with warnings.catch_warnings():
        # Doubtful escapes and literals only warn; an error here would hide which they are.
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"Python refuses {text!r}: {error}") from error


#: sqlglot recurses some twenty frames a bracket; how deep a text nests is not what is judged.
_FRAMES = 20_000


def judge_sql(text: str) -> None:
    """Raises ValueError unless sqlglot reads the text as exactly one statement that it knows."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    try:
        statements = sqlglot.parse(text)
    except SqlglotError as error:
        raise ValueError(f"sqlglot refuses {text!r}: {error}") from error
    finally:
        sys.setrecursionlimit(limit)
    if len(statements) != 1 or statements[0] is None:
        raise ValueError(f"{text!r} is not exactly one statement")
    if isinstance(statements[0], exp.Command):
        # What sqlglot does not understand it passes on unread.
        raise ValueError(f"sqlglot does not know the statement {text!r}")  # noqa: TRY004


def judge_sql_block(text: str) -> None:
    """Any text, then one fenced block of SQL, which ends the text."""
    prose, fence, block = text.partition("```sql\n")
    _require(fence and "```" not in prose, "no fence, or another one before it")
    code, end, after = block.partition("\n```")
    _require(end and not after, "the fence is open, or not the end")
    judge_sql(code)


JUDGES: dict[str, Judge] = {
    "arithmetic": judge_arithmetic,
    "c": judge_c,
    "contact": judge_contact,
    "chess": judge_chess,
    "date": judge_date,
    "json": judge_json,
    "list": judge_list,
    "python": judge_python,
    "sql": judge_sql,
    "sql_block": judge_sql_block,
    "tool_call": judge_tool_call,
    "yes_no": judge_yes_no,
} | {
    name: _follows(json.loads(source.text, parse_float=Decimal))
    for name, source in shipped().items()
    if source.kind == "json_schema"
}
