"""What the page says of itself where nobody runs its scripts."""

import re

import httpx
import pytest

from page.components import ASSETS
from page.document import DESCRIPTION, TITLE

pytestmark = pytest.mark.browser


def test_a_link_to_the_page_shows_what_is_ours(address: str) -> None:
    """It said "Gradio: Click to try out the app!", with a picture from another server."""
    document = httpx.get(address).text
    head = document[: document.index("</head>")]
    said = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', head))
    assert said["description"] == said["og:description"] == DESCRIPTION
    assert said["og:title"] == TITLE
    assert 50 < len(DESCRIPTION) < 200
    metas = re.findall(r"<meta[^>]*>", head)
    assert not any("gradio" in meta.lower() for meta in metas)
    assert head.index("charset") < 1024, "where browsers look for it"


def test_the_icon_is_ours(address: str) -> None:
    answer = httpx.get(f"{address}favicon.ico")
    assert answer.content == (ASSETS / "favicon.svg").read_bytes()
    assert answer.headers["content-type"].startswith("image/svg")
