"""A first look at an untrusted grammar, in one pass and without recursion, before any parser's.

It need not be exact: whatever slips through meets llguidance's limits in the sandbox's child.
"""

import json
import re
from collections.abc import Callable

from backend.errors import DerbyError
from backend.grammar.messages import TITLES
from backend.grammar.sources import Kind

#: Brackets inside brackets.
MAX_NESTING = 100
#: The larger number of a repetition such as `{2,5}`.
MAX_COUNT = 1000
#: Likewise for `maxLength` and its kin in a JSON Schema: real ones allow long texts, and llguidance
#: counts without unrolling (a `maxLength` of 10**9 compiles in 3 ms).
MAX_SCHEMA_COUNT = 100_000
#: Characters, literals and names once every repetition is written out, those in others multiplied.
MAX_EXPANSION = 100_000

#: What turns the order of shown text around, so that a grammar reads as what it is not; and NUL.
_UNSEEN = re.compile("[\0\u202a-\u202e\u2066-\u2069]")
_SCHEMA_COUNTS = {
    f"{end}{what}" for end in ("min", "max") for what in ("Items", "Length", "Properties")
} | {"minContains", "maxContains"}
_SCHEMA_REGEXES = {"pattern", "whitespace_pattern"}

_REPEAT = r"\{[ \t]*+(?P<low>\d*+)[ \t]*+(?P<to>,?)[ \t]*+(?P<high>\d*+)[ \t]*+\}"
_STRING = r'(?P<atom>"(?:[^"\\\n]|\\.)*+"?)'
_LARK = re.compile(
    rf"(?:\#|//)[^\n]*|{_STRING}|(?P<regex>/(?:[^/\\]|\\.)++/?)|{_REPEAT}"
    r"|~[ \t]*+(?P<low2>\d++)(?P<to2>[ \t]*+\.\.[ \t]*+(?P<high2>\d++))?"
    r"|(?P<name>\w+)|(?P<open>[(\[{])|(?P<close>[)\]}])",
    re.DOTALL,
)
_GBNF = re.compile(
    rf"\#[^\n]*|{_STRING}|(?P<class>\[(?:[^\]\\]|\\.)*+\]?)|{_REPEAT}"
    r"|(?P<name>[\w-]+)|(?P<open>[({])|(?P<close>[)}])",
    re.DOTALL,
)
_REGEX = re.compile(
    rf"(?P<atom>\\[pPxuU]\{{[^}}]*+\}}?|\\.)|{_REPEAT}"
    r"|(?P<class>\[\^?\]?)|(?P<unclass>\])|(?P<open>[({])|(?P<close>[)}])|(?P<name>[^*+?|])",
    re.DOTALL,
)
_JSON = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*+"?)(?:\s*+:\s*+(?:(?P<number>-?\d[\d.eE+-]*)'
    r'|(?P<value>"(?:[^"\\]|\\.)*+")))?|(?P<open>[\[{])|(?P<close>[\]}])',
    re.DOTALL,
)

#: Raises the DerbyError for what is wrong at an offset.
_Refuse = Callable[[int, str], DerbyError]


def scan(text: str, kind: Kind) -> None:
    """Raise DerbyError, with line and column, for a grammar that no parser should see."""

    def refuse(at: int, why: str) -> DerbyError:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        return DerbyError(f"{TITLES[kind]} is wrong at line {line}, column {column}: {why}.")

    if unseen := _UNSEEN.search(text):
        name = f"U+{ord(unseen[0]):04X}"
        why = f"the character {name} hides or reorders text: remove it, or write it as an escape"
        raise refuse(unseen.start(), why)
    if kind == "json_schema":
        _scan_json(text, refuse)
    elif kind == "regex":
        _scan_regex(text, _Pieces(refuse))
    else:
        _scan_rules(text, _LARK if kind == "lark" else _GBNF, _Pieces(refuse))


class _Pieces:
    """Counts brackets that are open and, for each, the pieces that its content unrolls to."""

    def __init__(self, refuse: _Refuse) -> None:
        self._refuse = refuse
        self._open = [0]
        self._last = 0

    def add(self, at: int, pieces: int = 1) -> None:
        """Something that a repetition may follow."""
        self._open[-1] += pieces
        self._last = pieces
        if self._open[-1] > MAX_EXPANSION:
            why = (
                f"its repetitions make more than {MAX_EXPANSION} pieces when written out, those "
                "inside others multiplied: use smaller ones, or * or +"
            )
            raise self._refuse(at, why)

    @property
    def depth(self) -> int:
        """How many brackets are open."""
        return len(self._open) - 1

    def open(self, at: int) -> None:
        self._open.append(0)
        _check_nesting(self.depth, at, self._refuse)

    def close(self, at: int) -> None:
        if self.depth:  # one bracket too many is for the parser to tell
            self.add(at, self._open.pop())

    def repeat(self, at: int, shown: str, low: str, high: str | None) -> None:
        """`{low,high}`, with no `high` or an empty one where it is not bounded or the same."""
        least, most = _number(low), _number(high or low)
        shown = re.sub(r"\s+", "", shown)
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        if max(least, most) > MAX_COUNT:
            why = f"the repetition {shown} counts beyond the limit of {MAX_COUNT}"
            raise self._refuse(at, f"{why}: use a smaller one, or * or +")
        if least > most:
            why = f"the repetition {shown} begins at {least} and ends at {most}: swap the two"
            raise self._refuse(at, why)
        pieces = self._last * max(most, 1)
        self.add(at, pieces - self._last)
        self._last = pieces


def _number(digits: str) -> int:
    """Cut to nine digits, which is beyond every limit: Python refuses thousands of them."""
    return int(digits.lstrip("0")[:9] or 0)


def _check_nesting(depth: int, at: int, refuse: _Refuse) -> None:
    if depth > MAX_NESTING:
        why = f"brackets are nested {depth} deep; the limit is {MAX_NESTING}"
        raise refuse(at, f"{why}: give inner parts a name of their own")


def _scan_rules(text: str, tokens: re.Pattern[str], pieces: _Pieces) -> None:
    for token in tokens.finditer(text):
        at = token.start()
        if token.lastgroup != "regex":
            _scan_token(token, pieces, at)
            continue
        outside = pieces.depth
        pieces.open(at)
        _scan_regex(token[0][1:].removesuffix("/"), pieces, at + 1)
        while pieces.depth > outside:
            pieces.close(at)


def _scan_regex(text: str, pieces: _Pieces, offset: int = 0) -> None:
    """The regular expression `text`, which stands at `offset`."""
    classes = 0
    for token in _REGEX.finditer(text):
        at = offset + token.start()
        if token.lastgroup == "class":
            classes += 1
            pieces.open(at)
        elif not classes:
            _scan_token(token, pieces, at)
        elif token.lastgroup == "unclass":
            classes -= 1
            pieces.add(at)
            pieces.close(at)


def _scan_token(token: re.Match[str], pieces: _Pieces, at: int) -> None:
    groups = token.groupdict()
    if groups["low"] is not None:
        pieces.repeat(at, token[0], groups["low"], groups["high"])
    elif groups.get("low2") is not None:
        pieces.repeat(at, token[0], groups["low2"], groups["high2"])
    elif groups["open"]:
        pieces.open(at)
    elif groups["close"]:
        pieces.close(at)
    elif token.lastgroup:
        pieces.add(at)


def _scan_json(text: str, refuse: _Refuse) -> None:
    depth = 0
    for token in _JSON.finditer(text):
        if token["open"]:
            depth += 1
            _check_nesting(depth, token.start(), refuse)
        elif token["close"]:
            depth = max(depth - 1, 0)
        elif token["number"] or token["value"]:
            _scan_member(token, refuse)


def _scan_member(token: re.Match[str], refuse: _Refuse) -> None:
    """A key of a JSON Schema whose value is a number or a string."""
    try:
        key = json.loads(token["string"])
        value = json.loads(token["value"] or "null")
    except ValueError:
        return  # the parser will tell
    if token["number"] and key in _SCHEMA_COUNTS:
        number = token["number"]
        if len(number) > 40 or _float(number) > MAX_SCHEMA_COUNT:
            shown = number[:40] + "..." if len(number) > 40 else number
            why = f"{key} is {shown}; the limit is {MAX_SCHEMA_COUNT}: leave it out or lower it"
            raise refuse(token.start("number"), why)
    elif value is not None and key in _SCHEMA_REGEXES:
        at = token.start("value")  # places inside it are hidden by JSON's escapes
        _scan_regex(value, _Pieces(lambda _, why: refuse(at, why)))


def _float(number: str) -> float:
    try:
        return float(number)
    except ValueError:  # the parser will tell
        return 0
