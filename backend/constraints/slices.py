"""Parts of the vocabulary that llguidance allows in one go, where all of a part fits.

A slice is all tokens that match a regular expression. Where a terminal may go on with anything of
that shape, the engine takes the slice's ready-made mask instead of walking its tokens one by one.
It sees so only for one repeated class of characters within another: `[a-z]{1,30}` fits the start of
`[a-z]+([0-9_][a-z0-9_]*)?`, yet not of `[a-z][a-z0-9_]*`, though both are the same names.

Each slice is a part of one above it. Keep it so: where two only overlap, and the smaller fits, the
engine walks the rest of the larger. Bounded ones fit bounded terminals too, such as a JSON string
with a `maxLength`, until less is left than their own bound.
"""

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
