"""What the document says of itself, to search engines and where a link to it is shown.

gradio's own template names gradio; what is written in by a script is not read there.
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

_META = "".join(
    f'\n\t\t<meta {kind}="{name}" content="{escape(content)}">'
    for kind, name, content in (
        ("name", "description", DESCRIPTION),
        ("property", "og:title", TITLE),
        ("property", "og:type", "website"),
        ("property", "og:description", DESCRIPTION),
        ("name", "twitter:card", "summary"),
    )
)
_ICON = '\n\t\t<link rel="icon" type="image/svg+xml" href="favicon.ico">'


def described(document: bytes) -> bytes:
    """The document with what is ours in the place of what is gradio's."""
    ours = f"{_META}{_ICON}".encode()
    return _CHARSET.sub(lambda found: found[0] + ours, _GRADIOS.sub(b"", document), count=1)
