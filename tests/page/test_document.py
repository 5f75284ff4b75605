"""What the page says of itself where nobody runs its scripts."""

import re

import httpx
import pytest

from page.document import DESCRIPTION, TITLE
from page.site import site_of

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


def test_a_cookie_that_came_by_https_goes_back_by_nothing_else(address: str) -> None:
    by_proxy = httpx.get(address, headers={"x-forwarded-proto": "https"})
    assert by_proxy.headers["set-cookie"].endswith("SameSite=Lax; Secure")
    assert httpx.get(address).headers["set-cookie"].endswith("SameSite=Lax")


def test_a_space_is_reached_by_https_whatever_its_proxy_says() -> None:
    site = site_of("0.0.0.0", (), "me-derby.hf.space", space=True)  # noqa: S104
    assert site.secure("http", {"host": "me-derby.hf.space"})
