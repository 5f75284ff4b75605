"""The independent judge of C texts: pycparser, after what a preprocessor would do."""

import re

from pycparser import CParser
from pycparser.c_parser import ParseError

#: The spelling by which `grammars/c.lark` tells type names from other names.
TYPE_NAME = re.compile(r"[A-Za-z_]\w*_t|FILE|DIR|bool|va_list|jmp_buf", re.ASCII)
_LITERAL_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?P<comment>/\*.*?\*/|//[^\n]*)', re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)


def parse_c(text: str) -> None:
    """Raise ValueError if pycparser rejects the text; every type-like name counts as declared."""
    bare = _DIRECTIVE.sub("", _without_comments(text.replace("\\\n", "")))
    words = set(re.findall(r"[A-Za-z_]\w*", bare, re.ASCII))
    names = sorted(word for word in words if TYPE_NAME.fullmatch(word))
    declared = "".join(f"typedef int {name};\n" for name in names)
    try:
        CParser().parse(declared + bare)
    except (ParseError, AssertionError, AttributeError) as error:
        raise ValueError(f"pycparser rejects the text: {error}") from error


def _without_comments(text: str) -> str:
    """The text with each comment as one space, as C's third translation phase leaves it."""
    return _LITERAL_OR_COMMENT.sub(lambda found: " " if found["comment"] else found[0], text)
