r"""A JSON Schema's regular expressions, which are ECMA-262's, in the words of Rust's, in which
llguidance and the judge read them. Rust's \d, \w, \s and "." hold other characters, its brackets
have operators, and it knows other escapes.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from backend.errors import DerbyError

#: What the classes of ECMA-262 hold, as in brackets.
_CLASSES = {
    r"\d": "0-9",
    r"\D": r"\x00-/:-\u{10FFFF}",
    r"\w": "0-9A-Z_a-z",
    r"\W": r"\x00-/:-@\[-\^`\{-\u{10FFFF}",
    r"\s": r"\t-\r \xA0\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}",
    r"\S": r"\x00-\x08\x0E-\x1F!-\x9F\xA1-\u{167F}\u{1681}-\u{1FFF}\u{200B}-\u{2027}"
    r"\u{202A}-\u{202E}\u{2030}-\u{205E}\u{2060}-\u{2FFF}\u{3001}-\u{FEFE}\u{FF00}-\u{10FFFF}",
}
_ANYTHING, _NOTHING = r"[\x00-\u{10FFFF}]", r"[^\x00-\u{10FFFF}]"
_DOT = r"[^\n\r\u{2028}\u{2029}]"
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0", "b": "\b"}

_HEX = "[0-9A-Fa-f]"
_ESCAPE = (
    rf"\\(?:x{_HEX}{{2}}|u[dD][89ABab]{_HEX}{{2}}\\u[dD][C-Fc-f]{_HEX}{{2}}"
    rf"|u(?![dD][89A-Fa-f]){_HEX}{{4}}|u\{{0*(?:10|{_HEX})?{_HEX}{{1,4}}\}}|c[A-Za-z]"
    r"|[pP]\{[A-Za-z_]+(?:=[A-Za-z_0-9]+)?\}|[tnvfrdDsSwW]|0(?![0-9])|[^A-Za-z0-9])"
)
_MEMBER = rf"(?:{_ESCAPE}|\\b|[^\\\]])"
_RANGE = re.compile(f"({_MEMBER})(?:-({_MEMBER}))?", re.DOTALL)
_TOKEN = re.compile(
    rf"""(?P<class>\[\^?{_MEMBER}*\])
    |(?P<look>\(\?<?[=!])
    |(?P<open>\((?!\?)|\(\?i?:|\(\?<[A-Za-z_$][\w$]*>)
    |(?P<close>\))
    |(?P<bar>\|)
    |(?P<anchor>[\^$])
    |(?P<count>[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})\??  # few or many first: no match depends on it
    |(?P<character>{_ESCAPE}|[^\\\[()])
    |(?P<wrong>.)""",
    re.DOTALL | re.VERBOSE,
)
#: In what may match NUL, as Rust has it.
_MAY_BE_NUL = re.compile(r"\[\^|\\x00|\\u\{0\}|\\[pP]")
#: What a count may follow.
_COUNTABLE = {"class", "close", "character"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """`exact` matches what the original does. `regular` is for llguidance, without NUL, which no
    text contains, and without look-around: where there was some, it matches more and is `partial`.
    """

    exact: str
    regular: str
    partial: bool


@lru_cache(maxsize=512)
def translated(pattern: str) -> Pattern:
    """Raises DerbyError for what ECMA-262 does not have, and for back references, word boundaries
    and anchors elsewhere than at the ends of the pattern and its alternatives.
    """
    tokens = _tokens(pattern)
    kinds, depth = ["bar", *(kind for kind, _, _ in tokens), "bar"], 0
    for i, (kind, text, start) in enumerate(tokens):
        depth += (kind == "open") - (kind == "close")
        if kind == "anchor" and (depth or kinds[i if text == "^" else i + 2] != "bar"):
            raise _unfit(pattern, start)
    exact = "".join(text for _, text, _ in tokens)
    regular = "".join(
        # With all control characters llguidance takes a class for one that has " and \ too.
        rf"[{text}--\x00]" if kind in _COUNTABLE and _MAY_BE_NUL.search(text) else text
        for kind, text, _ in tokens
        if kind != "around"
    )
    return Pattern(exact, regular, any(kind == "around" for kind, _, _ in tokens))


def _tokens(pattern: str) -> list[tuple[str, str, int]]:
    """The parts of a pattern: kind, text in Rust's words, where it begins. A look-around is one,
    of the kind "around".
    """
    tokens: list[tuple[str, str, int]] = []
    openings: list[int] = []  # where the groups around begin in tokens
    for match in _TOKEN.finditer(pattern):
        kind, start = str(match.lastgroup), match.start()
        text = match[kind]
        if kind in ("look", "open"):
            openings.append(len(tokens))
            text = "(" if kind == "open" and text.startswith("(?<") else text
        elif kind == "close" and openings:
            opening = openings.pop()
            if tokens[opening][0] == "look":
                text = "".join(inner for _, inner, _ in tokens[opening:]) + ")"
                kind, tokens = "around", tokens[:opening]
        elif kind == "class":
            text = _class(text)
        elif kind == "character":
            text = _character(text)
        elif kind not in ("bar", "anchor") and (
            kind != "count" or not tokens or tokens[-1][0] not in _COUNTABLE
        ):
            text = ""  # half an escape, or a count or parenthesis where none may stand
        if not text:
            raise _unfit(pattern, start)
        tokens.append((kind, text, start))
    if openings:
        raise _unfit(pattern, len(pattern))
    return tokens


def _unfit(pattern: str, at: int) -> DerbyError:
    excerpt = pattern if len(pattern) <= 60 else pattern[:59] + "\u2026"
    return DerbyError(
        f'The pattern "{excerpt}" cannot be used from character {at + 1} on: write ECMA-262 '
        r"without back references, \b, and anchors within."
    )


def _character(text: str) -> str:
    """What matches it, in Rust's words."""
    if text == ".":
        return _DOT
    return f"[{_CLASSES[text]}]" if text in _CLASSES else _quoted(_meant(text))


def _meant(text: str) -> str:
    r"""The character that a character or an escape means; a property, \p{..}, means itself."""
    if len(text) == 1 or text[1] in "pP":
        return text
    body = text[1:]
    if body.startswith("u{"):
        return chr(int(body[2:-1], 16))
    if body[0] == "u":
        return json.loads(f'"{text}"')
    if body[0] == "x":
        return chr(int(body[1:], 16))
    if body[0] == "c":
        return chr(ord(body[1]) % 32)
    return _CONTROLS.get(body, body)


def _class(text: str) -> str:
    """Brackets with what they hold; "" if a range ends before it begins."""
    negated = text.startswith("[^")
    members: list[str] = []
    for low, high in _RANGE.findall(text[1 + negated : -1]):
        first, last = (_CLASSES.get(end) or _meant(end) for end in (low, high or low))
        if not high:
            members.append(_quoted(first))
        elif len(first) > 1 or len(last) > 1:  # such as [\w-.]
            members += [_quoted(first), r"\-", _quoted(last)]
        elif first > last:
            return ""
        else:
            members.append(f"{_quoted(first)}-{_quoted(last)}")
    if not members:
        return _ANYTHING if negated else _NOTHING
    return f"[{'^' * negated}{''.join(members)}]"


def _quoted(text: str) -> str:
    """One character as Rust's text, in brackets or outside; classes as they are."""
    if len(text) > 1:
        return text
    if text in r"\.+*?()|[]{}^$-&~":
        return f"\\{text}"
    return text if text.isprintable() else rf"\u{{{ord(text):X}}}"
