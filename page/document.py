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

#: Where the picture for links is: a race of the built-in model, as `--as png` draws it.
PICTURE = "/card.png"

_GRADIOS = re.compile(rb'\s*<meta\s+(?:property="og:|name="twitter:)[^>]*>')
_CHARSET = re.compile(rb"<meta charset=[^>]*>")

_META = (
    ("name", "description", DESCRIPTION),
    ("property", "og:title", TITLE),
    ("property", "og:type", "website"),
    ("property", "og:description", DESCRIPTION),
    ("property", "og:image:width", "1200"),
    ("property", "og:image:height", "630"),
    (
        "property",
        "og:image:alt",
        "The result of a race: what each strategy gained, and its interval",
    ),
    ("name", "twitter:card", "summary_large_image"),
)
_ICON = '\n\t\t<link rel="icon" type="image/svg+xml" href="favicon.ico">'


def described(document: bytes, root: str) -> bytes:
    """The document with our metadata in place of gradio's. `root` is the page's full address,
    because a place that shows a link needs the full address of the picture.
    """
    metas = (("property", "og:image", f"{root}{PICTURE}"), *_META)
    lines = (f'\n\t\t<meta {kind}="{name}" content="{escape(said)}">' for kind, name, said in metas)
    ours = f"{''.join(lines)}{_ICON}".encode()
    return _CHARSET.sub(lambda found: found[0] + ours, _GRADIOS.sub(b"", document), count=1)
