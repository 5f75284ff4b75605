"""What the document says about itself, for search engines and for places that show links to it.

gradio's own template names gradio, and those readers do not run scripts.
"""

import re
from html import escape

TITLE = "Decode Derby"
DESCRIPTION = (
    "Race decoding strategies on one prompt: KV reuse, speculative decoding, lookahead, grammars. "
    "Which is fastest on this machine, by how much, why, and does it change the text?"
)

_GRADIOS = re.compile(rb'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>')
_CHARSET = re.compile(rb"<meta charset=[^>]*>")

_META = (
    ("name", "description", DESCRIPTION),
    ("property", "og:title", TITLE),
    ("property", "og:type", "website"),
    ("property", "og:description", DESCRIPTION),
)
_ICON = '\n\t\t<link rel="icon" type="image/svg+xml" href="favicon.ico">'


def described(document: bytes) -> bytes:
    """The document with our metadata in place of gradio's."""
    lines = (f'\n\t\t<meta {kind}="{name}" content="{escape(said)}">' for kind, name, said in _META)
    ours = f"{''.join(lines)}{_ICON}".encode()
    return _CHARSET.sub(lambda found: found[0] + ours, _GRADIOS.sub(b"", document), count=1)
