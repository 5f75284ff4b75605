"""Parts of the vocabulary that llguidance allows in one go, where all of a part fits.

A slice is all tokens that match a regular expression. Where a terminal may go on with anything of
that shape, the engine takes the slice's ready-made mask instead of walking its tokens one by one.
It sees so only for one repeated class of characters within another: `[a-z]{1,30}` fits the start of
`[a-z]+([0-9_][a-z0-9_]*)?`, yet not of `[a-z][a-z0-9_]*`, though both are the same names.

Each slice is a part of one above it. Keep it so: where two only overlap, and the smaller fits, the
engine walks the rest of the larger. Bounded ones fit bounded terminals too, such as a JSON string
with a `maxLength`, until less is left than their own bound.

A grammar that is made of such words, as programming languages are, asks for `CODE_SLICES` by the
line `// slices: code`: they fit terminals that go on with a word. The two do not mix: where tokens
are in several slices of which one fits, the engine walks the others.
"""

import re

from backend.grammar.sources import GrammarSource

SLICES: tuple[str, ...] = (
    # In a JSON or C string, or a comment to the end of its line.
    r'[^"\\\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]{1,30}',
    r'[^"\\\x00-\x1F\x7F]{1,10}',
    # The same where SQL's text, a block comment, a tag or a code fence might end.
    r"""[^"'*<`\\\x00-\x1F\x7F]{1,30}""",
    # Plain prose.
    r"[ A-Za-z0-9,-]{1,30}",
    # A word and the space before it, then a word alone: at the start of a name, and within one.
    r" [A-Za-z]{1,30}",
    r" [a-z]{1,30}",
    r"[A-Za-z0-9_]{1,30}",
    r"[a-z0-9_]{1,30}",
    r"[A-Za-z]{1,30}",
    r"[a-z]{1,30}",
)

CODE_SLICES: tuple[str, ...] = (
    "[a-zA-Z][a-zA-Z_]*",
    " [a-zA-Z][a-zA-Z_]*",
    r" [^\x00-\x7F]{1,29}",
)

_CODE = re.compile(r"(?m)^// slices: code$")


def slices_of(source: GrammarSource) -> tuple[str, ...]:
    """The slices that a grammar asks for. They change its masks' speed and nothing else."""
    return CODE_SLICES if source.kind == "lark" and _CODE.search(source.text) else SLICES
