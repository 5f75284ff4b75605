"""The streams of further servers, written after their documents: what each adds is read and shown.

Each file of `streams` names server, version and page in its first lines, which are comments.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from scripted_server import Script, scripted
from server_streams import REQUEST, raced

from backend.results.metrics import Score
from backend.results.sentences import served
from backend.types import Request, Sampling

STREAMS = Path(__file__).with_name("streams")


def of(name: str, settings: str = "", request: Request = REQUEST) -> tuple[Score, Script]:
    """The score of a column whose server sends that stream, and what it was asked for."""
    script = Script([(STREAMS / f"{name}.txt").read_bytes()])
    with scripted(script) as address:
        _, board = raced(f"@{address}{settings}", request=request)
    assert board.scores[0].state == "done"
    return board.scores[0], script


def test_sglang_counts_as_it_goes_and_tells_a_requests_drafts() -> None:
    score, script = of("sglang")
    assert (score.text, score.reason) == ("The tides follow the moon.", "end of text")
    assert (score.prompt_tokens, score.length, score.first_block) == (14, 6, 2)
    assert (score.drafted, score.accepted) == (8, 3)
    assert script.asked[0]["return_spec_tokens_details"] is True
    assert sum(path == "/metrics" for path, _ in script.gets) == 1, "it has told of drafts itself"


def test_drafts_are_read_of_openais_predicted_tokens_too() -> None:
    score, _ = of("sglang_usage", request=replace(REQUEST, chat=False, stop=("the moon",)))
    assert (score.drafted, score.accepted) == (4, 1)
    assert (score.text, score.reason) == ("The tides follow", "stop string")


def test_ollamas_thoughts_are_text_and_its_log_probabilities_count() -> None:
    score, script = of("ollama", ":gaps=true")
    assert score.text == "Moon.The tides"
    assert (score.length, score.prompt_tokens, score.gaps) == (3, 22, [1.5, 0.5, 2.0])
    assert script.asked[0]["logprobs"] is True


def test_tgis_messages_are_tokens() -> None:
    score, _ = of("tgi")
    assert (score.text, score.reason) == ("The tides.", "token limit")
    assert (score.length, score.prompt_tokens, score.first_block) == (3, 36, 1)


def test_openvinos_messages_are_words_so_there_is_no_time_per_token() -> None:
    score, _ = of("openvino_model_server")
    assert score.text == "The tides follow the moon."
    assert (score.length, score.prompt_tokens, score.times) == (0, 22, [])
    assert "no token counts, so the time per token is unknown" in served(score)


@pytest.mark.parametrize(("temperature", "top_p", "answered"), [(0, 1, 0), (1, 0.9, 0), (1, 1, 3)])
def test_tgi_is_asked_without_a_top_p_of_1(temperature: int, top_p: float, answered: int) -> None:
    """It called every form of the request wrong."""
    stream = (STREAMS / "tgi.txt").read_bytes()
    script = Script([stream], wrong=lambda asked: asked.get("top_p") == 1)
    request = replace(REQUEST, sampling=Sampling(temperature, top_p=top_p))
    with scripted(script) as address:
        _, board = raced(f"@{address}", request=request)
    assert board.scores[0].state == "done"
    assert board.scores[0].prompt_tokens == 36
    assert len(script.asked) == answered + 1
    assert script.asked[-1]["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("temperature", [0, 1])
def test_openvino_model_server_is_asked_without_other_options(temperature: int) -> None:
    stream = (STREAMS / "openvino_model_server.txt").read_bytes()
    script = Script([stream], wrong=lambda asked: len(asked.get("stream_options", ())) > 1)
    request = replace(REQUEST, sampling=Sampling(temperature, top_k=40))
    with scripted(script) as address:
        _, board = raced(f"@{address}/v3", request=request)
    assert board.scores[0].prompt_tokens == 22
    assert script.paths == ["/v3/chat/completions"] * 2
    assert script.asked[-1].get("top_k") == (40 if temperature else None)


def test_each_stream_names_what_it_is_written_after() -> None:
    for path in STREAMS.iterdir():
        head = path.read_text().partition("\n\n")[0]
        assert all(line.startswith(":") for line in head.splitlines())
        assert "http" in head or "github.com" in head
