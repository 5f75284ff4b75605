"""The page's endpoints as programs use them: gradio's own client against the app."""

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from recordings import race_of

from backend.records.file import as_bytes
from backend.records.record import board


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return Client(address, verbose=False)


def test_only_the_named_endpoints_are_shown(client: Client) -> None:
    shown = client.view_api(return_format="dict")
    assert set(shown["named_endpoints"]) == {"/race", "/benchmark", "/replay", "/check_grammar"}
    assert shown["unnamed_endpoints"] == {}
    names = [each["parameter_name"] for each in shown["named_endpoints"]["/race"]["parameters"]]
    assert names[:3] == ["prompt", "columns", "max_new_tokens"]


def test_a_race_is_run_and_reported(client: Client) -> None:
    job = client.submit("Who is it?", columns=["kv", "lookup"], max_new_tokens=24, api_name="/race")
    last = job.result(timeout=60)
    assert last["status"] == "ended"
    assert [column["setting"] for column in last["columns"]] == ["kv", "lookup"]
    assert last["columns"][0]["text"] == last["columns"][1]["text"]


def test_what_is_wrong_is_told_in_its_sentence(client: Client) -> None:
    with pytest.raises(AppError, match="The prompt is empty"):
        client.predict("", api_name="/race")


def test_a_recorded_race_is_reported_as_it_was(client: Client) -> None:
    record = race_of("kv lookup")
    report = client.predict(as_bytes(record).decode(), api_name="/replay")
    assert [column["text"] for column in report["columns"]] == [
        score.text for score in board(record).scores
    ]
    with pytest.raises(AppError, match="race"):
        client.predict("nonsense", api_name="/replay")


def test_the_pages_own_functions_stay_private(client: Client) -> None:
    with pytest.raises(ValueError, match="Cannot find a function"):
        client.predict(api_name="/start")
