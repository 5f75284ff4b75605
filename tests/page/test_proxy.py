"""Visitors behind a proxy: counted by the address that it tells, if the operator named it."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import serving
from gradio_client import Client
from gradio_client.exceptions import AppError

pytestmark = pytest.mark.browser


def asking(address: str, place: str, asked: ExitStack) -> str:
    """What a new visitor, who a proxy says is at `place`, first hears of an endless race."""
    visitor = Client(address, verbose=False, headers={"X-Forwarded-For": place})
    race = {"columns": ["kv"], "model": "fake-endless", "max_new_tokens": 4000}
    job = visitor.submit("Who is it?", **race, api_name="/race")
    asked.callback(job.cancel)
    for report in job:
        return report["status"]
    return job.result()  # which raises what it was refused for


@pytest.mark.parametrize(("named", "counted"), [("127.0.0.8/8", True), ("192.0.2.1", False)])
def test_a_named_proxy_tells_addresses_and_no_other_is_believed(
    tmp_path: Path, named: str, counted: bool
) -> None:
    """One race of an address may wait. Two visitors are of one; others are of others, if who told
    that is to be believed.
    """
    options = ("--fake", "--model", "fake-endless", "--proxy", named)
    limit = "--limit=waiting_per_address=1"
    with serving(*options, limit, cache=tmp_path) as address, ExitStack() as asked:
        asking(address, "198.51.100.1", asked)  # its race runs
        assert "ahead" in asking(address, "198.51.100.2", asked)
        refusal = pytest.raises(AppError, match="1 races of your address are waiting already")
        with refusal:
            asking(address, "198.51.100.2", asked)
        if counted:
            assert "ahead" in asking(address, "198.51.100.3", asked)
        else:
            with refusal:
                asking(address, "198.51.100.3", asked)
